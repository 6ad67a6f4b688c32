"""The command line of the fuzzer; see the package. Exit status: 0 nothing found, 1 something."""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from tests.fuzz.cases import Target, random_of, run_case
from tests.fuzz.processes import fuzz
from tests.fuzz.targets import TARGETS


def main() -> int:
    options = _parser().parse_args()
    chosen = [TARGETS[name] for name in options.targets] or list(TARGETS.values())
    if options.case is not None:
        return _repeat(chosen[0], options.seed, options.case)
    found = sum(fuzz(target, options.seed, options.seconds) for target in chosen)
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], metavar="target")
    parser.add_argument("--seconds", type=float, default=600, help="for each target [600]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="run this case alone and show everything")
    return parser


def _repeat(target: Target, seed: int, number: int) -> int:
    logging.disable()
    print(f"{target.make(random_of(target, seed, number))!r:.2000}")
    with tempfile.TemporaryDirectory() as folder:
        finding = run_case(target, seed, number, Path(folder))
    print(finding.details if finding else "nothing wrong")
    return 1 if finding else 0


if __name__ == "__main__":
    sys.exit(main())
