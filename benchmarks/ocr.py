"""Reading text: character and word error rate, or words with boxes.

    python benchmarks/ocr.py --annotations lines.jsonl --images pictures

`--help` tells all options; `vlmtasks eval ocr` is the same.
"""

import sys

from vlmtasks.eval_cli import app

if __name__ == "__main__":
    app(["ocr", *sys.argv[1:]], prog_name="benchmarks/ocr.py")
