"""Prompt in, tokens out: prefill, then one token a step for all rows that are not finished.

Letters: B live rows, D width.
Decoding never touches the global random state of torch; sampling draws from generators of its own,
one a row, so a row's answer does not depend on the batch it runs in.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from vlmtasks.engine.cache import KeyValueCache
from vlmtasks.engine.decoding_options import DecodingOptions
from vlmtasks.engine.loop_guard import LoopGuard
from vlmtasks.engine.paligemma import Prefill
from vlmtasks.engine.prompt_ids import PaddedIds
from vlmtasks.engine.token_choice import (
    Choice,
    Head,
    TokenConstraint,
    TokenLimits,
    allowed_ids,
    choose_tokens,
    require_finite,
    row_seed,
)
from vlmtasks.generation import FinishReason, TopLogprobs


class Network(Head, Protocol):
    """What decoding needs of `PaliGemma`."""

    def prefill(
        self, ids: Tensor, valid: Tensor, image_tokens: list[Tensor], slots: int
    ) -> Prefill: ...

    def decode(self, ids: Tensor, positions: Tensor, cache: KeyValueCache) -> Tensor: ...


@dataclass(frozen=True)
class TokenStep:
    """One new token of one row. A stop token is reported too, with finish_reason "stop".

    row: index of the answer: prompt · best_of + sample.
    logprob: see `vlmtasks.generation.Generation`.
    finish_reason: None while the row goes on.
    top_logprobs: the likeliest ids of this step, see `DecodingOptions.top_logprobs`.
    """

    row: int
    token_id: int
    logprob: float
    finish_reason: FinishReason | None
    top_logprobs: TopLogprobs = ()

    def shifted(self, rows: int) -> "TokenStep":
        return replace(self, row=self.row + rows)


@dataclass
class Answer:
    """The new tokens of one row, without the stop token; total_logprob includes it."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    total_logprob: float = 0.0
    finish_reason: FinishReason = "length"
    top_logprobs: list[TopLogprobs] = field(default_factory=list)

    def add(self, step: TokenStep) -> None:
        self.total_logprob += step.logprob
        if step.finish_reason is not None:
            self.finish_reason = step.finish_reason
        if step.finish_reason != "stop":
            self.token_ids.append(step.token_id)
            self.logprobs.append(step.logprob)
            self.top_logprobs.append(step.top_logprobs)


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
        chosen = choose_tokens(
            self.network, hidden, self.rows, self.options, self.limits, f"new token {self.step}"
        )
        steps = [self._record(*pair) for pair in zip(self.rows, chosen, strict=True)]
        alive = [index for index, step in enumerate(steps) if step.finish_reason is None]
        device = hidden.device
        self.last_ids = torch.tensor([chosen[index].token_id for index in alive], device=device)
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

    def _record(self, row: _Row, choice: Choice) -> TokenStep:
        reason: FinishReason | None = None
        if choice.token_id in self.limits.stop_ids:
            reason = "stop"
        else:
            row.tokens.append(choice.token_id)
            loops = row.guard.add(choice.token_id) and self._may_end(row)
            if loops or len(row.tokens) == self.options.max_new_tokens:
                reason = "length"
        return TokenStep(row.index, choice.token_id, choice.logprob, reason, choice.top)

    def _may_end(self, row: _Row) -> bool:
        """Whether the answer is whole: one that loops isn't cut in the middle of a record."""
        allowed = allowed_ids(row.constraint, row.tokens)
        return allowed is None or not self.limits.stop_ids.isdisjoint(list(allowed))


def run_prefill(
    network: Network, prompts: PaddedIds, image_tokens: list[Tensor], max_new_tokens: int
) -> Prefill:
    """The prompt through the network, with room for the answer."""
    slots = prompts.ids.shape[1] + max_new_tokens
    prefill = network.prefill(prompts.ids, prompts.valid, image_tokens, slots)
    require_finite(prefill.hidden, "decoder, prompt")
    return prefill
