"""Prompt in, tokens out: prefill, then one token a step for all rows that are not finished.

Letters: B live rows, D width, V rows of the head, R rows of the head that were asked for.
Decoding never touches the global random state of torch; sampling draws from generators of its own,
one a row, so a row's answer does not depend on the batch it runs in.
"""

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from vlmtasks.engine.cache import KeyValueCache
from vlmtasks.engine.loop_guard import LoopGuard
from vlmtasks.engine.paligemma import Prefill
from vlmtasks.engine.prompt_ids import PaddedIds
from vlmtasks.errors import InputError, NumericsError
from vlmtasks.generation import FinishReason


class Network(Protocol):
    """What decoding needs of `PaliGemma`."""

    def prefill(
        self, ids: Tensor, valid: Tensor, image_tokens: list[Tensor], slots: int
    ) -> Prefill: ...

    def decode(self, ids: Tensor, positions: Tensor, cache: KeyValueCache) -> Tensor: ...

    def logits(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor: ...


class TokenConstraint(Protocol):
    """Restricts the next token of one row, for example to a grammar."""

    def allowed(self, tokens: Sequence[int], /) -> Sequence[int] | None:
        """The ids that may follow the new `tokens` so far (the end token included where the answer
        may end), or None for any. Must not be empty."""
        ...


@dataclass(frozen=True)
class DecodingOptions:
    """How tokens are chosen. The default is greedy.

    temperature: 0 greedy; > 0 samples from softmax(logits / temperature).
    top_p: samples only from the smallest set of tokens whose probabilities reach top_p.
    seed: the same seed, prompts and options give the same tokens; None: fresh ones.
    best_of: samples this many answers a prompt and keeps the one of largest Σ logprob.
    num_beams: > 1 searches with beams by Σ logprob, no length penalty (as big_vision).
    raw_logprobs: True computes the whole head at each step and gives logprobs over all tokens.
        False computes only the head rows that a constraint allows; logprobs are then relative to
        those rows. Greedy tokens are the same.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    best_of: int = 1
    num_beams: int = 1
    raw_logprobs: bool = True

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "best_of", "num_beams"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be an integer of at least 1, not {value!r}")
        if not _is_real(self.temperature) or not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature must be a number from 0, not {self.temperature!r}")
        if not _is_real(self.top_p) or not 0 < self.top_p <= 1:
            raise InputError(f"top_p must be a number in (0, 1], not {self.top_p!r}")
        if self.seed is not None and (
            isinstance(self.seed, bool) or not isinstance(self.seed, int)
        ):
            raise InputError(f"seed must be an integer or None, not {self.seed!r}")
        if self.temperature == 0 and (self.top_p < 1 or self.best_of > 1):
            raise InputError(
                "top_p and best_of need sampling: pass temperature > 0, or leave them out for "
                "greedy decoding"
            )
        if self.num_beams > 1 and self.temperature > 0:
            raise InputError("num_beams > 1 is deterministic: leave temperature at 0")
        if not self.raw_logprobs and max(self.num_beams, self.best_of) > 1:
            raise InputError("num_beams and best_of compare answers by their raw_logprobs")


NOTHING_ALLOWED = "the constraint allows {}; it must allow at least the end token"


@dataclass(frozen=True)
class TokenLimits:
    """stop_ids: tokens that end an answer. choosable: (V,) bool, False for ids that are no text
    (padding rows of the embedding table, <image>); they are never produced."""

    stop_ids: frozenset[int]
    choosable: Tensor


@dataclass(frozen=True)
class TokenStep:
    """One new token of one row. A stop token is reported too, with finish_reason "stop".

    row: index of the answer: prompt · best_of + sample.
    logprob: see `vlmtasks.generation.Generation`.
    finish_reason: None while the row goes on.
    """

    row: int
    token_id: int
    logprob: float
    finish_reason: FinishReason | None

    def shifted(self, rows: int) -> "TokenStep":
        return replace(self, row=self.row + rows)


@dataclass
class Answer:
    """The new tokens of one row, without the stop token; total_logprob includes it."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    total_logprob: float = 0.0
    finish_reason: FinishReason = "length"

    def add(self, step: TokenStep) -> None:
        self.total_logprob += step.logprob
        if step.finish_reason is not None:
            self.finish_reason = step.finish_reason
        if step.finish_reason != "stop":
            self.token_ids.append(step.token_id)
            self.logprobs.append(step.logprob)


def decode_steps(
    network: Network,
    prompts: PaddedIds,
    image_tokens: list[Tensor],
    options: DecodingOptions,
    limits: TokenLimits,
    constraints: Sequence[TokenConstraint | None] | None = None,
    first_row: int = 0,
) -> Iterator[list[TokenStep]]:
    """Yields the new tokens of all live rows, one list a step, until every row has finished.

    image_tokens: per prompt (S_b, D). constraints: one a prompt. first_row: index of the first
    prompt in the whole call, so that seeds do not depend on the batch size.
    Raises NumericsError when the network computes NaN or infinity.
    """
    batch = _Batch(network, prompts, image_tokens, options, limits, constraints, first_row)
    while batch.rows:
        yield batch.advance()


@dataclass
class _Row:
    index: int
    constraint: TokenConstraint | None
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    guard: LoopGuard = field(default_factory=LoopGuard)


class _Batch:
    """The rows that are still running and what the network remembers of them."""

    def __init__(
        self,
        network: Network,
        prompts: PaddedIds,
        image_tokens: list[Tensor],
        options: DecodingOptions,
        limits: TokenLimits,
        constraints: Sequence[TokenConstraint | None] | None,
        first_row: int,
    ) -> None:
        self.network, self.prompts, self.image_tokens = network, prompts, image_tokens
        self.options, self.limits = options, limits
        seed = secrets.randbits(62) if options.seed is None else options.seed
        first = first_row * options.best_of
        self.rows = [
            _Row(
                row,
                None if constraints is None else constraints[row // options.best_of],
                torch.Generator().manual_seed(row_seed(seed, first + row)),
            )
            for row in range(len(prompts.ids) * options.best_of)
        ]
        self.cache: KeyValueCache | None = None
        self.positions = self.last_ids = torch.empty(0)
        self.step = 0

    @torch.inference_mode()
    def advance(self) -> list[TokenStep]:
        """One more token for each live row; rows that finish leave the batch."""
        hidden = self._next_hidden()
        self.step += 1
        ids, logprobs = choose_tokens(
            self.network, hidden, self.rows, self.options, self.limits, f"new token {self.step}"
        )
        steps = [self._record(*row) for row in zip(self.rows, ids, logprobs, strict=True)]
        alive = [index for index, step in enumerate(steps) if step.finish_reason is None]
        device = hidden.device
        self.last_ids = torch.tensor([ids[index] for index in alive], device=device)
        if len(alive) < len(self.rows):
            self.rows = [self.rows[index] for index in alive]
            if self.rows and self.cache is not None:
                keep = torch.tensor(alive, device=device)
                self.cache.select(keep)
                self.positions = self.positions[keep]
        return steps

    def _next_hidden(self) -> Tensor:
        """(B, D): of the last prompt token at first, then of the last new token."""
        if self.cache is None:
            prefill = run_prefill(
                self.network, self.prompts, self.image_tokens, self.options.max_new_tokens
            )
            copies = self.options.best_of
            self.cache, self.positions = prefill.cache, prefill.next_positions
            if copies == 1:
                return prefill.hidden
            repeated = torch.arange(len(self.rows), device=prefill.hidden.device) // copies
            self.cache.select(repeated)
            self.positions = self.positions[repeated]
            return prefill.hidden[repeated]
        hidden = self.network.decode(self.last_ids, self.positions, self.cache)
        self.positions = self.positions + 1
        require_finite(hidden, f"decoder, new token {self.step + 1}")
        return hidden

    def _record(self, row: _Row, token: int, logprob: float) -> TokenStep:
        reason: FinishReason | None = None
        if token in self.limits.stop_ids:
            reason = "stop"
        else:
            row.tokens.append(token)
            if row.guard.add(token) or len(row.tokens) == self.options.max_new_tokens:
                reason = "length"
        return TokenStep(row.index, token, logprob, reason)


def run_prefill(
    network: Network, prompts: PaddedIds, image_tokens: list[Tensor], max_new_tokens: int
) -> Prefill:
    """The prompt through the network, with room for the answer."""
    slots = prompts.ids.shape[1] + max_new_tokens
    prefill = network.prefill(prompts.ids, prompts.valid, image_tokens, slots)
    require_finite(prefill.hidden, "decoder, prompt")
    return prefill


def choose_tokens(
    network: Network,
    hidden: Tensor,
    rows: Sequence[_Row],
    options: DecodingOptions,
    limits: TokenLimits,
    stage: str,
) -> tuple[list[int], list[float]]:
    """The next id of each row and its log-probability, from hidden states (B, D)."""
    allowed = [allowed_ids(row.constraint, row.tokens) for row in rows]
    head_rows = None if options.raw_logprobs else head_rows_of(allowed, hidden.device)
    logprobs = token_logprobs(network, hidden, head_rows, stage)  # (B, R)
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


def token_logprobs(
    network: Network, hidden: Tensor, head_rows: Tensor | None, stage: str
) -> Tensor:
    """Log-softmax of the raw logits, float32 (B, R)."""
    logits = network.logits(hidden, head_rows).float()
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
    if options.top_p == 1:
        return torch.multinomial(probabilities, 1, generator=generator)[0]
    ordered, order = probabilities.sort(descending=True)
    before = ordered.cumsum(0) - ordered
    ordered = ordered.masked_fill(before >= options.top_p, 0)
    return order[torch.multinomial(ordered, 1, generator=generator)[0]]


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


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
