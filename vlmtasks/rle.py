"""COCO's run lengths of a mask.

Pixels are counted column by column, background first; the size is [height, width]. The compressed
form is a str: each number in groups of 5 bits (+48 as a character; bit 5: more groups follow; bit 4
of the last group: negative), from the fourth number on as the difference to the one before last.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pycocotools import mask as _coco_mask

from vlmtasks.errors import InputError
from vlmtasks.plain_numbers import whole_number
from vlmtasks.shorten import shorten

coco_mask: Any = _coco_mask  # its annotations are wrong about bytes

MAX_PIXELS = 2**31 - 1  # pycocotools counts in 32 bits


class RLE(TypedDict):
    """Compressed run lengths: size [height, width], counts in ASCII."""

    size: list[int]
    counts: str


def encode_rle(mask: ArrayLike) -> RLE:
    """Pixels (H, W) → COCO run lengths. Any number type and memory order; foreground above 0."""
    try:
        array = np.asarray(mask)
    except ValueError:
        raise InputError("a mask has rows of unequal length; it must be (H, W)") from None
    except RuntimeError as error:  # torch, with gradients
        raise InputError(f"a mask is no array of numbers: {error}; detach it first") from None
    if array.ndim != 2 or array.size == 0 or array.dtype.kind not in "biuf":
        raise InputError(
            f"a mask has the shape {array.shape} and the dtype {array.dtype}; it must be numbers "
            "of shape (H, W) with at least one pixel"
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InputError("a mask holds NaN; its pixels must be numbers, foreground above 0")
    height, width = array.shape
    return pack_runs(column_runs(np.asfortranarray(array > 0), 0, array.size), height, width)


def decode_rle(rle: Mapping[str, Any]) -> NDArray[np.bool_]:
    """COCO run lengths, compressed or not → pixels (H, W)."""
    checked = check_rle(rle)
    height, width = checked["size"]
    runs = rle_counts(checked)  # pycocotools' own decoder warns of its use of NumPy 2
    pixels = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height)
    return np.ascontiguousarray(pixels.T)


def rle_area(rle: RLE) -> int:
    """Foreground pixels."""
    return sum(rle_counts(rle)[1::2])


def rle_counts(rle: RLE) -> list[int]:
    """The run lengths as numbers: background, foreground, background, …, column by column."""
    counts: list[int] = []
    value = shift = 0
    for character in rle["counts"]:
        group = ord(character) - 48
        if not 0 <= group < 64 or shift > 30:
            raise InputError(f"mask counts {rle['counts'][:40]!r} are no COCO run lengths")
        value |= (group & 31) << shift
        shift += 5
        if group & 32:
            continue
        if group & 16:
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    if shift:
        raise InputError(f"mask counts {rle['counts'][:40]!r} are cut off")
    return counts


def check_rle(rle: Mapping[str, Any]) -> RLE:
    """Return run lengths in the compressed form with counts as str, or raise InputError.

    Counts may be a str, ASCII bytes or a list of numbers. They are read here, because pycocotools
    trusts them and would write outside of its memory.
    """
    try:
        height, width = (whole_number(side) for side in rle["size"])
        counts = rle["counts"]
        if isinstance(counts, bytes | bytearray):
            counts = counts.decode("ascii")
        if isinstance(counts, str):
            runs = rle_counts({"size": [height, width], "counts": counts})
        else:
            runs = [whole_number(run) for run in counts]
    except (TypeError, ValueError, LookupError) as error:  # IndexError: an array
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"a mask is {shorten(rle)}; it must be COCO run lengths: {{'size': [height, width], "
            "'counts': str or list of numbers}, all of them whole numbers"
        ) from None
    if min(height, width) < 1 or height * width > MAX_PIXELS or min(runs, default=0) < 0:
        raise InputError(
            f"a mask has the size {shorten([height, width])} and a run of "
            f"{shorten(min(runs, default=0))} pixels; sides are 1 or more, runs 0 or more, and a "
            "mask has less than 2³¹ pixels"
        )
    if sum(runs) != height * width:
        raise InputError(
            f"a mask of size {[height, width]} has run lengths of {shorten(sum(runs))} pixels in "
            f"total; they must add up to {height * width}"
        )
    return pack_runs(_without_empty(runs), height, width)


def column_runs(columns: NDArray[np.bool_], before: int, total: int) -> list[int]:
    """Run lengths of columns (Fortran order) behind `before` empty pixels, of `total` pixels."""
    flat = columns.ravel(order="F")
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    if flat.size and flat[0]:
        edges = np.append(0, edges)
    if flat.size and flat[-1]:
        edges = np.append(edges, flat.size)
    runs = np.diff(edges + before, prepend=0, append=total).tolist()
    return runs if runs[-1] else runs[:-1]


def pack_runs(runs: list[int], height: int, width: int) -> RLE:
    """Run lengths as numbers → the compressed form."""
    size = [height, width]
    if height * width > MAX_PIXELS:
        raise InputError(f"a mask has the size {size}; run lengths count less than 2³¹ pixels")
    packed = coco_mask.frPyObjects({"size": size, "counts": runs}, height, width)
    return {"size": size, "counts": packed["counts"].decode("ascii")}


def _without_empty(runs: list[int]) -> list[int]:
    """The same pixels without runs of 0 pixels, but for the first: one spelling for every mask."""
    kept = runs[:1]
    is_joined = False
    for run in runs[1:]:
        if run == 0:
            is_joined = not is_joined
        elif is_joined:
            kept[-1] += run
            is_joined = False
        else:
            kept.append(run)
    return kept
