"""Detections in the forms of other tools. Use the methods of `vlmtasks.Detections`."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vlmtasks.boxes import SizeWH, check_image_size, xywh_to_xyxy, xyxy_to_xywh
from vlmtasks.categories import CocoCategories
from vlmtasks.errors import InputError, MissingExtraError
from vlmtasks.masks import Masks
from vlmtasks.rle import rle_area

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
        raise InputError(f"image_id is {image_id!r}; it must be the id of the picture")
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
    try:
        chosen = [entry for entry in entries if image_id is None or entry["image_id"] == image_id]
        boxes = np.array([entry["bbox"] for entry in chosen], dtype=np.float64).reshape(-1, 4)
        rles = [entry.get("segmentation") for entry in chosen]
        return {
            "boxes_xyxy": xywh_to_xyxy(boxes),
            "labels": tuple(categories.name(entry["category_id"]) for entry in chosen),
            "scores": np.array([entry.get("score", 1.0) for entry in chosen], dtype=np.float64),
            "image_size": size_wh,
            "masks": Masks.from_rles(rles, size_wh) if any(rles) else None,
        }
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise InputError(f"these are no COCO results: {error!r}") from error


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
