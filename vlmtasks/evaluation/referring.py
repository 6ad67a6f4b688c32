"""Referring segmentation (RefCOCO, RefCOCO+, RefCOCOg) by the rules of big_vision's evaluator.

An answer counts if its very first tokens are 4 locations and 16 codes with y2 > y1 and x2 > x1;
nothing behind them is read. Anything else is invalid, and its overlaps are 0. Overlaps of masks
are computed at the size of the picture, those of boxes in fractions of it.

    mIoU    mean over the examples of the masks' intersection over union (the published figure)
    gIoU    the same, but an example without any truth counts 1 when nothing is predicted (GRES)
    cIoU    all intersections over all unions: large objects weigh more
    box accuracy at 0.5 and 0.75   share of boxes that overlap the true box at least so much
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vlmtasks.boxes import box_iou
from vlmtasks.errors import InputError
from vlmtasks.masks import paste_mask
from vlmtasks.tokens import MASK_CODES, SEG_CODES

BIG_VISION_SCALE = 1023
_DECODED_TOGETHER = 64

_ANSWER = re.compile(r"((?:<loc[0-9]{4}>){4})((?:<seg[0-9]{3}>){16})")
_NUMBER = re.compile("[0-9]+")


class MaskDecoder(Protocol):
    """Turns (N, 16) codes into (N, 64, 64) maps, foreground above 0; `vqvae.MaskCodec` is one."""

    def decode(self, codes: NDArray[np.int64], /) -> NDArray[np.float32]:
        """The maps of the codes."""
        ...


@dataclass(frozen=True, eq=False)
class ReferringTruth:
    """What a phrase refers to: an (H, W) bool mask and the box (x0, y0, x1, y1) in pixels."""

    mask: NDArray[np.bool_]
    box_xyxy: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class ReferringScore:
    """Figures over all examples, 0..1; see the head of this file."""

    miou: float
    ciou: float
    giou: float
    box_accuracy_50: float
    box_accuracy_75: float
    invalid: int
    total: int


def score_referring(
    answers: Sequence[str],
    truths: Iterable[ReferringTruth],
    codec: MaskDecoder,
    *,
    scale: int = BIG_VISION_SCALE,
) -> ReferringScore:
    """Score one answer text for each truth, in the same order.

    truths: may be a generator, so that the masks of a whole data set need not be in memory.
    scale: 1023 as in big_vision; 1024 for models that learnt that scale.
    InputError: no answers, or not as many as truths.
    """
    if not answers:
        raise InputError("no answers were given; a score needs at least one")
    read = [read_answer(answer) for answer in answers]
    maps = _decode_all([codes for _, codes in filter(None, read)], codec)
    counted = [
        _score_one(entry, maps, truth, scale) for entry, truth in zip(read, truths, strict=True)
    ]
    overlap = [shared / union if union else 0.0 for shared, union, _, _ in counted]
    generous = [shared / union if union else 1.0 for shared, union, _, _ in counted]
    all_shared, all_unions = sum(one[0] for one in counted), sum(one[1] for one in counted)
    count = len(counted)
    return ReferringScore(
        miou=sum(overlap) / count,
        ciou=all_shared / all_unions if all_unions else 0.0,
        giou=sum(generous) / count,
        box_accuracy_50=sum(box >= 0.5 for _, _, box, _ in counted) / count,
        box_accuracy_75=sum(box >= 0.75 for _, _, box, _ in counted) / count,
        invalid=sum(not valid for _, _, _, valid in counted),
        total=count,
    )


def read_answer(text: str) -> tuple[tuple[int, int, int, int], list[int]] | None:
    """((y1, x1, y2, x2), 16 codes) when the text starts with them; None for an invalid answer."""
    found = _ANSWER.match(text)
    if found is None:
        return None
    y1, x1, y2, x2 = (int(number) for number in _NUMBER.findall(found[1]))
    codes = [int(number) for number in _NUMBER.findall(found[2])]
    if max(y1, x1, y2, x2) > 1023 or max(codes) >= SEG_CODES or y2 <= y1 or x2 <= x1:
        return None
    return (y1, x1, y2, x2), codes


def _decode_all(codes: list[list[int]], codec: MaskDecoder) -> Iterable[NDArray[np.float32]]:
    """The maps of all valid answers, a few at a time."""
    for start in range(0, len(codes), _DECODED_TOGETHER):
        together = np.array(codes[start : start + _DECODED_TOGETHER], np.int64)
        yield from codec.decode(together.reshape(-1, MASK_CODES))


def _score_one(
    answer: tuple[tuple[int, int, int, int], list[int]] | None,
    maps: Iterable[NDArray[np.float32]],
    truth: ReferringTruth,
    scale: int,
) -> tuple[int, int, float, bool]:
    """(pixels in both masks, pixels in either, overlap of the boxes, valid) of one example."""
    wanted = int(truth.mask.sum())
    if answer is None:
        return 0, wanted, 0.0, False
    height, width = truth.mask.shape
    values = next(iter(maps))
    # Divided first, then multiplied, as big_vision does: truncation can tell the difference.
    y1, x1, y2, x2 = (number / scale for number in answer[0])
    box_overlap = box_iou(
        [(x1, y1, x2, y2)], np.array([truth.box_xyxy]) / (width, height, width, height)
    )
    box_xyxy = x1 * width, y1 * height, x2 * width, y2 * height
    pixels_xyxy = [int(edge) for edge in box_xyxy]  # truncated, as big_vision does
    valid = pixels_xyxy[2] > pixels_xyxy[0] and pixels_xyxy[3] > pixels_xyxy[1]
    mask = paste_mask(values, pixels_xyxy, (width, height))
    shared = int((mask & truth.mask).sum())
    return shared, wanted + int(mask.sum()) - shared, float(box_overlap[0, 0]), valid
