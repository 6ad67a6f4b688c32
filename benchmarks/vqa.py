"""Answers to questions: VQA v2, TextVQA, DocVQA, ChartQA, POPE, counting.

    python benchmarks/vqa.py --annotations answers.json --questions questions.json --images val2014

`--help` tells all options; `vlmtasks eval vqa` is the same.
"""

import sys

from vlmtasks.eval_cli import app

if __name__ == "__main__":
    app(["vqa", *sys.argv[1:]], prog_name="benchmarks/vqa.py")
