"""Instances and captions files of COCO, read with every mistake at its entry and line.

What does no harm is repaired and told in one DatasetWarning: missing `area`, `iscrowd`, `id` or
`bbox`, empty segmentations, doubled annotation ids. What does harm is listed in one DatasetError:
boxes that are no boxes, annotations of unknown pictures or categories, run lengths that do not fit
their picture.
"""

import os
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from vlmtasks.datasets.coco import (
    BoxXYWH,
    CocoAnnotation,
    CocoDataset,
    CocoImage,
    ImageId,
    Segmentation,
    polygons_to_rle,
)
from vlmtasks.datasets.coco_entries import (
    check_bbox,
    check_image_id,
    check_mapping,
    check_segmentation,
    check_whole,
    describe,
    load_json,
)
from vlmtasks.datasets.json_files import line_of_entry
from vlmtasks.datasets.problems import DatasetWarning, Problems, is_finite_number
from vlmtasks.errors import DatasetError
from vlmtasks.rle import coco_mask, rle_area
from vlmtasks.shorten import shorten

MAX_PIXELS = 1 << 31  # pycocotools counts in 32 bits


def read_coco(source: str | os.PathLike[str] | Mapping[str, Any]) -> CocoDataset:
    """Read an instances or captions file (or its dict).

    DatasetError: see the head of this file. DatasetWarning: what was filled in or left out.
    """
    value, name = load_json(source)
    if isinstance(value, list):
        raise DatasetError(
            f"{name}: holds a list, as a file of results does; the ground truth must be an object "
            'with "images" and "annotations"; were the two exchanged?'
        )
    if not isinstance(value, Mapping) or not isinstance(value.get("images"), list):
        raise DatasetError(
            f'{name}: must be an object with the lists "images" and "annotations" and, for boxes, '
            f'"categories"; it holds {describe(value)}'
        )
    reader = _Reader(source, name)
    images = reader.images(value["images"])
    categories = reader.categories(value.get("categories"))
    annotations = reader.annotations(value.get("annotations"), images, categories)
    reader.problems.raise_if_any()
    repairs = reader.repairs()
    if repairs:
        warnings.warn(f"{name}: {'; '.join(repairs)}", DatasetWarning, stacklevel=2)
    return CocoDataset(images, annotations, categories, name, repairs)


# --- reading, entry by entry ---------------------------------------------------------------------


