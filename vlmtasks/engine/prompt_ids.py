"""The ids of a prompt: image tokens, <bos>, prefix, newline (facts: one <bos>, one newline).

The four parts are encoded apart and joined, as big_vision does, so that neither the settings of a
tokenizer file nor the text of a user can change the layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlmtasks.engine.tokenizer import Tokenizer
from vlmtasks.errors import PromptError


def prompt_ids(
    tokenizer: Tokenizer,
    prefix: str,
    image_tokens: int,
    image_token_index: int,
    *,
    location_tokens: bool = False,
) -> list[int]:
    """[image] · `image_tokens`, <bos>, prefix without its trailing newlines, newline."""
    if not isinstance(prefix, str):
        raise PromptError(f"a prompt must be a string, not {prefix!r}")
    try:
        prefix.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(f"the prompt {prefix!r} holds half a character: {error}") from error
    text = tokenizer.encode(prefix.rstrip("\r\n"), location_tokens=location_tokens)
    return [image_token_index] * image_tokens + [tokenizer.bos_id, *text, tokenizer.newline_id]


def check_length(image_tokens: int, prompt_tokens: int, max_new_tokens: int, limit: int) -> None:
    """Raises PromptError when image, prompt and answer together exceed the model's context.

    prompt_tokens counts <bos>, prefix and newline, without the image tokens.
    """
    total = image_tokens + prompt_tokens + max_new_tokens
    if total > limit:
        raise PromptError(
            f"{image_tokens} image tokens + {prompt_tokens} prompt tokens + {max_new_tokens} new "
            f"tokens = {total} exceed the {limit} positions of this model; "
            "shorten the prompt, pass fewer pictures or lower max_new_tokens"
        )


@dataclass(frozen=True)
class PaddedIds:
    """Prompts of different length in one tensor. ids: (B, P) int64; valid: (B, P) bool."""

    ids: Tensor
    valid: Tensor


def pad_ids(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str, side: str = "right"
) -> PaddedIds:
    """Pads on the "right" or "left"; the network gives the same result for both."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    valid = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, row in enumerate(rows):
        where = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[index, where] = torch.tensor(row)
        valid[index, where] = True
    return PaddedIds(ids.to(device), valid.to(device))
