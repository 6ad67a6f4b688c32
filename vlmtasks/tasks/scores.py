"""How sure the model was of an object, from the probabilities of its tokens.

A score is one of SCORES, each 0..1:

    loc      geometric mean of the probabilities of the four location tokens: how sharp the box is
    class    probability of the name, the product over its tokens: PaliGemma 2's recipe for COCO
             detection; the same for all objects where a single class was asked
    mask     geometric mean of the probabilities of the sixteen codes; of a box alone, as loc
    product  of all of these that the object has

Probabilities are those of `Generation.logprobs`: with `constrain=True` a location token is compared
with all 1024 (and with the end of the answer, where that might have come instead), a code with all
128, and a name, for "class" and "product", with the whole vocabulary. Without a grammar, and with
`num_beams` or `best_of`, all are compared with the whole vocabulary; for a model that keeps to the
format by itself the difference is small.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from vlmtasks.choices import check_choice
from vlmtasks.generation import Generation
from vlmtasks.tokens import LOC_BINS, SEG_CODES, ParsedObject, TokenVocabulary

Score = Literal["loc", "class", "mask", "product"]
SCORES: tuple[Score, ...] = get_args(Score)
DEFAULT_SCORE: Score = "loc"
NEEDS_CLASS: frozenset[str] = frozenset({"class", "product"})


def check_score(score: str) -> Score:
    """Return one of SCORES, or raise InputError."""
    return check_choice(score, SCORES, "score")


def record_score(
    generation: Generation,
    record: ParsedObject,
    vocabulary: TokenVocabulary,
    score: Score = DEFAULT_SCORE,
) -> float:
    """The score of one good record, which must have been parsed from `generation.token_ids`.

    1.0 when the generation has no log-probabilities.
    """
    parts = _split(generation, record, vocabulary)
    factors = {
        "loc": _geometric_mean(parts.locs),
        "class": math.fsum(parts.name),
        "mask": _geometric_mean(parts.codes or parts.locs),
    }
    if score != "product":
        return _probability(factors[score])
    return _probability(
        factors["loc"] + factors["class"] + (factors["mask"] if parts.codes else 0.0)
    )


@dataclass(frozen=True)
class _Parts:
    """Log-probabilities of a record's tokens by what they write."""

    locs: list[float]
    codes: list[float]
    name: list[float]


def _split(generation: Generation, record: ParsedObject, vocabulary: TokenVocabulary) -> _Parts:
    start, stop = record.span
    parts = _Parts([], [], [])
    # an answer of text alone has no probabilities: then no part has any
    for token_id, logprob in zip(
        generation.token_ids[start:stop], generation.logprobs[start:stop], strict=False
    ):
        if 0 <= token_id - vocabulary.loc_start < LOC_BINS:
            parts.locs.append(logprob)
        elif 0 <= token_id - vocabulary.seg_start < SEG_CODES:
            parts.codes.append(logprob)
        elif len(parts.locs) == 4 and (parts.codes or not record.mask_codes):
            parts.name.append(logprob)
    return parts


def _geometric_mean(logprobs: list[float]) -> float:
    return math.fsum(logprobs) / len(logprobs) if logprobs else 0.0


def _probability(logprob: float) -> float:
    return min(1.0, math.exp(logprob))


def begin_probability(
    generation: Generation, previous_stop: int, start: int, stop_ids: Iterable[int]
) -> float:
    """How sure the model was that there is one more object at all, 0..1.

    previous_stop: where the record before ended in `generation.token_ids`, 0 for none; start: where
    this one begins. It is the probability of the separator, against the end of the answer; for the
    first object one minus that of the end, as far as `generation.top_logprobs` know it.
    """
    if start > previous_stop and generation.logprobs:
        return _probability(generation.logprobs[previous_stop])
    if start >= len(generation.top_logprobs):
        return 1.0
    ends = frozenset(stop_ids)
    return 1.0 - math.fsum(math.exp(p) for i, p in generation.top_logprobs[start] if i in ends)
