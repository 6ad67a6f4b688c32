"""RefCOCO: mIoU, cIoU, gIoU and box accuracy of masks for phrases.

    python benchmarks/refcoco.py --annotations refcoco_val.jsonl --images train2014

`--help` tells all options; `vlmtasks eval refcoco` is the same.
"""

import sys

from vlmtasks.eval_cli import app

if __name__ == "__main__":
    app(["refcoco", *sys.argv[1:]], prog_name="benchmarks/refcoco.py")
