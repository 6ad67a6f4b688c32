"""What one command line does: ask about every picture, write each result as soon as it is there."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vlmtasks.api import LazyVLM
from vlmtasks.cli_inputs import Input, find_pictures
from vlmtasks.cli_outputs import (
    Answer,
    CocoList,
    JsonLines,
    Output,
    OutputFile,
    Overlays,
    Stream,
)
from vlmtasks.cli_words import say
from vlmtasks.errors import InputError, VlmtasksError
from vlmtasks.prompts import class_names
from vlmtasks.results import Detections
from vlmtasks.tasks import TASKS

if TYPE_CHECKING:
    from vlmtasks.cli import Common

_Ask = Callable[[Sequence[str]], list[Any]]  # paths → an Answer or an ImageError for each

FINE, SOME_FAILED, REFUSED, NO_READER = 0, 1, 2, 141
_SIGNALLED = 128  # and the number of the signal


@dataclass(frozen=True)
class Job:
    """One command line.

    names: files, folders, patterns. arguments: those of the task's prompt.
    save, form, mask_codec: the options that not every task has.
    options: further keywords of the verb, see `vlmtasks.object_options`.
    """

    task: str
    names: list[str]
    common: "Common"
    arguments: dict[str, Any]
    save: Path | None = None
    form: Literal["json", "coco"] = "json"
    mask_codec: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class _Stopped(BaseException):
    """SIGTERM or SIGHUP: as Ctrl-C, so that what was computed is written."""


@dataclass
class _Progress:
    """asked: pictures that have an answer; failed: those of them that have an error."""

    asked: int = 0
    failed: int = 0


def run(job: Job) -> int:
    """Do it and return the exit status. Nothing but results goes to stdout."""
    if sys.stderr is None:  # closed; the next file that is opened must not get its number
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    progress = _Progress()
    try:
        with _signals_stop():
            _answer_all(job, progress)
    except (KeyboardInterrupt, _Stopped) as stopped:
        say(f"vlmtasks {job.task}: stopped")
        number = stopped.args[0] if isinstance(stopped, _Stopped) else signal.SIGINT
        return _SIGNALLED + number
    except BrokenPipeError:
        # The reader left, as `head` does; Python must not flush to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    except (VlmtasksError, OSError) as error:
        say(f"vlmtasks {job.task}: {error}")
        return SOME_FAILED if progress.asked else REFUSED
    return SOME_FAILED if progress.failed and not job.common.keep_going else FINE


@contextmanager
def _signals_stop() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `_Stopped`, unless they are ignored, as under nohup."""

    def stop(number: int, _: Any) -> None:
        raise _Stopped(number)

    changed = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            changed[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)


def _answer_all(job: Job, progress: _Progress) -> None:
    """Write the result of every picture."""
    words = next((name for name in ("labels", "question") if name in job.arguments), None)
    inputs = find_pictures(job.names, words=words)
    ask = _asker(job)
    ask([])  # tells of wrong arguments before anything is opened or loaded
    output_file = job.common.output if job.common.output != Path("-") else None
    overlays = Overlays(job.save, inputs, job.task, results=output_file)
    if not job.common.quiet:
        _warn_of_commas(job)
    with ExitStack() as stack:
        stream: Stream = sys.stdout
        if output_file is not None:
            stream = stack.enter_context(closing(OutputFile(output_file, inputs)))
        elif stream is None:  # Python's word for a closed one
            raise InputError("stdout is closed, so results would be lost; give --output FILE")
        output = stack.enter_context(closing(_output(job, stream, inputs)))
        for place, answer in enumerate(_answers(ask, inputs, job.common.batch_size)):
            progress.asked += 1
            if isinstance(answer, str):
                output.add_error(place, answer)
                told, failed = answer, True
            else:
                output.add(place, answer)
                drawn, failed = _draw(overlays, place, answer)
                told = _summary(answer) + drawn
            if failed or not job.common.quiet:
                say(f"[{place + 1}/{len(inputs)}] {inputs[place].name}: {told}")
            progress.failed += failed


def _draw(overlays: Overlays, place: int, answer: Answer) -> tuple[str, bool]:
    """What became of the overlay, for people, and whether it failed; others may have more luck."""
    try:
        path = overlays.draw(place, answer)
    except (VlmtasksError, OSError) as error:
        return f", not drawn: {error}", True
    return f", drawn in {path}" if path else "", False


def _warn_of_commas(job: Job) -> None:
    """A comma belongs to a name, which not everybody expects."""
    names = class_names(job.arguments["labels"]) if "labels" in job.arguments else ()
    if len(names) == 1 and "," in names[0]:
        say(f"vlmtasks {job.task}: {names[0]!r} is one class; several are written 'cat ; dog'")


def _output(job: Job, stream: Stream, inputs: Sequence[Input]) -> Output:
    if job.form == "coco":
        return CocoList(stream, inputs, job.arguments.get("labels"))
    return JsonLines(stream, inputs)


def _answers(ask: _Ask, inputs: Sequence[Input], batch_size: int) -> Iterator[Answer | str]:
    """For every picture its answer, or why there is none."""
    for start in range(0, len(inputs), batch_size):
        batch = inputs[start : start + batch_size]
        answers = iter(ask([picture.name for picture in batch if picture.error is None]))
        for picture in batch:
            answer = picture.error or next(answers)
            yield str(answer) if isinstance(answer, VlmtasksError) else answer


def _summary(answer: Answer) -> str:
    if isinstance(answer, Detections):
        told = f"{len(answer)} object{'' if len(answer) == 1 else 's'}"
        if answer.dropped:
            told += f", {len(answer.dropped)} malformed left out"
        if answer.removed:
            told += f", {len(answer.removed)} removed as doubled or unsure"
    else:
        told = f"{len(answer.text)} letters"
    return told + (", cut at the longest answer allowed" * (answer.finish_reason == "length"))


def _asker(job: Job) -> _Ask:
    """A function that asks about some pictures; those that cannot be read give their error."""
    common = job.common
    model = LazyVLM(
        common.model, device=common.device, dtype=common.dtype, mask_codec=job.mask_codec
    )
    options: dict[str, Any] = {**job.options, "batch_size": common.batch_size, "on_error": "return"}
    if common.max_new_tokens is not None:
        options["max_new_tokens"] = common.max_new_tokens
    if job.task in ("detect", "segment"):
        verb = getattr(model, job.task)
        return lambda names: verb(list(names), job.arguments["labels"], **options)
    task = TASKS[job.task]
    prompt = task.prompt(**job.arguments)
    options.setdefault("max_new_tokens", task.max_new_tokens)
    return lambda names: model.generate(list(names), prompt, **options)
