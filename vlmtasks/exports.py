"""Detections in the forms of other tools. Use the methods of `vlmtasks.Detections`."""

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vlmtasks.boxes import SizeWH, check_boxes, check_image_size, xywh_to_xyxy, xyxy_to_xywh
from vlmtasks.categories import CocoCategories
from vlmtasks.errors import InputError, MissingExtraError
from vlmtasks.masks import Masks
from vlmtasks.plain_numbers import plain_number, whole_number
from vlmtasks.rle import rle_area
from vlmtasks.shorten import shorten

if TYPE_CHECKING:
    import supervision
    import torch

    from vlmtasks.results import Detections

logger = logging.getLogger(__name__)


def to_coco(
    found: "Detections", image_id: int | str, category_ids: Any, *, keep_unknown: bool
) -> list[dict[str, Any]]:
    if isinstance(image_id, bool) or not (
        isinstance(image_id, str) or hasattr(image_id, "__index__")
    ):
        raise InputError(f"image_id is {shorten(image_id)}; it must be the id of the picture")
    if keep_unknown and not isinstance(category_ids, CocoCategories):
        raise InputError("keep_unknown needs category_ids as CocoCategories, which then grow")
    categories = category_ids if keep_unknown else CocoCategories(category_ids)
    boxes_xywh = xyxy_to_xywh(found.boxes_xyxy).tolist()
    entries: list[dict[str, Any]] = []
    unknown: Counter[str] = Counter()
    for index, label in enumerate(found.labels):
        category_id = categories.add(label) if keep_unknown else categories.id(label)
        if category_id is None:
            unknown[label] += 1
            continue
        entry: dict[str, Any] = {
            "image_id": image_id if isinstance(image_id, str) else int(image_id),
            "category_id": category_id,
            "bbox": boxes_xywh[index],
            "score": float(found.scores[index]),
        }
        if (rle := found.rle(index)) is not None:
            entry |= {"segmentation": rle, "area": rle_area(rle)}
        entries.append(entry)
    if unknown:
        logger.warning("%s", _unknown_labels(unknown))
    return entries


def from_coco(
    entries: Sequence[Mapping[str, Any]],
    image_size: SizeWH,
    category_ids: Any,
    *,
    image_id: int | str | None,
) -> dict[str, Any]:
    """The arguments of `Detections`."""
    size_wh = check_image_size(image_size)
    categories = CocoCategories(category_ids)
    if isinstance(entries, str | Mapping) or not isinstance(entries, Iterable):
        raise InputError(
            f"entries are {shorten(entries)}; they must be a list of COCO results, each an object "
            "with category_id and bbox, and perhaps score, segmentation and image_id"
        )
    boxes, labels, scores, rles = [], [], [], []
    for place, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise InputError(f"entry {place} is {shorten(entry)}; it must be an object")
        if image_id is not None and _field(entry, "image_id", place) != image_id:
            continue
        boxes.append(_box_xywh(_field(entry, "bbox", place), place))
        labels.append(categories.name(_category_id(_field(entry, "category_id", place), place)))
        scores.append(_score(entry.get("score", 1.0), place))
        rle = entry.get("segmentation")
        is_empty = isinstance(rle, list | Mapping) and not rle
        rles.append(None if is_empty else rle)
    return {
        "boxes_xyxy": xywh_to_xyxy(boxes),
        "labels": tuple(labels),
        "scores": scores,
        "image_size": size_wh,
        "masks": Masks.from_rles(rles, size_wh) if any(rle is not None for rle in rles) else None,
    }


def to_torchvision(found: "Detections", category_ids: Any) -> "dict[str, torch.Tensor]":
    import torch

    result = {
        "boxes": torch.tensor(found.boxes_xyxy),
        "labels": torch.tensor(_class_ids(found, category_ids, first=1), dtype=torch.int64),
        "scores": torch.tensor(found.scores),
    }
    if found.masks is not None:
        result["masks"] = torch.from_numpy(found.masks.dense().view(np.uint8))
    return result


def to_supervision(found: "Detections", category_ids: Any) -> "supervision.Detections":
    try:
        import supervision
    except ImportError:
        raise MissingExtraError("supervision", "supervision") from None
    return supervision.Detections(
        xyxy=np.array(found.boxes_xyxy),
        mask=None if found.masks is None else found.masks.dense(),
        confidence=np.array(found.scores),
        class_id=np.array(_class_ids(found, category_ids, first=0), dtype=int),
        data={"class_name": np.array(found.labels, dtype=str)},
    )


def _field(entry: Mapping[str, Any], name: str, place: int) -> Any:
    if name not in entry:
        raise InputError(f"entry {place} has no {name}; it holds {shorten(list(entry))}")
    return entry[name]


def _box_xywh(value: Any, place: int) -> list[float]:
    try:
        box = check_boxes([value])[0].tolist()
    except InputError:
        box = []
    if not box or min(box[2:]) < 0:
        raise InputError(
            f"entry {place}: bbox is {shorten(value)}; it must be [x, y, width, height], finite "
            "numbers with sides of at least 0"
        )
    return box


def _category_id(value: Any, place: int) -> int:
    try:
        return whole_number(value)
    except TypeError:
        raise InputError(
            f"entry {place}: category_id is {shorten(value)}; it must be a whole number"
        ) from None


def _score(value: Any, place: int) -> float:
    number = plain_number(value)
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or not abs(number) <= sys.float_info.max:
        raise InputError(
            f"entry {place}: score is {shorten(value)}; it must be a finite number, or be left "
            "out for 1"
        )
    return float(number)


def _class_ids(found: "Detections", category_ids: Any, first: int) -> list[int]:
    if category_ids is None:
        place = {label: number for number, label in enumerate(dict.fromkeys(found.labels), first)}
        return [place[label] for label in found.labels]
    categories = CocoCategories(category_ids)
    ids: list[int] = []
    for label in found.labels:
        category_id = categories.id(label)
        if category_id is None:
            raise InputError(f"label {label!r} is not one of {categories}; filter it out first")
        ids.append(category_id)
    return ids


def _unknown_labels(unknown: Counter[str]) -> str:
    count = unknown.total()
    names = ", ".join(
        f"{label or '(no label)'}{f' ({n}×)' if n > 1 else ''}" for label, n in unknown.items()
    )
    return f"{count} detection{'s' if count > 1 else ''} with unknown label: {names}"
