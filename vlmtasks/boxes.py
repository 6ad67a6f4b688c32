"""Boxes in pixels and as fractions of a picture; corners, width and height, overlap.

A box is (x0, y0, x1, y1) in pixels, x to the right and y downwards, edges and not pixel centres:
the whole picture is (0, 0, width, height). Arrays are (N, 4), float64 inside this file.
"""

import operator
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmtasks.errors import InputError
from vlmtasks.shorten import shorten

SizeWH = tuple[int, int]

MAX_SIDE = 2**31 - 1  # pixels


def check_image_size(image_size: Any) -> SizeWH:
    """Return (width, height) as two plain integers of at least 1.

    image_size: a pair of whole numbers in this order, or a PIL picture, whose size is taken; each
        side at most MAX_SIDE.
    Raises InputError for anything else; nothing is guessed from the values.
    """
    size = getattr(image_size, "size", image_size)
    pair = image_size if isinstance(image_size, np.ndarray) else size
    try:
        if isinstance(pair, Set | Mapping | bytes | bytearray):
            raise TypeError("no order")
        width, height = pair
        if isinstance(width, bool) or isinstance(height, bool):
            raise TypeError("bool")
        size_wh = operator.index(width), operator.index(height)
    except (TypeError, ValueError):
        raise InputError(
            f"image_size is {shorten(image_size)}; it must be (width, height), two whole numbers "
            "of at least 1; pass picture.size of a PIL image, or (array.shape[1], array.shape[0])"
        ) from None
    if min(size_wh) < 1:
        raise InputError(f"image_size is {shorten(size_wh)}; both sides must be at least 1 pixel")
    if max(size_wh) > MAX_SIDE:
        raise InputError(
            f"image_size is {shorten(size_wh)}; width and height are at most {MAX_SIDE} pixels"
        )
    return size_wh


def check_boxes(boxes: ArrayLike, *, name: str = "boxes_xyxy") -> NDArray[np.float64]:
    """Return boxes as a new (N, 4) float64 array; an empty sequence becomes (0, 4).

    Raises InputError for another shape, for words, and for NaN or infinity.
    """
    try:
        given = np.asarray(boxes)
        if given.size and given.dtype.kind not in "biufO":  # O: integers of more than 64 bits
            raise TypeError(f"dtype {given.dtype}")
        array = given.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last one: torch, with grad
        raise InputError(
            f"{name} is {shorten(boxes)}; it must be numbers of shape (N, 4)"
        ) from None
    if array.ndim in (1, 2) and len(array) == 0:
        array = array.reshape(0, 4)
    if array.ndim != 2 or array.shape[1] != 4:
        raise InputError(f"{name} has the shape {array.shape}; it must be (N, 4), a row for a box")
    if not np.isfinite(array).all():
        raise InputError(f"{name} holds NaN or infinity; every coordinate must be a finite number")
    return array


def xyxy_to_xywh(boxes_xyxy: ArrayLike) -> NDArray[np.float64]:
    """Corners (x0, y0, x1, y1) to COCO's (x, y, width, height). Inverse of `xywh_to_xyxy`."""
    boxes = check_boxes(boxes_xyxy)
    with np.errstate(over="ignore"):
        boxes[:, 2:] -= boxes[:, :2]
    return check_boxes(boxes)


def xywh_to_xyxy(boxes_xywh: ArrayLike) -> NDArray[np.float64]:
    """COCO's (x, y, width, height) to corners (x0, y0, x1, y1). Inverse of `xyxy_to_xywh`."""
    boxes = check_boxes(boxes_xywh, name="boxes_xywh")
    with np.errstate(over="ignore"):
        boxes[:, 2:] += boxes[:, :2]
    return check_boxes(boxes, name="boxes_xywh")


def pixels_to_norm(boxes_xyxy: ArrayLike, image_size: SizeWH) -> NDArray[np.float64]:
    """Pixels to fractions of width and height, 0..1 inside. Inverse of `norm_to_pixels`."""
    return check_boxes(boxes_xyxy) / _divisor(image_size)


def norm_to_pixels(boxes_norm: ArrayLike, image_size: SizeWH) -> NDArray[np.float64]:
    """Fractions of width and height to pixels. Inverse of `pixels_to_norm`."""
    return check_boxes(boxes_norm, name="boxes_norm") * _divisor(image_size)


def clip_boxes(boxes_xyxy: ArrayLike, image_size: SizeWH) -> NDArray[np.float64]:
    """Move every corner to the nearest point of the picture."""
    return np.clip(check_boxes(boxes_xyxy), 0.0, _divisor(image_size))


def box_areas(boxes_xyxy: ArrayLike) -> NDArray[np.float64]:
    """Areas in square pixels, (N,); a box with a reversed side has the area 0."""
    boxes = check_boxes(boxes_xyxy)
    with np.errstate(over="ignore"):  # boxes of 1e155 pixels and more have an infinite area
        return np.prod(np.clip(boxes[:, 2:] - boxes[:, :2], 0.0, None), axis=1)


def box_iou(boxes_a_xyxy: ArrayLike, boxes_b_xyxy: ArrayLike) -> NDArray[np.float64]:
    """Intersection over union of every pair, (N, M), 0..1; 0 where both boxes are empty."""
    a, b = check_boxes(boxes_a_xyxy), check_boxes(boxes_b_xyxy)
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    with np.errstate(over="ignore", invalid="ignore"):  # infinite areas have no overlap
        shared = np.prod(np.clip(high - low, 0.0, None), axis=2)
        union = box_areas(a)[:, None] + box_areas(b)[None, :] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def _divisor(image_size: SizeWH) -> NDArray[np.float64]:
    width, height = check_image_size(image_size)
    return np.array([width, height, width, height], dtype=np.float64)
