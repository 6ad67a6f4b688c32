"""Scenes as files: pictures, a COCO instances file, the texts, and a sheet to look at."""

import json
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from vlmtasks.demo.classes import LABELS
from vlmtasks.demo.prompts import caption_of, description_of
from vlmtasks.demo.scenes import Scene, SceneObject
from vlmtasks.rle import encode_rle

_LINE_COLORS = ((255, 60, 60), (60, 220, 60), (70, 140, 255), (255, 220, 0), (255, 70, 255))
_SHEET_ZOOM = 2
_SHEET_COLUMNS = 6
_SHEET_MOST = 60


def write_scenes(scenes: Sequence[Scene], folder: Path) -> None:
    """Write images/*.png, instances.json, texts.json and sheet.png; an old export is overwritten.

    instances.json is COCO's format with RLE masks, category k + 1 = LABELS[k], and a `color` in
    each annotation. texts.json has one entry a picture: caption, description, ocr, words.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for index, scene in enumerate(scenes):
        cv2.imwrite(str(folder / "images" / _file_name(index)), scene.picture[..., ::-1])
    (folder / "instances.json").write_text(json.dumps(coco_instances(scenes)))
    (folder / "texts.json").write_text(json.dumps([_texts(k, s) for k, s in enumerate(scenes)]))
    cv2.imwrite(str(folder / "sheet.png"), contact_sheet(scenes[:_SHEET_MOST])[..., ::-1])


def coco_instances(scenes: Sequence[Scene]) -> dict:
    """The scenes as a COCO instances dictionary; image ids count from 1."""
    images, annotations = [], []
    for index, scene in enumerate(scenes):
        height, width = scene.picture.shape[:2]
        images.append(
            {"id": index + 1, "file_name": _file_name(index), "width": width, "height": height}
        )
        for item in scene.objects:
            annotations.append(_annotation(len(annotations) + 1, index + 1, item))
    categories = [{"id": k + 1, "name": label} for k, label in enumerate(LABELS)]
    return {"images": images, "annotations": annotations, "categories": categories}


def contact_sheet(scenes: Sequence[Scene]) -> np.ndarray:
    """One RGB picture (H, W, 3) of all scenes with boxes, outlines, names and captions."""
    cells = [_sheet_cell(scene) for scene in scenes]
    while len(cells) % min(_SHEET_COLUMNS, len(cells)):
        cells.append(np.full_like(cells[0], 255))
    columns = min(_SHEET_COLUMNS, len(cells))
    rows = [np.hstack(cells[k : k + columns]) for k in range(0, len(cells), columns)]
    return np.vstack(rows)


def _file_name(index: int) -> str:
    return f"{index:06d}.png"


def _annotation(number: int, image_id: int, item: SceneObject) -> dict:
    x1, y1, x2, y2 = item.box_xyxy
    return {
        "id": number,
        "image_id": image_id,
        "category_id": LABELS.index(item.label) + 1,
        "bbox": [x1, y1, x2 - x1, y2 - y1],
        "area": int(item.mask.sum()),
        "iscrowd": 0,
        "segmentation": encode_rle(item.mask),
        "color": item.color,
    }


def _texts(index: int, scene: Scene) -> dict:
    words = [{"text": word.text, "box_xyxy": word.box_xyxy} for word in scene.words]
    return {
        "image_id": index + 1,
        "caption": caption_of(scene),
        "description": description_of(scene),
        "ocr": scene.text,
        "words": words,
        "known_labels": scene.known_labels,
    }


def _sheet_cell(scene: Scene) -> np.ndarray:
    zoom = _SHEET_ZOOM
    cell = cv2.resize(scene.picture, None, fx=zoom, fy=zoom, interpolation=cv2.INTER_NEAREST)
    for index, item in enumerate(scene.objects):
        line = _LINE_COLORS[index % len(_LINE_COLORS)]
        large = cv2.resize(item.mask.astype(np.uint8), cell.shape[1::-1], interpolation=0)
        outlines, _ = cv2.findContours(large, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(cell, outlines, -1, line, 1)
        x1, y1, x2, y2 = (round(v * zoom) for v in item.box_xyxy)
        cv2.rectangle(cell, (x1, y1), (x2 - 1, y2 - 1), line, 1)
        _write(cell, f"{item.color or '?'} {item.label}", (x1 + 2, y1 + 11), line)
    for word in scene.words:
        for x1, y1, x2, y2 in (word.char_boxes_xyxy * zoom).round().astype(int).tolist():
            cv2.rectangle(cell, (x1, y1), (x2, y2), _LINE_COLORS[-1], 1)
    text = description_of(scene) + (f" [{scene.text}]" if scene.words else "")
    caption = np.full((16, cell.shape[1], 3), 255, np.uint8)
    _write(caption, text, (2, 12), (0, 0, 0))
    return np.vstack([cell, caption])


def _write(picture: np.ndarray, text: str, corner: tuple[int, int], color: tuple) -> None:
    if sum(color):
        cv2.putText(picture, text, corner, cv2.FONT_HERSHEY_SIMPLEX, 0.36, (0, 0, 0), 3)
    cv2.putText(picture, text, corner, cv2.FONT_HERSHEY_SIMPLEX, 0.36, color, 1)
