"""Scenes with photographed cats and dogs: as they were taken, cut out and pasted, and without any.

The folder holds `pets` (COCO JSON with RLE masks) and `coco-tiny`. Colour must not tell what is an
animal: pictures get other hues, casts and greys.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cv2
import numpy as np

from vlmtasks.demo.backgrounds import (
    UNLABELED_IN_PHOTOGRAPHS,
    Split,
    crop_photograph,
    make_background,
    resize_square,
)
from vlmtasks.demo.classes import LABELS
from vlmtasks.demo.scenes import (
    SIZE,
    Painter,
    Scene,
    SceneObject,
    add_camera_flaws,
    known_labels,
    tight_box,
)
from vlmtasks.demo.sprites import Patch, random_turn, warp_patch
from vlmtasks.errors import MissingFileError
from vlmtasks.rle import decode_rle

DEVELOPMENT_COUNT = 60
"""Pictures of the training part that are kept for validation, the last ones by their hash."""

_MAX_SIDE = 288
_AS_TAKEN_SHARE, _COLLAGE_SHARE = 0.42, 0.38  # the rest shows no animal
_LEAST_KEPT = 0.7  # share of the animal that a random crop keeps


@dataclass(frozen=True, eq=False)
class Pet:
    """A photograph (H, W, 3) uint8 with one animal and its mask (H, W) bool."""

    file_name: str
    label: str
    picture: np.ndarray
    mask: np.ndarray


class Photographs:
    """The photographs of a data folder, read once a split."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "pets").is_dir():
            raise MissingFileError(f"{folder} holds no folder 'pets'; give the folder above it")
        self.folder = folder

    def make_scene(self, rng: np.random.Generator, split: Split, size: int = SIZE) -> Scene:
        """A random scene; "val" uses the development pictures, "test" the test ones."""
        choice = rng.random()
        if choice < _AS_TAKEN_SHARE:
            return self.as_taken(rng, split, size)
        if choice < _AS_TAKEN_SHARE + _COLLAGE_SHARE:
            return self.collage(rng, split, size)
        empty = self.without_animals(rng, split, size)
        return empty or self.as_taken(rng, split, size)

    def as_taken(self, rng: np.random.Generator, split: Split, size: int = SIZE) -> Scene:
        """A photograph of one animal, cropped and squashed to size × size."""
        pet = self._pick(rng, split)
        picture, mask = _crop_around(rng, pet)
        picture = resize_square(picture, size)
        mask = cv2.resize(mask.astype(np.float32), (size, size), interpolation=cv2.INTER_AREA) > 0.5
        if rng.random() < 0.5:
            picture, mask = picture[:, ::-1], mask[:, ::-1]
        picture = change_colors(rng, np.ascontiguousarray(picture))
        item = SceneObject(pet.label, None, np.ascontiguousarray(mask), tight_box(mask))
        picture = add_camera_flaws(rng, picture.astype(np.float32))
        return Scene(picture, (item,), known_labels=("cat", "dog"), kind="photograph")

    def collage(self, rng: np.random.Generator, split: Split, size: int = SIZE) -> Scene:
        """One to three animals cut out and pasted, sometimes with drawn objects beside them."""
        background = make_background(rng, split, size)
        canvas = change_colors(rng, background.picture).astype(np.float32)
        painter = Painter(rng, split, canvas)
        count = 1 + int(rng.choice(3, p=(0.62, 0.28, 0.1)))
        for _ in range(count):
            pet = self._pick(rng, split)
            for _ in range(8):
                if painter.try_paste(pet.label, _cut_out(rng, pet, size, count)):
                    break
        if rng.random() < 0.35:
            labels = [LABELS[k] for k in rng.integers(len(LABELS), size=rng.integers(1, 3))]
            painter.add_objects(labels)
        picture = add_camera_flaws(rng, canvas)
        known = known_labels(background, painter.labels)
        return Scene(picture, painter.objects(), known_labels=known, kind="collage")

    def without_animals(
        self, rng: np.random.Generator, split: Split, size: int = SIZE
    ) -> Scene | None:
        """A COCO photograph without our classes, mostly of people; None when none is there."""
        picture = crop_photograph(rng, split, size, people=rng.random() < 0.65)
        if picture is None:
            return None
        picture = add_camera_flaws(rng, change_colors(rng, picture).astype(np.float32))
        known = tuple(label for label in LABELS if label not in UNLABELED_IN_PHOTOGRAPHS)
        return Scene(picture, (), known_labels=known, kind="photograph")

    def _pick(self, rng: np.random.Generator, split: Split) -> Pet:
        """A cat or a dog with equal odds, though there are more cats."""
        groups = load_pets(self.folder, split)
        group = groups[("cat", "dog")[rng.integers(2)]]
        return group[rng.integers(len(group))]


