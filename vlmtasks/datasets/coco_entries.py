"""Checks of single values in COCO files; each raises ValueError without the place of the entry."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vlmtasks.boxes import SizeWH
from vlmtasks.datasets.coco import BoxXYWH, ImageId, Segmentation
from vlmtasks.datasets.json_files import read_json
from vlmtasks.datasets.problems import is_finite_number
from vlmtasks.plain_numbers import plain_number
from vlmtasks.rle import check_rle
from vlmtasks.shorten import shorten

MAX_BOX = 1e9  # pixels; areas and overlaps of such boxes are still exact
MAX_COORDINATE = 100_000  # pixels; pycocotools walks along every edge of a polygon


def load_json(source: Any) -> tuple[Any, str]:
    """The value of a JSON file and its name, or a value that was handed in as it is."""
    if isinstance(source, (str, os.PathLike)):
        return read_json(source), Path(source).name
    return source, "data set"


def describe(value: object) -> str:
    """What a JSON value is, for a message."""
    if isinstance(value, Mapping):
        return f"an object with {', '.join(map(repr, list(value)[:6])) or 'no fields'}"
    return f"a list of {len(value)}" if isinstance(value, list) else shorten(value)


def check_mapping(entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise ValueError(f"is {shorten(entry)}; it must be an object")
    return entry


def check_image_id(value: Any, key: str) -> ImageId:
    return value if isinstance(value, str) and value else check_whole(value, key)


def check_whole(value: Any, key: str) -> int:
    """An int of 64 bits, also from 7.0, which tools write that keep ids as floats."""
    if is_finite_number(value) and float(value).is_integer():
        number = plain_number(value)
        limit = 1 << 63 if isinstance(number, int) else 1 << 53  # floats are exact up to 53 bits
        if abs(number) < limit:
            return int(number)
    raise ValueError(f"{key} is {shorten(value)}; it must be a whole number")


def check_bbox(value: Any) -> BoxXYWH:
    value = _plain_list(value)
    if not isinstance(value, list | tuple) or len(value) != 4:
        raise ValueError(f"bbox is {shorten(value)}; it must be [x, y, width, height]")
    if not all(is_finite_number(number) for number in value):
        raise ValueError(f"bbox is {shorten(value)}; its four values must be finite numbers")
    x, y, width, height = (float(number) for number in value)
    if max(abs(x), abs(y), abs(width), abs(height)) > MAX_BOX:
        raise ValueError(f"bbox is {shorten(value)}; its four values must be pixels")
    if width < 0 or height < 0:
        raise ValueError(
            f"bbox is {shorten(value)}; it must be [x, y, width, height] with sides of at least 0"
        )
    return x, y, width, height


def _plain_list(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def check_polygon(value: Any) -> list[float]:
    value = _plain_list(value)
    if isinstance(value, list) and any(isinstance(number, list) for number in value):
        raise ValueError(
            f"segmentation holds {shorten(value)}, a list of points; a polygon is one flat list: "
            "[x0, y0, x1, y1, …]"
        )
    if not isinstance(value, list) or len(value) % 2:
        raise ValueError(f"segmentation holds {shorten(value)}; a polygon is [x0, y0, x1, y1, …]")
    numbers = [float(number) if is_finite_number(number) else math.nan for number in value]
    if not all(abs(number) <= MAX_COORDINATE for number in numbers):
        raise ValueError(f"segmentation holds {shorten(value)}; its values must be pixels")
    return numbers


def check_segmentation(value: Any, size_wh: SizeWH | None) -> tuple[Segmentation | None, int]:
    """A mask as polygons or checked run lengths, and how many too short polygons were left out."""
    if value is None or value == []:
        return None, 0
    if isinstance(value, Mapping):
        rle = check_rle(value)
        if size_wh and tuple(rle["size"]) != size_wh[::-1]:
            raise ValueError(
                f"segmentation has the size {rle['size']} ([height, width]), but the picture has "
                f"the size {size_wh} (width, height)"
            )
        return rle, 0
    if not isinstance(value, list):
        raise ValueError(f"segmentation is {shorten(value)}; it must be polygons or run lengths")
    if is_finite_number(value[0]):
        raise ValueError(
            f"segmentation is {shorten(value)}, a flat list; put the polygon into one: "
            "[[x0, y0, x1, y1, …]]"
        )
    polygons = [check_polygon(polygon) for polygon in value]
    if len(polygons) > 2 and all(len(polygon) == 2 for polygon in polygons):
        raise ValueError(
            f"segmentation is {shorten(value)}, a list of points; it must be a list of polygons, "
            "each one flat list: [[x0, y0, x1, y1, …]]"
        )
    kept = [polygon for polygon in polygons if len(polygon) >= 6]
    return kept or None, len(polygons) - len(kept)
