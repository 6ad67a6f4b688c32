"""One training example as tokens: what is learnt, and who may look at whom.

    tokens      <image>×N <bos> prompt newline | suffix <eos> | <pad>…
    labels      ignored, -100                  | themselves   | ignored
    token type  0                              | 1            | 0
    attention   1                              | 1            | 0

The prefix sees all of the prefix and nothing behind it; a suffix token sees the prefix and the
suffix up to itself; nobody sees padding.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlmtasks.errors import InputError

IGNORED = -100  # the label that torch's cross entropy leaves out


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """Four lists of the same length; see the head of this file."""

    input_ids: list[int]
    labels: list[int]
    token_types: list[int]
    attention: list[int]


def training_row(
    prefix_ids: Sequence[int],
    suffix_ids: Sequence[int],
    *,
    eos_id: int,
    pad_to: int | None = None,
    pad_id: int = 0,
) -> TrainingRow:
    """Lay out one example.

    prefix_ids: image tokens, <bos>, prompt and the newline. suffix_ids: the answer without <eos>,
    which is put behind it; may be empty, then only <eos> is learnt.
    InputError: what is no id, an empty prefix, an <eos> inside, or more tokens than `pad_to`.
    """
    prefix_ids = _check_ids(prefix_ids, "prefix_ids")
    suffix_ids = _check_ids(suffix_ids, "suffix_ids")
    eos_id, pad_id = _check_ids([eos_id, pad_id], "eos_id and pad_id")
    if pad_to is not None:
        (pad_to,) = _check_ids([pad_to], "pad_to")
    if not prefix_ids:
        raise InputError("prefix_ids is empty; it holds image tokens, <bos>, prompt and newline")
    if eos_id in prefix_ids or eos_id in suffix_ids:
        raise InputError(f"the ids hold <eos> ({eos_id}); it is put at the end by this function")
    length = len(prefix_ids) + len(suffix_ids) + 1
    if pad_to is not None and length > pad_to:
        raise InputError(
            f"the example has {length} tokens, but pad_to is {pad_to}; make it shorter"
        )
    learnt = [*suffix_ids, eos_id]
    padding = (pad_to or length) - length
    return TrainingRow(
        input_ids=[*prefix_ids, *learnt, *[pad_id] * padding],
        labels=[*[IGNORED] * len(prefix_ids), *learnt, *[IGNORED] * padding],
        token_types=[*[0] * len(prefix_ids), *[1] * len(learnt), *[0] * padding],
        attention=[*[1] * (length), *[0] * padding],
    )


def _check_ids(ids: Any, name: str) -> list[int]:
    try:
        checked = [operator.index(one) for one in ids]
    except TypeError:
        raise InputError(
            f"{name} is {ids!r:.80}; it must be whole numbers in a flat list"
        ) from None
    if min(checked, default=0) < 0:
        raise InputError(f"{name} holds {min(checked)}; ids are 0 or more")
    return checked


def visible(row: TrainingRow) -> list[list[bool]]:
    """Who sees whom: entry [q][k] is True where the token q may attend to the token k."""
    kinds = list(zip(row.token_types, row.attention, strict=True))
    return [
        [
            bool(q_real and k_real) and (k_type == 0 or (q_type == 1 and k <= q))
            for k, (k_type, k_real) in enumerate(kinds)
        ]
        for q, (q_type, q_real) in enumerate(kinds)
    ]