class _Reader:
    """Checks the entries of one file; `problems` and the counts of repairs grow as it goes."""

    def __init__(self, source: object, name: str) -> None:
        self.problems = Problems()
        self._path = source if isinstance(source, (str, os.PathLike)) else None
        self._name = name
        self._repaired: Counter[str] = Counter()

    def repairs(self) -> tuple[str, ...]:
        return tuple(f"{count} {what}" for what, count in self._repaired.items())

    def images(self, entries: list[Any]) -> dict[ImageId, CocoImage]:
        images: dict[ImageId, CocoImage] = {}
        for index, entry in enumerate(entries):
            try:
                image = _read_image(check_mapping(entry))
                if image.id in images:
                    raise ValueError(f"id {image.id!r} is used by an earlier picture")
                images[image.id] = image
            except ValueError as error:
                self._complain("images", index, error)
        return images

    def categories(self, entries: Any) -> dict[int, str]:
        categories: dict[int, str] = {}
        for index, entry in enumerate(_entries(entries, "categories", self)):
            try:
                category = check_mapping(entry)
                key = check_whole(category.get("id"), "id")
                name = category.get("name")
                if not isinstance(name, str) or not name.strip():
                    raise ValueError(f"name is {shorten(name)}; it must be a str with letters")
                if key in categories:
                    raise ValueError(f"id {key} is used by an earlier category")
                categories[key] = name.strip()
            except ValueError as error:
                self._complain("categories", index, error)
        return categories

    def annotations(
        self, entries: Any, images: dict[ImageId, CocoImage], categories: dict[int, str]
    ) -> tuple[CocoAnnotation, ...]:
        annotations = []
        for index, entry in enumerate(_entries(entries, "annotations", self)):
            try:
                annotations.append(self._annotation(check_mapping(entry), images, categories))
            except ValueError as error:
                self._complain("annotations", index, error)
        return self._with_own_ids(annotations)

    def _annotation(
        self, entry: Mapping[str, Any], images: dict[ImageId, CocoImage], categories: dict[int, str]
    ) -> CocoAnnotation:
        number = self._annotation_id(entry.get("id"))
        image_id = check_image_id(entry.get("image_id"), "image_id")
        if image_id not in images:
            raise ValueError(f"image_id is {image_id!r}, and no picture has this id")
        if "caption" in entry and "category_id" not in entry:
            if not isinstance(entry["caption"], str):
                raise ValueError(f"caption is {shorten(entry['caption'])}; it must be a str")
            return CocoAnnotation(number, image_id, caption=entry["caption"])
        category_id = check_whole(entry.get("category_id"), "category_id")
        if category_id not in categories:
            raise ValueError(f"category_id is {category_id}, and no category has this id")
        image = images[image_id]
        segmentation, short = check_segmentation(entry.get("segmentation"), image.size_wh)
        if short:
            self._repaired["polygons of fewer than three points (left out)"] += short
        bbox = self._bbox(entry.get("bbox"), segmentation, image)
        is_crowd = self._is_crowd(entry)
        area = self._area(entry.get("area"), segmentation, bbox, image)
        return CocoAnnotation(number, image_id, category_id, bbox, area, is_crowd, segmentation)

    def _annotation_id(self, value: Any) -> int:
        if value is None:
            self._repaired["annotations without id (numbered)"] += 1
            return -1
        return check_whole(value, "id")

    def _with_own_ids(self, annotations: list[CocoAnnotation]) -> tuple[CocoAnnotation, ...]:
        doubled = len(annotations) - len({entry.id for entry in annotations})
        if not doubled and all(entry.id >= 0 for entry in annotations):
            return tuple(annotations)
        if doubled and "annotations without id (numbered)" not in self._repaired:
            self._repaired["annotations with the id of another (all numbered anew)"] = doubled
        return tuple(replace(entry, id=number) for number, entry in enumerate(annotations, 1))

    def _bbox(self, value: Any, segmentation: Segmentation | None, image: CocoImage) -> BoxXYWH:
        if value is not None:
            return check_bbox(value)
        if segmentation is None:
            raise ValueError("has neither bbox nor segmentation; one of them is needed")
        self._repaired["annotations without bbox (taken from the mask)"] += 1
        if isinstance(segmentation, list):
            xs = [x for polygon in segmentation for x in polygon[0::2]]
            ys = [y for polygon in segmentation for y in polygon[1::2]]
            return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)
        x, y, width, height = coco_mask.toBbox(segmentation).tolist()
        return x, y, width, height

    def _is_crowd(self, entry: Mapping[str, Any]) -> bool:
        if entry.get("iscrowd") is None:
            self._repaired["annotations without iscrowd (taken as 0)"] += 1
            return False
        if entry["iscrowd"] not in (0, 1):
            raise ValueError(f"iscrowd is {shorten(entry['iscrowd'])}; it must be 0 or 1")
        return bool(entry["iscrowd"])

    def _area(
        self, value: Any, segmentation: Segmentation | None, bbox: BoxXYWH, image: CocoImage
    ) -> float:
        if value is not None:
            if not is_finite_number(value) or value < 0:
                raise ValueError(f"area is {shorten(value)}; it must be a number of at least 0")
            return float(value)
        if isinstance(segmentation, dict):
            self._repaired["annotations without area (taken from the mask)"] += 1
            return float(rle_area(segmentation))
        if segmentation and image.size_wh:
            self._repaired["annotations without area (taken from the mask)"] += 1
            return float(rle_area(polygons_to_rle(segmentation, image.size_wh)))
        self._repaired["annotations without area (taken as width × height)"] += 1
        return bbox[2] * bbox[3]

    def _complain(self, key: str, index: int, error: ValueError) -> None:
        self.problems.add(partial(self._place, key, index), str(error))

    def _place(self, key: str, index: int) -> str:
        line = line_of_entry(self._path, key, index) if self._path is not None else None
        return (
            f"{self._name}, line {line}, {key}[{index}]"
            if line
            else f"{self._name}, {key}[{index}]"
        )

    def complain_of_list(self, key: str, value: object) -> None:
        self.problems.add(self._name, f'"{key}" is {shorten(value)}; it must be a list')


def _entries(value: Any, key: str, reader: _Reader) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        reader.complain_of_list(key, value)
        return []
    return value


def _read_image(entry: Mapping[str, Any]) -> CocoImage:
    image_id = check_image_id(entry.get("id"), "id")
    file_name = entry.get("file_name")
    if not isinstance(file_name, str) or not file_name:
        raise ValueError(f"file_name is {shorten(file_name)}; it must be the name of a file")
    width, height = entry.get("width"), entry.get("height")
    if width is None and height is None:
        return CocoImage(image_id, file_name, None)
    size_wh = check_whole(width, "width"), check_whole(height, "height")
    if min(size_wh) < 1 or size_wh[0] * size_wh[1] >= MAX_PIXELS:
        raise ValueError(f"width and height are {size_wh}; they must be those of a picture")
    return CocoImage(image_id, file_name, size_wh)
