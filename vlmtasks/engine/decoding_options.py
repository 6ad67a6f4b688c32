"""How tokens are chosen: the arguments of `Engine.generate` and what they may be."""

from dataclasses import dataclass, fields

from vlmtasks.errors import InputError
from vlmtasks.plain_numbers import plain_number

MAX_TEMPERATURE = 1e6  # all tokens are as likely as each other long before
MAX_TOP = 1024
MAX_ROWS = 1000  # copies of a prompt in memory at the same time


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
        those rows, or to what the constraint names (`token_choice.ComparingConstraint`). Greedy
        tokens are the same.
    top_logprobs: also report this many of the likeliest ids of each step, 0..MAX_TOP.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    best_of: int = 1
    num_beams: int = 1
    raw_logprobs: bool = True
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, plain_number(getattr(self, field.name)))
        for name in ("max_new_tokens", "best_of", "num_beams"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be an integer of at least 1, not {value!r}")
            if value > MAX_ROWS and name != "max_new_tokens":  # which the context limits
                raise InputError(f"{name} must be at most {MAX_ROWS}, not {value!r:.80}")
        if not _is_real(self.temperature) or not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise InputError(f"temperature must be a number from 0, not {self.temperature!r:.80}")
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
        top = self.top_logprobs
        if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= MAX_TOP:
            raise InputError(f"top_logprobs must be an integer of 0..{MAX_TOP}, not {top!r:.80}")
        if self.num_beams > 1 and top:
            raise InputError("beam search reports no top_logprobs; leave out one of the two")


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
