"""A network whose every logit the test writes down."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from vlmtasks.engine.cache import KeyValueCache
from vlmtasks.engine.paligemma import Prefill

Scores = Callable[[int, tuple[int, ...]], Sequence[float]]


class _Rows:
    """What the network remembers: the prompt of each row and its tokens so far."""

    def __init__(self, prompts: list[int]) -> None:
        self.rows: list[tuple[int, tuple[int, ...]]] = [(prompt, ()) for prompt in prompts]

    def select(self, rows: Tensor) -> None:
        self.rows = [self.rows[int(row)] for row in rows]


class ScriptedNetwork:
    """scores(prompt, tokens) → the logits (V,) after these new tokens of that prompt."""

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self.steps = 0  # how many times logits were asked for
        self.batches: list[int] = []  # rows of each of these
        self.head_rows: list[list[int] | None] = []
        self.positions: list[list[int]] = []

    def prefill(
        self, ids: Tensor, valid: Tensor, image_tokens: list[Tensor], slots: int
    ) -> Prefill:
        cache = _Rows(list(range(len(ids))))
        self._seen = cache
        hidden = self._hidden(cache)
        return Prefill(hidden, cast(KeyValueCache, cache), valid.sum(1))

    def decode(self, ids: Tensor, positions: Tensor, cache: Any) -> Tensor:
        self.positions.append(positions.tolist())
        cache.rows = [
            (prompt, (*tokens, int(new)))
            for (prompt, tokens), new in zip(cache.rows, ids, strict=True)
        ]
        return self._hidden(cache)

    def logits(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        self.steps += 1
        self.batches.append(len(hidden))
        self.head_rows.append(None if rows is None else rows.tolist())
        return hidden if rows is None else hidden[:, rows]

    def _hidden(self, cache: _Rows) -> Tensor:
        return torch.tensor([list(self._scores(*row)) for row in cache.rows])


def script(vocabulary: int, *answers: Sequence[int]) -> ScriptedNetwork:
    """Says answers[prompt] token by token, the last token for ever."""

    def scores(prompt: int, tokens: tuple[int, ...]) -> list[float]:
        answer = answers[prompt]
        logits = [0.0] * vocabulary
        logits[answer[min(len(tokens), len(answer) - 1)]] = 9.0
        return logits

    return ScriptedNetwork(scores)
