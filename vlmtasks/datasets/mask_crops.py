"""From a mask of the whole picture to a box in bins and the 64×64 map inside it.

What a map can say depends on which pixels it stands for: those over which `masks.py` pastes the
map of the decoded box. So the crop is taken from exactly these pixels, and `mask_bins` chooses bins
whose pixels are those of the mask: nothing of it is cut off, nothing empty is added. Bins that are
only nearest to the box lose up to a pixel at each edge, which small objects feel (see
benchmarks/README.md).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vlmtasks.errors import InputError
from vlmtasks.masks import pixel_edges
from vlmtasks.tokens import BOX_SCALE, LOC_BINS, decode_box

MAP_SIDE = 64


def mask_bins(mask: NDArray[np.bool_], scale: int = BOX_SCALE) -> tuple[int, int, int, int]:
    """The bins (y_min, x_min, y_max, x_max) whose pixels just hold an (H, W) mask.

    Where no bin has the right pixel the nearest one does, a pixel too much rather than too little.
    That happens in pictures of more than 1023 pixels, and with scale 1024 at the right and lower
    border, which the last bin, 1023, does not reach. InputError: a mask without a pixel.
    """
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        raise InputError("the mask holds no pixel, so it has no box")
    height, width = mask.shape
    y_min, y_max = _bins(int(rows[0]), int(rows[-1]) + 1, height, scale)
    x_min, x_max = _bins(int(columns[0]), int(columns[-1]) + 1, width, scale)
    return y_min, x_min, y_max, x_max


def crop_mask(
    mask: NDArray[np.bool_], loc_yxyx: Sequence[int], scale: int = BOX_SCALE
) -> NDArray[np.float32]:
    """The part of an (H, W) mask inside a box of bins as a (64, 64) map of 0..1.

    Each cell is the share of it that the mask covers (bilinear with antialiasing, as big_vision).
    """
    height, width = mask.shape
    x0, y0, x1, y1 = pixel_edges(decode_box(loc_yxyx, (width, height), scale))
    if x1 <= x0 or y1 <= y0:  # thinner than a pixel: nothing will be pasted
        return np.zeros((MAP_SIDE, MAP_SIDE), np.float32)
    part = Image.fromarray(mask[y0:y1, x0:x1].astype(np.float32))
    return np.asarray(part.resize((MAP_SIDE, MAP_SIDE), Image.Resampling.BILINEAR))


def _bins(start: int, stop: int, side: int, scale: int) -> tuple[int, int]:
    """The bins of the pixels start:stop on a side of `side` pixels."""
    low = _bin_of_edge(start, side, scale, outward=-1)
    return low, max(_bin_of_edge(stop, side, scale, outward=1), low + 1)


def _bin_of_edge(edge: int, side: int, scale: int, *, outward: int) -> int:
    """The bin that is pasted at pixel `edge`, or else next to it, rather outside than inside."""
    exact = edge * scale / side
    last = LOC_BINS - 2 if outward < 0 else LOC_BINS - 1
    nearby = range(max(math.floor(exact) - 1, 0), min(math.ceil(exact) + 1, last) + 1)

    def cost(candidate: int) -> tuple[float, float]:
        at, _, _, _ = pixel_edges((candidate * side / scale, 0, 0, 0))
        miss = (at - edge) * outward
        return (miss if miss >= 0 else 2.5 * -miss), abs(candidate - exact)

    return min(nearby, key=cost, default=last)
