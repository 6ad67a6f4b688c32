"""How sure the model was of an object, from the probabilities of its tokens."""

import math

from vlmtasks.generation import Generation
from vlmtasks.tokens import LOC_BINS, ParsedObject, TokenVocabulary


def location_score(
    generation: Generation, record: ParsedObject, vocabulary: TokenVocabulary
) -> float:
    """Geometric mean of the probabilities of the four location tokens, 0..1.

    exp(mean(log p)), p under the softmax of the raw logits. `record` must have been parsed from
    `generation.token_ids`. 1.0 when the generation has no log-probabilities.
    """
    start, stop = record.span
    logprobs = [
        logprob
        for token_id, logprob in zip(
            generation.token_ids[start:stop], generation.logprobs[start:stop], strict=False
        )
        if 0 <= token_id - vocabulary.loc_start < LOC_BINS
    ]
    if not logprobs:
        return 1.0
    return min(1.0, math.exp(math.fsum(logprobs) / len(logprobs)))
