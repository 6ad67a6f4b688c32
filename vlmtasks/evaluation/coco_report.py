"""The report of a COCO run, from its outcome and the ground truth."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmtasks.datasets.coco import CocoDataset, CocoImage, annotation_rle
from vlmtasks.datasets.paths import find_pictures
from vlmtasks.evaluation.coco_task import CocoOutcome, Task
from vlmtasks.evaluation.matching import Thing, match
from vlmtasks.evaluation.report import Report
from vlmtasks.evaluation.report_gallery import Picture
from vlmtasks.results import Detections


def coco_report(
    dataset: CocoDataset,
    outcome: CocoOutcome,
    task: Task,
    stamp: Mapping[str, Any],
    images: str | os.PathLike[str] | None,
) -> Report:
    """Put a run into the form of the page. images: the folder of pictures, None for no pictures."""
    names = [dataset.images[key].file_name for key in outcome.detections]
    paths = {} if images is None else find_pictures(images, names, skip_missing=True)
    annotations = dataset.by_image()
    pictures = []
    for image_id, found in outcome.detections.items():
        image = dataset.images[image_id]
        things = [entry for entry in annotations[image_id] if entry.bbox_xywh is not None]
        truths = [truth_thing(entry, dataset) for entry in things]
        detected = found_things(found, dataset)
        pictures.append(
            Picture(
                image.file_name,
                paths.get(image.file_name),
                found.image_size,
                truths,
                detected,
                match(truths, detected),
                [_rle(entry, image) for entry in things] if task == "segment" else (),
                _found_masks(found) if task == "segment" else (),
            )
        )
    title = f"{'Boxes' if task == 'detect' else 'Boxes and masks'} on {Path(dataset.name).stem}"
    return Report(title, outcome.scores, pictures, stamp, outcome.notes)


def truth_thing(entry: Any, dataset: CocoDataset) -> Thing:
    """An annotation that has a box."""
    x, y, width, height = entry.bbox_xywh
    label = dataset.categories[entry.category_id]
    return Thing(label, (x, y, x + width, y + height), is_crowd=entry.is_crowd)


def found_things(found: Detections, dataset: CocoDataset) -> list[Thing]:
    """Detections with the spelling of the data set; unknown labels as the model wrote them."""
    things = []
    for one in found:
        category_id = dataset.category_id(one.label)
        label = one.label if category_id is None else dataset.categories[category_id]
        things.append(Thing(label, one.box_xyxy, one.score))
    return things


def _rle(entry: Any, image: CocoImage) -> Any:
    return None if image.size_wh is None else annotation_rle(entry, image)


def _found_masks(found: Detections) -> list[Any]:
    masks = found.masks
    if masks is None:
        return [None] * len(found)
    return [masks.rle(place) if masks.has_mask(place) else None for place in range(len(found))]
