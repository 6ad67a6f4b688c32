"""COCO results: [{"image_id", "category_id", "bbox" and/or "segmentation", "score"}, …]."""

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from vlmtasks.datasets.coco import CocoDataset, polygons_to_rle
from vlmtasks.datasets.coco_entries import (
    check_bbox,
    check_image_id,
    check_mapping,
    check_segmentation,
    check_whole,
    describe,
    load_json,
)
from vlmtasks.datasets.json_files import line_of_entry, write_json
from vlmtasks.datasets.problems import DatasetWarning, Problems, is_finite_number
from vlmtasks.errors import DatasetError
from vlmtasks.shorten import shorten


def read_results(
    source: str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any], dataset: CocoDataset
) -> list[dict[str, Any]]:
    """Read a file of COCO results (or its list) that belongs to `dataset`.

    A whole COCO object is accepted too: its "annotations" are taken, with the score 1.0 where there
    is none. Rows of unknown categories are left out with a DatasetWarning.
    Returns rows of image_id, category_id, score and bbox, segmentation or both.
    DatasetError: rows that are no results, or of pictures that the data set does not have.
    """
    value, name = load_json(source)
    if not isinstance(source, (str, os.PathLike)):
        name = "results"
    rows = value.get("annotations") if isinstance(value, Mapping) else value
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise DatasetError(
            f"{name}: results must be a list of objects with image_id, category_id, bbox or "
            f"segmentation, and score; it holds {describe(value)}"
        )
    problems = Problems()
    unknown: Counter[Any] = Counter()
    results = []
    for index, row in enumerate(rows):
        try:
            result = _check_result(row, dataset, may_lack_score=isinstance(value, Mapping))
        except ValueError as error:
            key = "annotations" if isinstance(value, Mapping) else None
            problems.add(partial(_place, source, name, key, index), str(error))
            continue
        if result["category_id"] in dataset.categories:
            results.append(result)
        else:
            unknown[result["category_id"]] += 1
    problems.raise_if_any()
    if unknown:
        ids = ", ".join(f"{key} ({count}×)" for key, count in sorted(unknown.items()))
        warnings.warn(
            f"{name}: left out results of category ids that {dataset.name} does not have: {ids}",
            DatasetWarning,
            stacklevel=2,
        )
    return results


def write_results(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write COCO results; an empty list is a valid file. InputError: rows that JSON cannot hold."""
    write_json(path, [dict(row) for row in rows])


def _place(source: Any, name: str, key: str | None, index: int) -> str:
    line = line_of_entry(source, key, index) if isinstance(source, (str, os.PathLike)) else None
    return f"{name}, line {line}, entry {index}" if line else f"{name}, entry {index}"


def _check_result(row: Any, dataset: CocoDataset, *, may_lack_score: bool) -> dict[str, Any]:
    row = check_mapping(row)
    image_id = check_image_id(row.get("image_id"), "image_id")
    if image_id not in dataset.images:
        are_numbers = all(isinstance(key, int) for key in dataset.images)
        kind = "; its ids are numbers" if isinstance(image_id, str) and are_numbers else ""
        raise ValueError(f"image_id is {image_id!r}, which {dataset.name} does not have{kind}")
    result: dict[str, Any] = {
        "image_id": image_id,
        "category_id": check_whole(row.get("category_id"), "category_id"),
    }
    if row.get("bbox") is not None:
        result["bbox"] = list(check_bbox(row["bbox"]))
    size_wh = dataset.images[image_id].size_wh
    segmentation, _ = check_segmentation(row.get("segmentation"), size_wh)
    if isinstance(segmentation, dict):
        result["segmentation"] = segmentation
    elif segmentation and size_wh:
        result["segmentation"] = polygons_to_rle(segmentation, size_wh)
    if "bbox" not in result and "segmentation" not in result:
        raise ValueError("has neither bbox nor segmentation")
    score = row.get("score", 1.0 if may_lack_score else None)
    if not is_finite_number(score):
        raise ValueError(f"score is {shorten(score)}; it must be a finite number")
    result["score"] = float(score)
    return result
