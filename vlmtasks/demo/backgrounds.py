"""What lies behind the objects: painted patterns, textures and photographs without our classes.

Held out: some pattern families, a texture and all photographs of COCO's val folder are never
shown in training; "val" and "test" share none of them either.
"""

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import cv2
import numpy as np

from vlmtasks.demo.patterns import PATTERNS, blend, random_color
from vlmtasks.errors import MissingExtraError, MissingFileError

Split = Literal["train", "val", "test"]

# COCO categories that are one of our classes, look like one or often hold one
_RELATED_CATEGORIES = frozenset(
    (
        "cat,dog,horse,sheep,cow,bear,teddy bear,bird,car,bus,truck,train,motorcycle,bicycle,"
        "airplane,boat,traffic light,apple,orange,banana,pizza,cake,donut,hot dog,cup,wine glass,"
        "vase,potted plant,sports ball,umbrella,book,clock"
    ).split(",")
)

UNLABELED_IN_PHOTOGRAPHS = ("tree", "flower", "house")
"""Classes that COCO does not annotate but that its photographs often show."""

# pictures of scikit-image's wheel, CC0 or public domain by its documentation
_TEXTURES = {
    "train": ("brick", "grass", "hubble_deep_field"),
    "val": (),
    "test": ("gravel",),
}


@dataclass(frozen=True, eq=False)
class Background:
    """picture (size, size, 3) uint8; is_photograph: real trees and houses may be in it."""

    picture: np.ndarray
    is_photograph: bool


@dataclass(frozen=True, eq=False)
class _Photograph:
    picture: np.ndarray
    avoid_xyxy: np.ndarray
    people_xyxy: np.ndarray


def data_folder() -> Path | None:
    """The folder of photographs: VLMTASKS_TEST_DATA or ../shared/data, None when absent."""
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("VLMTASKS_TEST_DATA", root.parent / "shared" / "data"))
    return folder if folder.is_dir() else None


def make_background(rng: np.random.Generator, split: Split, size: int) -> Background:
    """A background of the split's own patterns, textures and photographs."""
    choice = rng.random()
    if choice < 0.4:
        photograph = crop_photograph(rng, split, size)
        if photograph is not None:
            return Background(photograph, True)
    if choice < 0.5 and _TEXTURES[split]:
        return Background(_crop_texture(rng, split, size), False)
    families = PATTERNS[split]
    return Background(families[rng.integers(len(families))](rng, size), False)


def crop_photograph(
    rng: np.random.Generator, split: Split, size: int, *, people: bool = False
) -> np.ndarray | None:
    """A square crop of a COCO photograph that overlaps nothing of our classes, (size, size, 3).

    people: only crops that overlap a person. None when the photographs are absent or thirty tries
    found no such crop.
    """
    photographs = _load_photographs(split)
    for _ in range(30 if photographs else 0):
        photograph = photographs[rng.integers(len(photographs))]
        height, width = photograph.picture.shape[:2]
        side = int(min(height, width) * rng.uniform(0.4, 1.0))
        x, y = rng.integers(width - side + 1), rng.integers(height - side + 1)
        if _overlaps(photograph.avoid_xyxy, x, y, side):
            continue
        if people and not _overlaps(photograph.people_xyxy, x, y, side):
            continue
        crop = resize_square(photograph.picture[y : y + side, x : x + side], size)
        return np.ascontiguousarray(crop[:, ::-1]) if rng.random() < 0.5 else crop
    return None


def _overlaps(boxes_xyxy: np.ndarray, x: int, y: int, side: int) -> bool:
    x1, y1, x2, y2 = boxes_xyxy.T
    return bool(((x1 < x + side) & (x2 > x) & (y1 < y + side) & (y2 > y)).any())


def resize_square(picture: np.ndarray, size: int) -> np.ndarray:
    """(H, W) or (H, W, 3) squashed to size × size, averaged when shrunk, smooth when enlarged."""
    smaller = min(picture.shape[:2]) >= size
    interpolation = cv2.INTER_AREA if smaller else cv2.INTER_CUBIC
    return cv2.resize(picture, (size, size), interpolation=interpolation)


def _crop_texture(rng: np.random.Generator, split: Split, size: int) -> np.ndarray:
    names = _TEXTURES[split]
    texture = _load_texture(names[rng.integers(len(names))])
    height, width = texture.shape[:2]
    side = int(rng.integers(size // 2, min(height, width) + 1))
    x, y = rng.integers(width - side + 1), rng.integers(height - side + 1)
    crop = resize_square(texture[y : y + side, x : x + side], size)
    if crop.ndim == 2:
        crop = blend(crop.astype(np.float32) / 255, random_color(rng) / 2, random_color(rng))
    return np.ascontiguousarray(np.rot90(crop, int(rng.integers(4))))


@cache
def _load_texture(name: str) -> np.ndarray:
    try:
        from skimage import data
    except ImportError as error:
        raise MissingExtraError("scikit-image", "demo-data") from error
    texture = np.asarray(getattr(data, name)())
    return texture[:512, :512]


@cache
def _load_photographs(split: Split) -> tuple[_Photograph, ...]:
    """COCO pictures with the boxes to avoid: train2017 for training, val2017 halved by id."""
    folder = data_folder()
    if folder is None or not (folder / "coco-tiny").is_dir():
        return ()
    part = "train2017" if split == "train" else "val2017"
    content = json.loads((folder / "coco-tiny/annotations" / f"instances_{part}.json").read_text())
    names = {category["id"]: category["name"] for category in content["categories"]}
    boxes: dict[int, list] = {image["id"]: [] for image in content["images"]}
    for annotation in content["annotations"]:
        x, y, w, h = annotation["bbox"]
        name = names[annotation["category_id"]]
        boxes[annotation["image_id"]].append((name, (x, y, x + w, y + h)))
    images = sorted(content["images"], key=lambda image: image["id"])
    if split != "train":
        images = images[("val", "test").index(split) :: 2]
    return tuple(
        _read_photograph(folder / "coco-tiny" / part / image["file_name"], boxes[image["id"]])
        for image in images
    )


def _read_photograph(path: Path, boxes: list[tuple[str, tuple]]) -> _Photograph:
    """The picture at half size: crops are shrunk to 224 px anyway."""
    bgr = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if bgr is None:
        raise MissingFileError(f"{path} is no readable picture; fetch the data folder again")
    half = cv2.resize(bgr, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    avoid = [box for name, box in boxes if name in _RELATED_CATEGORIES]
    people = [box for name, box in boxes if name == "person"]
    halved = [np.array(part, np.float64).reshape(-1, 4) / 2 for part in (avoid, people)]
    return _Photograph(cv2.cvtColor(half, cv2.COLOR_BGR2RGB), *halved)
