"""Beam search as in big_vision: Σ log-probability, no length normalisation."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vlmtasks.engine.decoding import Answer, Network, run_prefill
from vlmtasks.engine.decoding_options import DecodingOptions
from vlmtasks.engine.prompt_ids import PaddedIds
from vlmtasks.engine.token_choice import (
    TokenConstraint,
    TokenLimits,
    allowed_ids,
    require_finite,
    restrict,
    token_logprobs,
)


@dataclass
class _Beam:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    total: float = 0.0

    def extended(self, token: int, logprob: float) -> "_Beam":
        return _Beam([*self.tokens, token], [*self.logprobs, logprob], self.total + logprob)


@torch.inference_mode()
def beam_search(
    network: Network,
    prompt: PaddedIds,
    image_tokens: Tensor,
    options: DecodingOptions,
    limits: TokenLimits,
    constraint: TokenConstraint | None = None,
) -> Answer:
    """The best answer to one prompt, ids (1, P).

    At each step every live beam may end; the others are the num_beams best continuations. Since
    Σ logprob only falls, the search stops once no live beam is above the best finished one. A
    finished answer is preferred to a cut one.
    """
    prefill = run_prefill(network, prompt, [image_tokens], options.max_new_tokens)
    hidden, cache, position = prefill.hidden, prefill.cache, prefill.next_positions
    live = [_Beam()]
    finished: _Beam | None = None
    for step in range(1, options.max_new_tokens + 1):
        ending, candidates = _expand(network, hidden, live, options, limits, constraint, step)
        if ending is not None and (finished is None or ending.total > finished.total):
            finished = ending
        live = [beam for _, beam in candidates]
        stop = finished is not None and (not live or finished.total >= live[0].total)
        if stop or not live or step == options.max_new_tokens:
            break
        cache.select(torch.tensor([parent for parent, _ in candidates], device=hidden.device))
        ids = torch.tensor([beam.tokens[-1] for beam in live], device=hidden.device)
        hidden = network.decode(ids, (position + step - 1).expand(len(live)), cache)
        require_finite(hidden, f"decoder, new token {step + 1}")
    if finished is not None:
        return Answer(finished.tokens[:-1], finished.logprobs[:-1], finished.total, "stop")
    return Answer(live[0].tokens, live[0].logprobs, live[0].total, "length")


def _expand(
    network: Network,
    hidden: Tensor,
    live: list[_Beam],
    options: DecodingOptions,
    limits: TokenLimits,
    constraint: TokenConstraint | None,
    step: int,
) -> tuple[_Beam | None, list[tuple[int, _Beam]]]:
    """The best way to end now, and the best (parent, beam) that go on, best first."""
    allowed = [allowed_ids(constraint, beam.tokens) for beam in live]
    logprobs = token_logprobs(network, hidden, None, f"new token {step}")
    scores = restrict(logprobs, allowed, None, limits)  # (beams, V)
    totals = scores + torch.tensor([[b.total] for b in live], device=scores.device)
    width = scores.shape[1]
    stops = torch.zeros(width, dtype=torch.bool, device=scores.device)
    stops[[i for i in limits.stop_ids if i < width]] = True

    def best(totals: Tensor, count: int) -> list[tuple[int, _Beam]]:
        values, places = totals.flatten().topk(min(count, totals.numel()))
        found = []
        for value, place in zip(values.tolist(), places.tolist(), strict=True):
            if value > -math.inf:
                parent, token = divmod(place, width)
                found.append((parent, live[parent].extended(token, float(scores[parent, token]))))
        return found

    ending = best(totals.masked_fill(~stops, -math.inf), 1)
    going_on = best(totals.masked_fill(stops, -math.inf), options.num_beams)
    return (ending[0][1] if ending else None), going_on
