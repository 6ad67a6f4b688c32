"""Boxes between the bins: the mean of the bins near the likeliest one, by their probability."""

import math

from vlmtasks.generation import Generation
from vlmtasks.tokens import LOC_BINS, ParsedObject, TokenVocabulary

REACH = 16
"""Bins to each side that count."""

CANDIDATES = 2 * REACH + 1
"""How many of the likeliest tokens a generation must report at each step (`top_logprobs`)."""


def expected_bins(
    generation: Generation, record: ParsedObject, vocabulary: TokenVocabulary, reach: int = REACH
) -> tuple[float, float, float, float]:
    """(y_min, x_min, y_max, x_max) of a good record, 0..1023, as fractions of bins.

    Σ p·bin / Σ p over the bins at most `reach` from the one that was chosen, p from
    `generation.top_logprobs`; the chosen bin itself where there are none. A maximum never comes to
    lie below its minimum: then the chosen bins are kept for both.
    """
    places = [
        place
        for place in range(*record.span)
        if 0 <= generation.token_ids[place] - vocabulary.loc_start < LOC_BINS
    ]
    y_min, x_min, y_max, x_max = (
        _mean_near(chosen, generation, place, vocabulary, reach)
        for chosen, place in zip(record.loc_yxyx, places, strict=True)
    )
    if y_max <= y_min:
        y_min, y_max = record.loc_yxyx[0], record.loc_yxyx[2]
    if x_max <= x_min:
        x_min, x_max = record.loc_yxyx[1], record.loc_yxyx[3]
    return y_min, x_min, y_max, x_max


def _mean_near(
    chosen: int, generation: Generation, place: int, vocabulary: TokenVocabulary, reach: int
) -> float:
    top = generation.top_logprobs[place] if generation.top_logprobs else ()
    near = [
        (token_id - vocabulary.loc_start, math.exp(logprob))
        for token_id, logprob in top
        if abs(token_id - vocabulary.loc_start - chosen) <= reach
        and 0 <= token_id - vocabulary.loc_start < LOC_BINS
    ]
    total = math.fsum(weight for _, weight in near)
    if total <= 0:
        return float(chosen)
    return math.fsum(number * weight for number, weight in near) / total
