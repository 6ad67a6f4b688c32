"""Figures on photographs: close-ups of cats and dogs, and pictures without any.

Beside every figure stand those of two answers that look at nothing: the whole picture, and the mean
box of the training part.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from vlmtasks.api import VLM
from vlmtasks.boxes import box_iou
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.demo.backgrounds import Split
from vlmtasks.demo.photographs import split_files
from vlmtasks.evaluation.coco_ap import coco_scores
from vlmtasks.images import open_image
from vlmtasks.results import Detections
from vlmtasks.rle import decode_rle

ANIMALS = ("cat", "dog")
PARTS: dict[str, Split] = {"test": "test", "development": "val", "training": "train"}


@dataclass(frozen=True, eq=False)
class PetPhoto:
    """One photograph with one animal; mask (H, W) bool, box_norm: x0 y0 x1 y1 in 0..1."""

    path: Path
    image_id: int
    label: str
    mask: np.ndarray
    box_norm: np.ndarray


def evaluate_photographs(vlm: VLM, folder: Path, part: str) -> dict[str, float]:
    """part: "test" (90 pictures) or "development" (60 of the training part)."""
    photos, truth = read_pets(folder, part)
    encoded = vlm.encode_image([photo.path for photo in photos])
    boxes, rows, masks, empty = [], [], [], []
    for photo, picture in zip(photos, encoded, strict=True):
        found = vlm.segment(picture, photo.label)
        rows += vlm.detect(picture, photo.label).to_coco(photo.image_id, truth["categories"])
        size = np.tile(picture.image_size, 2)
        boxes.append(_best_iou(photo.box_norm, found.boxes_xyxy / size))
        masks.append(_iou(photo.mask, _union(found, photo.mask.shape)))
        other = ANIMALS[1 - ANIMALS.index(photo.label)]
        empty.append(len(vlm.detect(picture, other)) == 0)
    figures = {"photographs": float(len(photos)), "box_iou": mean(boxes), "mask_iou": mean(masks)}
    figures |= _average_precision(truth, rows)
    figures["other_animal_empty"] = mean(empty)
    return figures | _baselines(folder, photos, truth) | _false_alarms(vlm, folder)


def read_pets(folder: Path, part: str) -> tuple[list[PetPhoto], dict[str, Any]]:
    """The photographs of a part, and their ground truth as COCO's dictionary."""
    file = "instances_test.json" if part == "test" else "instances_train.json"
    content = json.loads((folder / "pets" / file).read_text(encoding="utf-8"))
    names = [image["file_name"] for image in content["images"]]
    chosen = split_files(names, PARTS[part])
    content["images"] = [image for image in content["images"] if image["file_name"] in chosen]
    images = {image["id"]: image for image in content["images"]}
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] in images]
    label_of = {category["id"]: category["name"] for category in content["categories"]}
    photos = []
    for annotation in content["annotations"]:
        image = images[annotation["image_id"]]
        x, y, w, h = annotation["bbox"]
        scale = np.array([image["width"], image["height"]] * 2)
        photos.append(
            PetPhoto(
                folder / "pets" / "images" / image["file_name"],
                image["id"],
                label_of[annotation["category_id"]],
                decode_rle(annotation["segmentation"]),
                np.array([x, y, x + w, y + h]) / scale,
            )
        )
    return photos, content


def _average_precision(truth: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, float]:
    """AP50 and AP75 of both classes and by class."""
    scores = coco_scores(read_coco(truth), rows, "bbox")
    figures = {name: scores.stats[name] or 0.0 for name in ("AP50", "AP75")}
    for entry in scores.classes.values():
        figures[f"{entry.name}_AP50"] = entry.ap50 or 0.0
    return {f"box_{name}": value for name, value in figures.items()}


def _baselines(folder: Path, photos: list[PetPhoto], truth: dict[str, Any]) -> dict[str, float]:
    """What a fixed box reaches: the whole picture, and the mean box of the training pictures."""
    trained, _ = read_pets(folder, "training")
    fixed = {
        "whole_picture": np.array([0.0, 0.0, 1.0, 1.0]),
        "mean_box": np.mean([photo.box_norm for photo in trained], 0),
    }
    ids = {category["name"]: category["id"] for category in truth["categories"]}
    figures = {}
    for name, box in fixed.items():
        rows = []
        for photo in photos:
            height, width = photo.mask.shape
            x0, y0, x1, y1 = box * [width, height, width, height]
            rows.append(
                {
                    "image_id": photo.image_id,
                    "category_id": ids[photo.label],
                    "bbox": [x0, y0, x1 - x0, y1 - y0],
                    "score": 1.0,
                }
            )
        figures[f"{name}_box_iou"] = mean(_best_iou(p.box_norm, box[None]) for p in photos)
        figures[f"{name}_mask_iou"] = mean(_iou(p.mask, _fill(box, p.mask.shape)) for p in photos)
        figures[f"{name}_box_AP75"] = _average_precision(truth, rows)["box_AP75"]
    return figures


def _false_alarms(vlm: VLM, folder: Path) -> dict[str, float]:
    """Share of COCO validation photographs without cats and dogs in which one is found."""
    root = folder / "coco-tiny"
    [file] = sorted((root / "annotations").glob("instances_val*.json"))
    dataset = read_coco(file)
    pets = {key for key, name in dataset.categories.items() if name in ANIMALS}
    entries = dataset.by_image()
    pictures = [
        open_image(root / "val2017" / image.file_name)
        for key, image in dataset.images.items()
        if not any(entry.category_id in pets for entry in entries[key])
    ]
    encoded = vlm.encode_image(pictures)
    found = [[len(answer) > 0 for answer in vlm.detect(encoded, name)] for name in ANIMALS]
    figures = {f"false_{name}": mean(some) for name, some in zip(ANIMALS, found, strict=True)}
    figures["false_alarm"] = mean(any(pair) for pair in zip(*found, strict=True))
    return figures


def _best_iou(box: np.ndarray, boxes: np.ndarray) -> float:
    return float(box_iou(box[None], boxes).max()) if len(boxes) else 0.0


def _union(found: Detections, shape_hw: tuple[int, ...]) -> np.ndarray:
    """All pixels (H, W) that any of the masks covers."""
    covered = np.zeros(shape_hw, bool)
    for mask in found.masks or ():
        covered |= mask
    return covered


def _iou(truth: np.ndarray, given: np.ndarray) -> float:
    return float((truth & given).sum() / (truth | given).sum())


def _fill(box_norm: np.ndarray, shape_hw: tuple[int, ...]) -> np.ndarray:
    filled = np.zeros(shape_hw, bool)
    x0, y0, x1, y1 = np.rint(box_norm * [*shape_hw[::-1], *shape_hw[::-1]]).astype(int)
    filled[y0:y1, x0:x1] = True
    return filled
