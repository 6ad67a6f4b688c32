"""From hidden states to the next token of each row.

Letters: B rows, D width, V rows of the head, R rows of the head that were asked for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vlmtasks.engine.decoding_options import DecodingOptions
from vlmtasks.errors import InputError, NumericsError

NOTHING_ALLOWED = "the constraint allows {}; it must allow at least the end token"


class Head(Protocol):
    """What choosing needs of `PaliGemma`."""

    def logits(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor: ...


class TokenConstraint(Protocol):
    """Restricts the next token of one row, for example to a grammar."""

    def allowed(self, tokens: Sequence[int], /) -> Sequence[int] | None:
        """The ids that may follow the new `tokens` so far (the end token included where the answer
        may end), or None for any. Must not be empty."""
        ...


@dataclass(frozen=True)
class TokenLimits:
    """stop_ids: tokens that end an answer. choosable: (V,) bool, False for ids that are no text
    (padding rows of the embedding table, <image>); they are never produced."""

    stop_ids: frozenset[int]
    choosable: Tensor


class RowState(Protocol):
    """What choosing needs of a row: its new tokens so far, its restriction, its random numbers."""

    tokens: list[int]
    constraint: TokenConstraint | None
    generator: torch.Generator


def choose_tokens(
    head: Head,
    hidden: Tensor,
    rows: Sequence[RowState],
    options: DecodingOptions,
    limits: TokenLimits,
    stage: str,
) -> tuple[list[int], list[float]]:
    """The next id of each row and its log-probability, from hidden states (B, D)."""
    allowed = [allowed_ids(row.constraint, row.tokens) for row in rows]
    head_rows = None if options.raw_logprobs else head_rows_of(allowed, hidden.device)
    logprobs = token_logprobs(head, hidden, head_rows, stage)  # (B, R)
    scores = restrict(logprobs, allowed, head_rows, limits)
    if options.temperature == 0:
        chosen = scores.argmax(-1)
    else:
        chosen = torch.stack(
            [sample(s, options, row.generator) for s, row in zip(scores, rows, strict=True)]
        ).to(hidden.device)
    picked = logprobs.gather(-1, chosen[:, None])[:, 0]
    ids = chosen if head_rows is None else head_rows[chosen]
    return ids.tolist(), picked.tolist()


def allowed_ids(constraint: TokenConstraint | None, tokens: Sequence[int]) -> Sequence[int] | None:
    """The ids of the constraint, never none at all; None where any is allowed."""
    ids = None if constraint is None else constraint.allowed(tokens)
    if ids is not None and len(ids) == 0:
        raise InputError(NOTHING_ALLOWED.format("no token"))
    return ids


def token_logprobs(head: Head, hidden: Tensor, head_rows: Tensor | None, stage: str) -> Tensor:
    """Log-softmax of the raw logits, float32 (B, R)."""
    logits = head.logits(hidden, head_rows).float()
    require_finite(logits, f"logits, {stage}")
    return logits.log_softmax(-1)


def head_rows_of(allowed: Sequence[Sequence[int] | None], device: torch.device) -> Tensor | None:
    """The sorted union of the allowed ids (R,), or None when a row allows any."""
    union: set[int] = set()
    for ids in allowed:
        if ids is None:
            return None
        union.update(ids)
    return torch.tensor(sorted(union), device=device)


def restrict(
    logprobs: Tensor,
    allowed: Sequence[Sequence[int] | None],
    head_rows: Tensor | None,
    limits: TokenLimits,
) -> Tensor:
    """−∞ for ids that may not be produced or that the row's constraint forbids. (B, R) → (B, R)."""
    choosable = limits.choosable if head_rows is None else limits.choosable[head_rows]
    scores = logprobs.masked_fill(~choosable, -math.inf)
    for index, ids in enumerate(allowed):
        if ids is None:
            continue
        places = torch.as_tensor(ids, dtype=torch.long, device=scores.device)
        if head_rows is not None:
            places = torch.searchsorted(head_rows, places)
        forbidden = torch.ones(scores.shape[1], dtype=torch.bool, device=scores.device)
        forbidden[places] = False
        scores[index] = scores[index].masked_fill(forbidden, -math.inf)
        if scores[index].isneginf().all():
            raise InputError(NOTHING_ALLOWED.format(f"only {list(ids)[:10]}, which are no text"))
    return scores


def sample(scores: Tensor, options: DecodingOptions, generator: torch.Generator) -> Tensor:
    """Draws an index from log-probabilities (R,), on the CPU so that devices draw the same."""
    scores = scores.cpu().double()
    probabilities = ((scores - scores.max()) / options.temperature).softmax(-1)
    if options.top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        before = ordered.cumsum(0) - ordered
        # In the order of the ids again: the draw must not depend on how equals were sorted.
        probabilities[order[before >= options.top_p]] = 0
    return torch.multinomial(probabilities, 1, generator=generator)[0]


def row_seed(seed: int, row: int) -> int:
    """A different, reproducible seed for each row (the mixing step of splitmix64)."""
    mask = (1 << 64) - 1
    x = (seed + (row + 1) * 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def require_finite(tensor: Tensor, stage: str) -> None:
    """Raises NumericsError naming the stage where NaN or infinity appeared."""
    if not bool(tensor.isfinite().all()):
        raise NumericsError(
            f"the model computed NaN or infinity ({stage}, {tensor.dtype}); the weights may be "
            'damaged, or their range too large for this dtype: try dtype="float32"'
        )
