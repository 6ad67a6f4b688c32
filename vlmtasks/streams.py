"""Answers while they are being written: objects one by one, text piece by piece."""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from vlmtasks.batches import Settings, generation_limit
from vlmtasks.errors import InputError
from vlmtasks.finding import Constraint, Search, with_true_end
from vlmtasks.generation import FinishReason, Generation, TopLogprobs
from vlmtasks.object_options import ObjectSettings
from vlmtasks.results import Detection, Detections
from vlmtasks.tokens import LOC_BINS

if TYPE_CHECKING:
    from vlmtasks.engine import EncodedImage, Engine

_STREAMED = ("temperature", "top_p", "seed")  # of the sampling keywords


def check_streamable(settings: Settings, objects: ObjectSettings | None = None) -> None:
    """InputError for keywords that need whole answers, or several pictures."""
    unfit = [name for name in settings.sampling if name not in _STREAMED]
    if objects is not None:
        unfit += [name for name in ("tile", "nms") if getattr(objects, name) is not None]
    if settings.on_error != "raise":
        unfit.append("on_error")
    if unfit:
        raise InputError(
            f"{unfit[0]} cannot be used with a stream, one answer as it grows; leave it out"
        )


def stream_text(
    engine: "Engine", encoded: "EncodedImage", prompt: str, settings: Settings
) -> Iterator[str]:
    """The answer in pieces that add up to the stripped text of the whole."""
    limit = generation_limit(engine, encoded, prompt, settings)
    held = ""  # blanks, which are left out at both ends
    is_first = True
    for step in engine.stream(encoded, prompt, max_new_tokens=limit, **settings.sampling):
        text = held + step.text
        text = text.lstrip() if is_first else text
        piece = text.rstrip()
        held = text[len(piece) :]
        if piece:
            is_first = False
            yield piece


class ObjectStream(Iterator[Detection]):
    """The objects of one picture, each as soon as its record is complete.

    `close` stops the work. `result` is the whole, once the stream has ended.
    """

    def __init__(self, search: Search, encoded: "EncodedImage") -> None:
        self._search = search
        self._encoded = encoded
        self._objects = self._run()
        self._result: Detections | None = None

    def __next__(self) -> Detection:
        return next(self._objects)

    def close(self) -> None:
        """Stop; the rest of the answer is never computed."""
        self._objects.close()

    @property
    def result(self) -> Detections:
        """What `detect` or `segment` gives for the same picture. InputError before the end."""
        if self._result is None:
            raise InputError("the stream has not ended; take all of its objects first")
        return self._result

    def _run(self) -> Generator[Detection]:
        search = self._search
        parts: list[Detections] = []
        wholes: list[Detections] = []
        told = 0
        for group in range(len(search.groups)):
            answer = _GrowingAnswer(search, self._encoded, group)
            for part in answer.parts():
                parts.append(part)
                known = search.cleaned(Detections.concatenated(parts))
                for index in range(told, len(known)):
                    yield known[index]
                told = len(known)
            wholes.append(answer.whole())
        self._result = search.cleaned(Detections.concatenated(wholes))


class _GrowingAnswer:
    """The answer to one prompt, read record by record."""

    def __init__(self, search: Search, encoded: "EncodedImage", group: int) -> None:
        self._search, self._encoded, self._group = search, encoded, group
        self._vocabulary = search.engine.vocabulary
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._tops: list[TopLogprobs] = []
        self._start = 0  # of what has not been read yet
        self._finish_reason: FinishReason = "length"
        self._rules: Constraint | None = None

    def parts(self) -> Iterator[Detections]:
        """What is complete, whenever something is; together the whole answer."""
        for step in self._steps():
            if step.token_id is not None:
                if self._begins_box(step.token_id):
                    yield self._read(len(self._ids), "stop")
                    self._start = len(self._ids)
                self._ids.append(step.token_id)
                self._logprobs.append(step.logprob)
                self._tops.append(step.top_logprobs)
                if ";" in self._text(step.token_id):
                    yield self._read(len(self._ids), "stop")
                    self._start = self._separator_start()
            if step.finish_reason is not None:
                self._finish_reason = step.finish_reason
        yield self._read(len(self._ids), self._finish_reason)

    def whole(self) -> Detections:
        """All of the answer, once it has ended."""
        self._start = 0
        return self._read(len(self._ids), self._finish_reason)

    def _steps(self) -> Iterator[Any]:
        search = self._search
        prompt = search.prompts[self._group]
        settings = search.settings.answers
        limit = generation_limit(search.engine, self._encoded, prompt, settings)
        keywords = dict(search.keywords()) | dict(settings.sampling)
        if search.settings.constrain:
            self._rules = search.constraint(self._group, limit)
            keywords["constraint"] = self._rules
        for step in search.engine.stream(self._encoded, prompt, max_new_tokens=limit, **keywords):
            if self._rules is not None:
                self._rules.add(step)
            yield step

    def _read(self, stop: int, finish_reason: FinishReason) -> Detections:
        ids = self._ids[self._start : stop]
        tops = tuple(self._tops[self._start : stop])
        generation = Generation(
            self._vocabulary.decode(ids),
            tuple(ids),
            tuple(self._logprobs[self._start : stop]),
            finish_reason,
            tops if any(tops) else (),
        )
        if self._rules is not None and self._start == 0 and stop == len(self._ids):
            generation = with_true_end(generation, self._rules)
        return self._search.read(generation, self._encoded.image_size, self._group)

    def _begins_box(self, token_id: int) -> bool:
        """Whether a box begins here without a separator, which ends the record before."""
        if not self._is_loc(token_id):
            return False
        unread = self._ids[self._start :]
        locs = [place for place, other in enumerate(unread) if self._is_loc(other)]
        return bool(locs) and bool(self._vocabulary.decode(unread[locs[-1] + 1 :]).strip())

    def _separator_start(self) -> int:
        """Where the separator begins that was just completed, its blank included."""
        start = len(self._ids) - 1
        while start > self._start and not self._text(self._ids[start - 1]).strip():
            start -= 1
        return start

    def _is_loc(self, token_id: int) -> bool:
        return 0 <= token_id - self._vocabulary.loc_start < LOC_BINS

    def _text(self, token_id: int) -> str:
        return self._vocabulary.decode([token_id])
