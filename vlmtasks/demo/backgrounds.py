"""What lies behind the objects: painted patterns, textures and photographs without our classes.

Held out: some pattern families, a texture and all photographs of COCO's val folder are never
shown in training; "val" and "test" share none of them either.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import cv2
import numpy as np

from vlmtasks.errors import MissingExtraError, MissingFileError

Split = Literal["train", "val", "test"]
Painter = Callable[[np.random.Generator, int], np.ndarray]

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


def random_color(rng: np.random.Generator) -> np.ndarray:
    """RGB (3,) float: half of them pale or dull, as walls and skies are."""
    saturation = rng.uniform(0, 90) if rng.random() < 0.5 else rng.uniform(0, 230)
    hsv = [rng.integers(180), saturation, rng.uniform(60, 255)]
    return cv2.cvtColor(np.array([[hsv]], np.uint8), cv2.COLOR_HSV2RGB)[0, 0].astype(np.float64)


def _blend(t: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Colours between two for t (H, W) in 0..1, as (H, W, 3) uint8."""
    table = first + np.linspace(0, 1, 256)[:, None] * (second - first)
    index = (np.clip(t, 0, 1) * 255).astype(np.uint8)
    return table.astype(np.uint8)[index]


@cache
def _grid(size: int) -> tuple[np.ndarray, np.ndarray]:
    axis = np.linspace(-1, 1, size, dtype=np.float32)
    return np.meshgrid(axis, axis)


def _ramp(rng: np.random.Generator, size: int) -> np.ndarray:
    """Position along a random direction, about −1.4..1.4."""
    x, y = _grid(size)
    angle = rng.uniform(0, 2 * np.pi)
    return x * np.float32(np.cos(angle)) + y * np.float32(np.sin(angle))


def _smooth_noise(rng: np.random.Generator, size: int, cells: int) -> np.ndarray:
    coarse = rng.random((cells, cells), dtype=np.float32)
    return cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)


