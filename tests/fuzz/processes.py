"""A target in processes of its own, so that a crash, a hang or too much memory is told, too."""

import logging
import multiprocessing
import resource
import signal
import tempfile
import time
from collections import Counter
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Any

from tests.fuzz.cases import Finding, Target, run_case
from tests.fuzz.targets import TARGETS

_SILENT_SECONDS = 120  # without a finished case: something hangs where no signal reaches it
_MEMORY = 3 << 30  # bytes that a target may take beyond what its process starts with


def fuzz(target: Target, seed: int, seconds: float) -> int:
    """Run a target in processes of its own, a new one whenever one dies; the number of kinds."""
    context = multiprocessing.get_context("spawn")
    end = time.monotonic() + seconds
    kinds: Counter[str] = Counter()
    number = 0
    while time.monotonic() < end:
        queue: Queue[Any] = context.Queue()
        arguments = (target.name, seed, number, end - time.monotonic(), queue)
        worker = context.Process(target=_work, args=arguments, daemon=True)
        worker.start()
        number, death = _watch(target, seed, queue, worker, kinds, number)
        if death is None:
            break
        if worker.exitcode != -signal.SIGTERM:  # which nothing here sends: somebody else did
            _tell(target, seed, number, Finding(death, death), kinds)
        number += 1
    print(f"{target.name:<12} {number:>8} cases, {len(kinds)} kinds of findings", flush=True)
    return len(kinds)


def _watch(
    target: Target, seed: int, queue: "Queue[Any]", worker: Any, kinds: Counter[str], number: int
) -> tuple[int, str | None]:
    """Follow a worker: the case it reached, and None or how it died there."""
    heard = time.monotonic()
    while True:
        try:
            number, finding = queue.get(timeout=1)
            heard = time.monotonic()
            if finding == "end":
                worker.join()
                return number, None
            if finding is not None:
                _tell(target, seed, number, finding, kinds)
        except Empty:
            if not worker.is_alive():
                return number, f"the process died with status {worker.exitcode}"
            if time.monotonic() - heard > _SILENT_SECONDS:
                worker.kill()
                worker.join()
                return number, f"hangs for more than {_SILENT_SECONDS} s"


def _work(name: str, seed: int, number: int, seconds: float, queue: "Queue[Any]") -> None:
    logging.disable()
    target = TARGETS[name]
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (taken + _MEMORY, resource.RLIM_INFINITY))
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            queue.put((number, None))  # should the process die, this case is known
            finding = run_case(target, seed, number, Path(folder))
            if finding is not None:
                queue.put((number, finding))
            number += 1
        queue.put((number, "end"))


def _tell(target: Target, seed: int, number: int, finding: Finding, kinds: Counter[str]) -> None:
    """Once for each kind of finding."""
    kinds[finding.kind] += 1
    if kinds[finding.kind] > 1:
        return
    last = finding.details.strip().splitlines()[-1]
    again = f"python -m tests.fuzz {target.name} --seed {seed} --case {number}"
    print(f"FOUND {target.name}: {finding.kind}: {last:.200}\n      {again}", flush=True)
