"""One case: make an input, feed it, and say what came out that should not have."""

import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from vlmtasks.datasets.problems import DatasetWarning
from vlmtasks.errors import VlmtasksError
from vqvae import CodecError

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 5.0  # of processor time, which a busy machine does not shorten


@dataclass(frozen=True)
class Target:
    """A way into the package.

    make: an input from a random number generator. feed: hands it to the package; the folder is for
    files and keeps what earlier cases left there. Errors of our own may come out of it; an
    AssertionError says that a result is wrong.
    count: cases that take about two seconds.
    """

    name: str
    make: Callable[[Random], Any]
    feed: Callable[[Any, Path], None]
    count: int


@dataclass(frozen=True)
class Finding:
    """What went wrong in a case. kind: the same for cases that went wrong in the same place."""

    kind: str
    details: str


class _TooSlow(BaseException):
    """Not an Exception, or the code under test might catch it."""


def random_of(target: Target, seed: int, number: int) -> Random:
    return Random(f"{target.name}/{seed}/{number}")


def run_case(target: Target, seed: int, number: int, folder: Path) -> Finding | None:
    """What went wrong in a case, None where all was well."""
    value = target.make(random_of(target, seed, number))
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with _stopped_after(SECONDS):
                target.feed(value, folder)
        except (VlmtasksError, CodecError):
            pass
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # PanicException of Rust is no Exception
            return _finding(error)
    seconds = time.process_time() - start
    if seconds > SECONDS:
        return Finding("slow", f"took {seconds:.1f} s of processor time")
    for warning in caught:
        if not _is_allowed(warning):
            place = f"{_short(Path(warning.filename))}:{warning.lineno}"
            return Finding(f"{warning.category.__name__} at {place}", str(warning.message))
    return None


def _is_allowed(warning: warnings.WarningMessage) -> bool:
    """Ours about data, and Pillow's about pictures, which it passes on to whoever wants them."""
    return issubclass(warning.category, DatasetWarning) or "/PIL/" in warning.filename


def _finding(error: BaseException) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(ROOT / "vlmtasks")]
    frame = (ours or frames)[-1]
    kind = f"{type(error).__name__} at {_short(Path(frame.filename))}:{frame.lineno}"
    return Finding(kind, "".join(traceback.format_exception(error)))


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(*path.parts[-3:]))


@contextmanager
def _stopped_after(seconds: float) -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise _TooSlow(f"was stopped after {seconds:g} s of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
