"""Answers that may not end yet: more objects than the model names by itself."""

from collections.abc import Sequence
from typing import Any, Protocol

from vlmtasks.generation import Generation, TopLogprobs
from vlmtasks.grammar import Ids, RecordConstraint
from vlmtasks.tasks.reading import Reading
from vlmtasks.tokens import ParsedObject, TokenVocabulary, parse_objects

TOP_LOGPROBS = 8  # enough to see how likely the end of the answer was


class Step(Protocol):
    """What the engine reports of a new token."""

    @property
    def token_id(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def top_logprobs(self) -> TopLogprobs: ...


class ContinuedConstraint:
    """A `RecordConstraint` that forbids the end of the answer until there is a reason for it.

    That is: the last object scores below `stop_score`, or it is the same as an earlier one, or
    there are `max_objects`, or no room is left. `add` must be told of every new token.
    """

    def __init__(
        self,
        records: RecordConstraint,
        vocabulary: TokenVocabulary,
        reading: Reading,
        stop_score: float,
        max_objects: int,
    ) -> None:
        self.records = records
        self._vocabulary = vocabulary
        self._reading = reading
        self._stop_score = stop_score
        self._max_objects = max_objects
        self._steps: list[Step] = []

    def add(self, step: Any) -> None:
        """Take note of a new token."""
        self._steps.append(step)

    def allowed(self, tokens: Sequence[int], /) -> Ids:
        """As the records', without the end while the answer has to go on."""
        ids = self.records.allowed(tokens)
        stops = self.records.grammar.stop_ids
        going_on = ids[~_is_in(ids, stops)]
        if len(going_on) in (0, len(ids)):
            return ids
        if self.records.place(tokens).may_begin and self._is_done(tokens):
            return stops
        return going_on

    def compared(self, tokens: Sequence[int], /) -> Ids | None:
        """As the records': the end counts although it is forbidden."""
        return self.records.compared(tokens)

    def was_cut(self, tokens: Sequence[int]) -> bool:
        return self.records.was_cut(tokens)

    def _is_done(self, tokens: Sequence[int]) -> bool:
        found = parse_objects(tokens, (1, 1), vocabulary=self._vocabulary)
        if not found:
            return False
        *earlier, last = found
        if len(found) >= self._max_objects or _content(last) in map(_content, earlier):
            return True
        steps = self._steps[: len(tokens)]
        so_far = Generation(
            "",
            tuple(tokens),
            tuple(step.logprob for step in steps),
            "length",
            tuple(step.top_logprobs for step in steps),
        )
        return self._reading.scores(so_far, found, self._vocabulary)[-1] < self._stop_score


def _content(record: ParsedObject) -> tuple[Any, ...]:
    return record.label, record.loc_yxyx, record.mask_codes


def _is_in(ids: Ids, stops: Ids) -> Any:
    return (ids[:, None] == stops).any(axis=1)
