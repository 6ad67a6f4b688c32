"""Captions: CIDEr, BLEU, ROUGE-L.

    python benchmarks/captioning.py --annotations captions_val2017.json --images val2017

`--help` tells all options; `vlmtasks eval captions` is the same.
"""

import sys

from vlmtasks.eval_cli import app

if __name__ == "__main__":
    app(["captions", *sys.argv[1:]], prog_name="benchmarks/captioning.py")