@cache
def load_pets(folder: Path, split: Split) -> dict[str, tuple[Pet, ...]]:
    """Label → the animals of a split, at most 288 px large."""
    part = "test" if split == "test" else "train"
    path = folder / "pets" / f"instances_{part}.json"
    content = json.loads(path.read_text())
    names = {category["id"]: category["name"] for category in content["categories"]}
    chosen = split_files([image["file_name"] for image in content["images"]], split)
    files = {image["id"]: image["file_name"] for image in content["images"]}
    pets: dict[str, list[Pet]] = {"cat": [], "dog": []}
    for annotation in content["annotations"]:
        name = files[annotation["image_id"]]
        if name in chosen:
            label = names[annotation["category_id"]]
            mask = decode_rle(annotation["segmentation"])
            pets[label].append(_read_pet(folder / "pets" / "images" / name, label, mask))
    return {label: tuple(group) for label, group in pets.items()}


def split_files(names: list[str], split: Split) -> set[str]:
    """File names of a split: the training part is divided by the order of the names' SHA-1."""
    if split == "test":
        return set(names)
    ordered = sorted(names, key=lambda name: hashlib.sha1(name.encode()).hexdigest())
    cut = len(ordered) - DEVELOPMENT_COUNT
    return set(ordered[:cut] if split == "train" else ordered[cut:])


def change_colors(rng: np.random.Generator, picture: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8 with other hues, saturation, cast and gamma, or grey; one in eight as is."""
    if rng.random() < 0.125:
        return picture
    hsv = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)
    if rng.random() < 0.4:
        hsv[..., 0] = (hsv[..., 0].astype(np.int16) + int(rng.integers(180))) % 180
    levels = np.arange(256) / 255
    saturation = 0.0 if rng.random() < 0.2 else rng.uniform(0.3, 1.5)
    hsv[..., 1] = cv2.LUT(hsv[..., 1], _to_bytes(levels * saturation))
    picture = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
    gamma, gain = np.exp(rng.uniform(-0.45, 0.45)), rng.uniform(0.75, 1.2)
    cast = rng.uniform(0.75, 1.25, 3) if rng.random() < 0.6 else np.ones(3)
    table = _to_bytes(levels[:, None] ** gamma * gain * cast)
    return cv2.LUT(picture, table[None])


def _to_bytes(values: np.ndarray) -> np.ndarray:
    return (values * 255).clip(0, 255).astype(np.uint8)


def _read_pet(path: Path, label: str, mask: np.ndarray) -> Pet:
    bgr = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if bgr is None:
        raise MissingFileError(f"{path} is no readable picture; fetch the data folder again")
    scale = min(1.0, _MAX_SIDE / max(bgr.shape))
    size = tuple(round(n * scale) for n in bgr.shape[1::-1])
    rgb = cv2.cvtColor(cv2.resize(bgr, size, interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)
    small = cv2.resize(mask.astype(np.float32), size, interpolation=cv2.INTER_AREA) > 0.5
    return Pet(path.name, label, rgb, small)


def _crop_around(rng: np.random.Generator, pet: Pet) -> tuple[np.ndarray, np.ndarray]:
    """A random window that keeps most of the animal, the whole picture one time in three."""
    height, width = pet.mask.shape
    total = pet.mask.sum()
    for _ in range(10 if rng.random() < 0.67 else 0):
        w, h = int(width * rng.uniform(0.55, 1)), int(height * rng.uniform(0.55, 1))
        x, y = rng.integers(width - w + 1), rng.integers(height - h + 1)
        mask = pet.mask[y : y + h, x : x + w]
        if mask.sum() >= _LEAST_KEPT * total:
            return pet.picture[y : y + h, x : x + w], mask
    return pet.picture, pet.mask


def _cut_out(rng: np.random.Generator, pet: Pet, size: int, count: int) -> Patch | None:
    """The animal alone, turned a little and pasted at 15 to 90 % of the picture's side."""
    x1, y1, x2, y2 = (int(v) for v in tight_box(pet.mask))
    mask = pet.mask[y1:y2, x1:x2].astype(np.uint8) * 255
    rgb = change_colors(rng, np.ascontiguousarray(pet.picture[y1:y2, x1:x2]))
    side = size * rng.uniform(0.15, 0.9 if count == 1 else 0.55)
    scale = min(1.0, side / max(mask.shape))
    small = tuple(max(2, round(n * scale)) for n in mask.shape[::-1])
    rgb = cv2.resize(rgb, small, interpolation=cv2.INTER_AREA)
    # the annotators' border is generous: fade it inwards
    alpha = cv2.blur(cv2.erode(mask, np.ones((3, 3), np.uint8)), (3, 3))
    alpha = cv2.resize(alpha, small, interpolation=cv2.INTER_AREA)
    premultiplied = cv2.multiply(rgb, cv2.merge([alpha, alpha, alpha]), scale=1 / 255)
    turn = random_turn(rng, rng.uniform(-12, 12)) * (side / max(alpha.shape))
    reach = 0.4 * side
    low, high = min(reach, size / 2), max(size - reach, size / 2)
    center = (rng.uniform(low, high), rng.uniform(low, high))
    return warp_patch(cv2.merge([premultiplied, alpha]), turn, center, size, None)