def paint_plain(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.full((size, size, 3), random_color(rng), np.uint8)


def paint_gradient(rng: np.random.Generator, size: int) -> np.ndarray:
    return _blend(_ramp(rng, size) / 2.8 + 0.5, random_color(rng), random_color(rng))


def paint_glow(rng: np.random.Generator, size: int) -> np.ndarray:
    x, y = _grid(size)
    cx, cy = rng.uniform(-1, 1, 2).astype(np.float32)
    return _blend(np.hypot(x - cx, y - cy) / 2, random_color(rng), random_color(rng))


def paint_clouds(rng: np.random.Generator, size: int) -> np.ndarray:
    noise = sum(_smooth_noise(rng, size, 3 * 2**k) / 2**k for k in range(4))
    return _blend(np.asarray(noise) / 1.9, random_color(rng), random_color(rng))


def paint_stripes(rng: np.random.Generator, size: int) -> np.ndarray:
    wave = np.sin(_ramp(rng, size) * rng.uniform(6, 45))
    return _blend(wave * rng.uniform(0.6, 6) + 0.5, random_color(rng), random_color(rng))


def paint_checks(rng: np.random.Generator, size: int) -> np.ndarray:
    count = rng.uniform(1.5, 9)
    first = np.floor(_ramp(rng, size) * count)
    second = np.floor(_ramp(rng, size) * count)
    return _blend((first + second) % 2, random_color(rng), random_color(rng))


def paint_paper(rng: np.random.Generator, size: int) -> np.ndarray:
    grain = rng.random((size, size), dtype=np.float32)
    blotches = _smooth_noise(rng, size, 5)
    color = random_color(rng)
    return _blend(grain * 0.5 + blotches * 0.5, color * 0.82, np.minimum(color * 1.1, 255))


def paint_blobs(rng: np.random.Generator, size: int) -> np.ndarray:
    """Ellipses of random colours: shapes that are no object."""
    canvas = paint_gradient(rng, size)
    for _ in range(rng.integers(3, 14)):
        center = rng.integers(0, size, 2).tolist()
        axes = rng.integers(4, size // 3, 2).tolist()
        color = random_color(rng).tolist()
        cv2.ellipse(canvas, center, axes, int(rng.integers(180)), 0, 360, color, -1, cv2.LINE_AA)
    return canvas


def paint_shards(rng: np.random.Generator, size: int) -> np.ndarray:
    """Random triangles and quadrilaterals."""
    canvas = paint_plain(rng, size)
    for _ in range(rng.integers(3, 16)):
        corners = rng.integers(-size // 4, size * 5 // 4, (int(rng.integers(3, 5)), 2))
        cv2.fillConvexPoly(
            canvas,
            cv2.convexHull(corners.astype(np.int32)),
            random_color(rng).tolist(),
            cv2.LINE_AA,
        )
    return canvas


def paint_horizon(rng: np.random.Generator, size: int) -> np.ndarray:
    """A wall above a floor, each with its own gradient."""
    canvas = paint_gradient(rng, size)
    row = int(size * rng.uniform(0.3, 0.8))
    canvas[row:] = paint_paper(rng, size)[row:] if rng.random() < 0.5 else random_color(rng)
    return canvas


def paint_scribbles(rng: np.random.Generator, size: int) -> np.ndarray:
    """Lines and rings of random width."""
    canvas = paint_gradient(rng, size)
    for _ in range(rng.integers(4, 18)):
        color, width = random_color(rng).tolist(), int(rng.integers(1, 6))
        start, end = rng.integers(0, size, (2, 2)).tolist()
        if rng.random() < 0.5:
            cv2.line(canvas, start, end, color, width, cv2.LINE_AA)
        else:
            cv2.circle(canvas, start, int(rng.integers(4, size // 3)), color, width, cv2.LINE_AA)
    return canvas


def paint_ripples(rng: np.random.Generator, size: int) -> np.ndarray:
    x, y = _grid(size)
    cx, cy = rng.uniform(-1, 1, 2).astype(np.float32)
    wave = np.sin(np.hypot(x - cx, y - cy) * rng.uniform(8, 40))
    return _blend(wave / 2 + 0.5, random_color(rng), random_color(rng))


def paint_zigzag(rng: np.random.Generator, size: int) -> np.ndarray:
    along, across = _ramp(rng, size), _ramp(rng, size)
    fold = np.abs((along * rng.uniform(2, 6)) % 1 - 0.5)
    return _blend(((across * 3 + fold) * 2) % 1, random_color(rng), random_color(rng))


def paint_plasma(rng: np.random.Generator, size: int) -> np.ndarray:
    waves = sum(np.sin(_ramp(rng, size) * rng.uniform(2, 12)) for _ in range(4))
    return _blend(np.asarray(waves) / 6 + 0.5, random_color(rng), random_color(rng))


def paint_dots(rng: np.random.Generator, size: int) -> np.ndarray:
    count = rng.uniform(10, 30)
    dots = np.sin(_ramp(rng, size) * count) * np.sin(_ramp(rng, size) * count)
    return _blend((dots - rng.uniform(0, 0.5)) * 8, random_color(rng), random_color(rng))


def paint_weave(rng: np.random.Generator, size: int) -> np.ndarray:
    count = rng.uniform(10, 40)
    first, second = np.sin(_ramp(rng, size) * count), np.sin(_ramp(rng, size) * count)
    return _blend(np.maximum(first, second) / 2 + 0.5, random_color(rng), random_color(rng))


PATTERNS: dict[str, tuple[Painter, ...]] = {
    "train": (
        paint_plain,
        paint_gradient,
        paint_glow,
        paint_clouds,
        paint_stripes,
        paint_checks,
        paint_paper,
        paint_blobs,
        paint_shards,
        paint_horizon,
        paint_scribbles,
    ),
    "val": (paint_ripples, paint_zigzag),
    "test": (paint_plasma, paint_dots, paint_weave),
}
"""Pattern families of each split, disjoint."""


def _crop_texture(rng: np.random.Generator, split: Split, size: int) -> np.ndarray:
    names = _TEXTURES[split]
    texture = _load_texture(names[rng.integers(len(names))])
    height, width = texture.shape[:2]
    side = int(rng.integers(size // 2, min(height, width) + 1))
    x, y = rng.integers(width - side + 1), rng.integers(height - side + 1)
    crop = resize_square(texture[y : y + side, x : x + side], size)
    if crop.ndim == 2:
        crop = _blend(crop.astype(np.float32) / 255, random_color(rng) / 2, random_color(rng))
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
    """The picture at half size: crops are shrunk to 160 px anyway."""
    bgr = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if bgr is None:
        raise MissingFileError(f"{path} is no readable picture; fetch the data folder again")
    half = cv2.resize(bgr, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    avoid = [box for name, box in boxes if name in _RELATED_CATEGORIES]
    people = [box for name, box in boxes if name == "person"]
    halved = [np.array(part, np.float64).reshape(-1, 4) / 2 for part in (avoid, people)]
    return _Photograph(cv2.cvtColor(half, cv2.COLOR_BGR2RGB), *halved)
