"""COCO box AP of `detect`.

    python benchmarks/coco_detection.py --annotations instances_val2017.json --images val2017

`--help` tells all options; `vlmtasks eval coco` is the same.
"""

import sys

from vlmtasks.eval_cli import app

if __name__ == "__main__":
    app(["coco", "--task", "detect", *sys.argv[1:]], prog_name="benchmarks/coco_detection.py")
