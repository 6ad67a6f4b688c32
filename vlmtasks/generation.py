"""What one run of a language model gives back, free of any tensor library."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]
TopLogprobs = tuple[tuple[int, float], ...]  # (id, log-probability), the likeliest first


@dataclass(frozen=True)
class Generation:
    """The new tokens of one prompt.

    text: the decoded tokens, never the prompt, never <eos> or padding.
    token_ids: the new ids without <eos>, (T,).
    logprobs: natural-log probability of each of `token_ids` under the softmax of the raw logits
        (before temperature or any restriction), (T,). Where a grammar restricted the tokens it is
        the softmax over what `vlmtasks.grammar.RecordConstraint.compared` names.
    finish_reason: "stop" when the model ended by itself, "length" when it was cut.
    top_logprobs: for each of `token_ids` the likeliest ids at its place, (T,); () unless asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    top_logprobs: tuple[TopLogprobs, ...] = ()
