"""COCO's run lengths of a mask: column by column, background first, size as [height, width].

Uncompressed, `counts` is a list of whole numbers; compressed, a str in which each number is
written in base 32 with the difference to the last but one (pycocotools, maskApi.c). pycocotools
itself believes what it is given and may crash on wrong counts, so they are checked here first.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from vlmtasks.boxes import SizeWH

Rle = dict[str, Any]  # {"size": [height, width], "counts": str}

MAX_PIXELS = 1 << 31  # pycocotools counts in 32 bits


def check_rle(value: Mapping[str, Any]) -> Rle:
    """Return a mask's run lengths in the compressed form, with `counts` as str.

    value: {"size": [height, width], "counts": list, str or bytes}.
    ValueError, with a message for the caller to put the place before: anything else, or counts that
    do not add up to height × width.
    """
    height, width = _check_size(value.get("size"))
    counts = value.get("counts")
    if isinstance(counts, bytes):
        counts = counts.decode("ascii", errors="replace")
    if isinstance(counts, list):
        runs = _check_runs(counts)
    elif isinstance(counts, str):
        runs = _decompress(counts)
    else:
        raise ValueError("counts must be a list of whole numbers or the compressed str")
    if (runs < 0).any() or int(runs.sum()) != height * width:
        raise ValueError(
            f"counts add up to {int(runs.sum())} pixels, but size [{height}, {width}] has "
            f"{height * width}; size is [height, width] and runs go down the columns"
        )
    if isinstance(counts, str):
        return {"size": [height, width], "counts": counts}
    rle = coco_mask.frPyObjects({"size": [height, width], "counts": counts}, height, width)  # type: ignore[arg-type]
    return {"size": [height, width], "counts": rle["counts"].decode("ascii")}


def encode_mask(mask: NDArray[Any]) -> Rle:
    """Run lengths of an (H, W) mask of any dtype and memory order; all but 0 is in it."""
    rle = coco_mask.encode(np.asfortranarray(np.asarray(mask) != 0, dtype=np.uint8))
    height, width = rle["size"]
    return {"size": [int(height), int(width)], "counts": rle["counts"].decode("ascii")}


def rle_area(rle: Rle) -> float:
    """The number of pixels of checked run lengths, without drawing them."""
    return float(coco_mask.area(rle))  # type: ignore[arg-type]


def decode_rle(rle: Rle) -> NDArray[np.bool_]:
    """The (H, W) mask of checked run lengths."""
    height, width = rle["size"]
    runs = _decompress(rle["counts"])
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T


def polygons_to_rle(polygons: list[list[float]], size_wh: SizeWH) -> dict[str, Any]:
    """Run lengths of polygons [x0, y0, x1, y1, …] as pycocotools draws them."""
    width, height = size_wh
    rle = coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))  # type: ignore[arg-type]
    return {"size": [height, width], "counts": rle["counts"].decode("ascii")}


def _check_size(size: object) -> tuple[int, int]:
    if (
        not isinstance(size, (list, tuple))
        or len(size) != 2
        or not all(isinstance(side, int) and not isinstance(side, bool) for side in size)
        or min(size) < 1
        or size[0] * size[1] >= MAX_PIXELS
    ):
        raise ValueError("size must be [height, width], two whole numbers of at least 1")
    return size[0], size[1]


def _check_runs(counts: list[Any]) -> NDArray[np.int64]:
    if not all(
        isinstance(run, int) and not isinstance(run, bool) and 0 <= run < MAX_PIXELS
        for run in counts
    ):
        raise ValueError("counts must be whole numbers of at least 0")
    return np.array(counts, dtype=np.int64)


def _decompress(counts: str) -> NDArray[np.int64]:
    """The run lengths that a compressed string spells."""
    try:
        digits = np.frombuffer(counts.encode("ascii"), dtype=np.uint8).astype(np.int64) - 48
    except UnicodeEncodeError:
        raise ValueError("counts holds characters that are no run lengths") from None
    if len(digits) == 0:
        return digits
    if (digits < 0).any() or (digits > 63).any() or digits[-1] & 32:
        raise ValueError("counts is cut or holds characters that are no run lengths")
    ends = np.flatnonzero((digits & 32) == 0)  # the last digit of each number
    starts = np.concatenate(([0], ends[:-1] + 1))
    if (ends - starts).max() > 6:
        raise ValueError("counts holds a run that is longer than any picture")
    place = np.arange(len(digits)) - np.repeat(starts, ends - starts + 1)
    numbers = np.add.reduceat((digits & 31) << (5 * place), starts)
    negative = (digits[ends] & 16) != 0
    numbers -= np.where(negative, np.int64(1) << (5 * (ends - starts + 1)), 0)
    runs = numbers.copy()  # from the fourth on, a number is the difference to the last but one
    runs[1::2] = numbers[1::2].cumsum()
    runs[2::2] = numbers[2::2].cumsum()
    return runs
