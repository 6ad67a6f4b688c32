"""From hidden states to the next token of each row.

Letters: B rows, D width, V rows of the head, R rows of the head that were asked for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


@runtime_checkable
class ComparingConstraint(TokenConstraint, Protocol):
    """A constraint that also says what probabilities are relative to.

    Without it they are relative to the allowed ids. Only without `raw_logprobs`.
    """

    def compared(self, tokens: Sequence[int], /) -> Sequence[int] | None:
        """The ids, the allowed ones among them, whose probabilities add up to 1 after the new
        `tokens` so far; None for the whole vocabulary."""
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


@dataclass(frozen=True)
class Choice:
    """The next token of one row. top: the likeliest ids with their log-probabilities."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def choose_tokens(
    head: Head,
    hidden: Tensor,
    rows: Sequence[RowState],
    options: DecodingOptions,
    limits: TokenLimits,
    stage: str,
) -> list[Choice]:
    """The next id of each row with its log-probability, from hidden states (B, D)."""
    allowed = [allowed_ids(row.constraint, row.tokens) for row in rows]
    compared: list[Sequence[int] | None] = [None] * len(rows)
    if not options.raw_logprobs:
        compared = [_compared_ids(row, ids) for row, ids in zip(rows, allowed, strict=True)]
    head_rows = head_rows_of(compared, hidden.device)
    logprobs = token_logprobs(head, hidden, head_rows, stage, compared)  # (B, R)
    scores = restrict(logprobs, allowed, head_rows, limits)
    if options.temperature == 0:
        chosen = scores.argmax(-1)
    else:
        chosen = torch.stack(
            [sample(s, options, row.generator) for s, row in zip(scores, rows, strict=True)]
        ).to(hidden.device)
    picked = logprobs.gather(-1, chosen[:, None])[:, 0].tolist()
    ids = (chosen if head_rows is None else head_rows[chosen]).tolist()
    tops = _likeliest(logprobs, head_rows, options.top_logprobs)
    return [Choice(*choice) for choice in zip(ids, picked, tops, strict=True)]


def allowed_ids(constraint: TokenConstraint | None, tokens: Sequence[int]) -> Sequence[int] | None:
    """The ids of the constraint, never none at all; None where any is allowed."""
    ids = None if constraint is None else constraint.allowed(tokens)
    if ids is not None and len(ids) == 0:
        raise InputError(NOTHING_ALLOWED.format("no token"))
    return ids


def token_logprobs(
    head: Head,
    hidden: Tensor,
    head_rows: Tensor | None,
    stage: str,
    compared: Sequence[Sequence[int] | None] = (),
) -> Tensor:
    """Log-softmax of the raw logits, float32 (B, R), for each row among its `compared` ids.

    −∞ for all others. compared: none, or one entry a row, None for all.
    """
    logits = head.logits(hidden, head_rows).float()
    require_finite(logits, f"logits, {stage}")
    if any(ids is not None for ids in compared):
        logits = logits.masked_fill(~_members(compared, head_rows, logits), -math.inf)
    return logits.log_softmax(-1)


def head_rows_of(wanted: Sequence[Sequence[int] | None], device: torch.device) -> Tensor | None:
    """The sorted union of the wanted ids (R,), or None when a row wants all."""
    some = [torch.as_tensor(ids, dtype=torch.long) for ids in wanted if ids is not None]
    if len(some) < len(wanted) or not some:
        return None
    return torch.cat(some).unique().to(device)


def restrict(
    logprobs: Tensor,
    allowed: Sequence[Sequence[int] | None],
    head_rows: Tensor | None,
    limits: TokenLimits,
) -> Tensor:
    """−∞ for ids that may not be produced or that the row's constraint forbids. (B, R) → (B, R)."""
    choosable = limits.choosable if head_rows is None else limits.choosable[head_rows]
    scores = logprobs.masked_fill(~(choosable & _members(allowed, head_rows, logprobs)), -math.inf)
    for index in scores.isneginf().all(-1).nonzero()[:, 0].tolist():
        some = list(allowed[index] or ())[:10]
        raise InputError(NOTHING_ALLOWED.format(f"only {some}, which are no text"))
    return scores


def _compared_ids(row: RowState, allowed: Sequence[int] | None) -> Sequence[int] | None:
    if isinstance(row.constraint, ComparingConstraint):
        return row.constraint.compared(row.tokens)
    return allowed


def _members(
    sets: Sequence[Sequence[int] | None], head_rows: Tensor | None, like: Tensor
) -> Tensor:
    """(B, R) bool: whether each column is an id of the row's set; None is the set of all."""
    members = torch.zeros(like.shape, dtype=torch.bool, device=like.device)
    for row, ids in zip(members, sets, strict=True):
        if ids is None:
            row.fill_(True)
            continue
        places = torch.as_tensor(ids, dtype=torch.long, device=like.device)
        row[places if head_rows is None else torch.searchsorted(head_rows, places)] = True
    return members


def _likeliest(
    logprobs: Tensor, head_rows: Tensor | None, count: int
) -> list[tuple[tuple[int, float], ...]]:
    """For each row up to `count` (id, log-probability), the likeliest first."""
    if not count:
        return [()] * len(logprobs)
    values, places = logprobs.topk(min(count, logprobs.shape[1]))
    ids = places if head_rows is None else head_rows[places]
    return [
        tuple(pair for pair in zip(*row, strict=True) if pair[1] > -math.inf)
        for row in zip(ids.tolist(), values.tolist(), strict=True)
    ]


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
