"""Scenes of the demo world: drawn objects and lettering on a background, with exact masks.

python -m vlmtasks.demo.scenes --split test --count 500 --seed 1 --out DIR
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from vlmtasks.demo.backgrounds import UNLABELED_IN_PHOTOGRAPHS, Background, Split, make_background
from vlmtasks.demo.classes import COLORS, LABELS
from vlmtasks.demo.lettering import Word, draw_words
from vlmtasks.demo.sprites import Patch, pick_sprite, place_sprite

SIZE = 224
"""Side of a scene in pixels."""

MIN_VISIBLE_SHARE = 0.45
"""Least share of an object that nothing hides; no scene holds an object that is hidden further."""

MIN_VISIBLE_PIXELS = 137

_LEAST_CONTRAST = 34
"""Mean difference in 0..255 between an object and what it covers, so that none is camouflaged."""

_LETTERED_SHARE = 0.16
_LINE_WEIGHTS = (0.55, 0.3, 0.15)
_COUNT_WEIGHTS = (0.16, 0.24, 0.24, 0.2, 0.16)
_REPAINT_SHARE = 0.5
_ANY_ANGLE = frozenset(("ball", "pizza", "key", "banana", "airplane", "guitar", "umbrella", "book"))


@dataclass(frozen=True, eq=False)
class SceneObject:
    """One thing in a scene.

    color: its colour name, None when no single name is certain.
    mask: (H, W) bool, the visible pixels; box_xyxy: float pixels, tight around the mask.
    """

    label: str
    color: str | None
    mask: np.ndarray
    box_xyxy: tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Scene:
    """A picture (H, W, 3) uint8 RGB and everything that may be asked about it.

    objects: in the order of painting, the last one lies on top.
    words: lettering in reading order; `text` is what `ocr` should answer.
    known_labels: classes whose presence and absence is certain; of others the picture may hold
        unlabelled ones, so nothing may be asked about them unless they are among the objects.
    kind: "drawn"; "collage" with animals cut out of photographs; "photograph" as it was taken, in
        which only the known classes are listed.
    """

    picture: np.ndarray
    objects: tuple[SceneObject, ...]
    words: tuple[Word, ...] = ()
    known_labels: tuple[str, ...] = LABELS
    kind: str = "drawn"

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


def scene_at(seed: int, index: int, split: Split, size: int = SIZE) -> Scene:
    """The scene number `index` of a series; the same arguments always give the same scene."""
    salt = {"train": 0, "val": 1, "test": 2}[split]
    return make_scene(np.random.default_rng((seed, salt, index)), split, size)


def make_scene(
    rng: np.random.Generator,
    split: Split,
    size: int = SIZE,
    *,
    crowded: bool = False,
    lettered_share: float = _LETTERED_SHARE,
) -> Scene:
    """A random scene of the split's own drawings, backgrounds, fonts and words.

    split: "train" and "val" share drawings, "test" has the held-out vendor's; backgrounds differ
    in all three.
    crowded: five to nine objects, up to five lines, from which a tower learns more a picture.
    """
    background = make_background(rng, split, size)
    canvas = background.picture.astype(np.float32)
    words: tuple[Word, ...] = ()
    count = 1 + int(rng.choice(5, p=_COUNT_WEIGHTS))
    if crowded:
        count = int(rng.integers(5, 10))
    painter = Painter(rng, split, canvas)
    if rng.random() < lettered_share:
        lines = int(rng.integers(1, 6)) if crowded else 1 + int(rng.choice(3, p=_LINE_WEIGHTS))
        words, sign = draw_words(rng, split, canvas, lines)
        painter.keep_free(sign)
        count = count // 2 if crowded else int(rng.choice(4, p=(0.5, 0.25, 0.15, 0.1)))
    painter.add_objects(_draw_labels(rng, count))
    picture = add_camera_flaws(rng, canvas)
    return Scene(picture, painter.objects(), words, known_labels(background, painter.labels))


def tight_box(mask: np.ndarray) -> tuple[float, float, float, float]:
    """Box x1, y1, x2, y2 in float pixels around the true pixels of (H, W); far edges exclusive."""
    rows = np.flatnonzero(mask.any(1))
    columns = np.flatnonzero(mask.any(0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


def known_labels(background: Background, present: Sequence[str]) -> tuple[str, ...]:
    """The classes of which the background holds none for sure, and those present."""
    unknown = set(UNLABELED_IN_PHOTOGRAPHS) if background.is_photograph else set()
    return tuple(label for label in LABELS if label not in unknown - set(present))


def add_camera_flaws(rng: np.random.Generator, canvas: np.ndarray) -> np.ndarray:
    """The finished picture (H, W, 3) uint8: a little contrast, blur, noise, compression."""
    if rng.random() < 0.5:
        canvas = (canvas - 128) * rng.uniform(0.8, 1.15) + 128 + rng.uniform(-18, 18)
    if rng.random() < 0.2:
        canvas = cv2.GaussianBlur(canvas, (0, 0), rng.uniform(0.4, 0.9))
    if rng.random() < 0.3:
        noise = rng.standard_normal(canvas.shape[:2], np.float32) * np.float32(rng.uniform(2, 9))
        canvas = canvas + noise[..., None]
    picture = np.clip(canvas, 0, 255).astype(np.uint8)
    if rng.random() < 0.2:
        quality = [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(45, 92))]
        decoded = cv2.imdecode(cv2.imencode(".jpg", picture, quality)[1], cv2.IMREAD_COLOR)
        picture = np.asarray(decoded)
    return picture


class Painter:
    """Pastes drawings on a canvas (H, W, 3) float32 and keeps track of what stays visible."""

    def __init__(self, rng: np.random.Generator, split: Split, canvas: np.ndarray) -> None:
        self.rng = rng
        self.split = split
        self.canvas = canvas
        self.size = canvas.shape[0]
        self.labels: list[str] = []
        self._colors: list[str | None] = []
        self._masks: list[np.ndarray] = []
        self._areas: list[float] = []
        self._taken = np.zeros(canvas.shape[:2], bool)
        # some scenes have overlapping objects, most have hardly any
        self._crowding = 0.5 if rng.random() < 0.3 else 0.06

    def keep_free(self, mask: np.ndarray) -> None:
        """Nothing will be pasted over these pixels (H, W) bool."""
        self._taken |= mask

    def add_objects(self, labels: Sequence[str]) -> None:
        """Paste a random drawing of each label; one that finds no place is left out."""
        for label in labels:
            for _ in range(8):
                if self.try_paste(label, self._random_patch(label, len(labels))):
                    break

    def try_paste(self, label: str, patch: Patch | None) -> bool:
        """Paste the patch unless it would hide too much, be hidden or lie outside."""
        if patch is None or not self._fits(patch):
            return False
        self._paste(label, patch)
        return True

    def objects(self) -> tuple[SceneObject, ...]:
        return tuple(
            SceneObject(label, color, mask, tight_box(mask))
            for label, color, mask in zip(self.labels, self._colors, self._masks, strict=True)
        )

    def _random_patch(self, label: str, count: int) -> Patch | None:
        rng = self.rng
        side = self.size * _draw_scale(rng, count)
        reach = 0.5 * side - 0.15 * side * rng.random()
        low, high = min(reach, self.size / 2), max(self.size - reach, self.size / 2)
        center = (rng.uniform(low, high), rng.uniform(low, high))
        if not self._has_room(center, side):
            return None
        spread = 40 if label in _ANY_ANGLE else 13
        angle = rng.uniform(-spread, spread)
        paint = COLORS[rng.integers(len(COLORS))] if rng.random() < _REPAINT_SHARE else None
        sprite = pick_sprite(rng, self.split, label)
        is_training = self.split == "train"
        return place_sprite(
            rng, sprite, center, side, angle, paint, self.size, new_style=is_training
        )

    def _has_room(self, center_xy: tuple[float, float], side: float) -> bool:
        """Whether the middle of a place is free enough; a drawing that cannot fit is not made."""
        x1, y1 = (max(0, int(c - 0.2 * side)) for c in center_xy)
        x2, y2 = (int(c + 0.2 * side) + 1 for c in center_xy)
        window = slice(y1, y2), slice(x1, x2)
        if 2 * cv2.countNonZero(self._taken[window].view(np.uint8)) > (x2 - x1) * (y2 - y1):
            return False
        return all(
            0.6 * cv2.countNonZero(mask[window].view(np.uint8)) <= self._crowding * full
            for mask, full in zip(self._masks, self._areas, strict=True)
        )

    def _fits(self, patch: Patch) -> bool:
        window = _window(patch)
        opaque = patch.alpha > 0.5
        area = int(opaque.sum())
        if area < max(MIN_VISIBLE_PIXELS, 0.6 * patch.area):
            return False
        if (self._taken[window] & opaque).any():
            return False
        for mask, full in zip(self._masks, self._areas, strict=True):
            lost = int((mask[window] & opaque).sum())
            left = int(mask.sum()) - lost
            if lost > self._crowding * full or left < max(
                MIN_VISIBLE_PIXELS, MIN_VISIBLE_SHARE * full
            ):
                return False
        return self._contrast(patch) >= _LEAST_CONTRAST

    def _contrast(self, patch: Patch) -> float:
        """Mean difference of the patch from its ground, in the channel that differs most."""
        ground = self.canvas[_window(patch)] * patch.alpha[..., None]
        change = cv2.absdiff(patch.rgb.astype(np.float32), ground)
        return max(cv2.sumElems(change)) / max(float(patch.alpha.sum()), 1.0)

    def _paste(self, label: str, patch: Patch) -> None:
        window = _window(patch)
        if self.rng.random() < 0.3:
            self._cast_shadow(patch)
        region = self.canvas[window]
        region *= 1 - patch.alpha[..., None]
        region += patch.rgb
        opaque = patch.alpha > 0.5
        for mask in self._masks:
            mask[window] &= ~opaque
        mask = np.zeros(self.canvas.shape[:2], bool)
        mask[window] = opaque
        self.labels.append(label)
        self._colors.append(patch.color)
        self._masks.append(mask)
        self._areas.append(patch.area)

    def _cast_shadow(self, patch: Patch) -> None:
        dx, dy = self.rng.integers(-5, 6, 2)
        shadow = cv2.blur(patch.alpha, (5, 5)) * self.rng.uniform(0.15, 0.45)
        h, w = shadow.shape
        x0, y0 = max(0, patch.x + dx), max(0, patch.y + dy)
        x1, y1 = min(self.size, patch.x + dx + w), min(self.size, patch.y + dy + h)
        cut = shadow[y0 - patch.y - dy : y1 - patch.y - dy, x0 - patch.x - dx : x1 - patch.x - dx]
        self.canvas[y0:y1, x0:x1] *= 1 - cut[..., None]


def _window(patch: Patch) -> tuple[slice, slice]:
    h, w = patch.alpha.shape
    return slice(patch.y, patch.y + h), slice(patch.x, patch.x + w)


def _draw_labels(rng: np.random.Generator, count: int) -> list[str]:
    """Labels of a scene: each object repeats an earlier one's class with probability 0.4.

    A fifth of the scenes start with a group of one class, so that counts of three and more occur.
    """
    labels: list[str] = []
    if count > 1 and rng.random() < 0.2:
        group = int(rng.integers(2, 6))
        labels = [LABELS[rng.integers(len(LABELS))]] * group
        count = min(count - 1, 5 - group)
    for _ in range(count):
        if labels and rng.random() < 0.4:
            labels.append(labels[rng.integers(len(labels))])
        else:
            labels.append(LABELS[rng.integers(len(LABELS))])
    return labels


def _draw_scale(rng: np.random.Generator, count: int) -> float:
    """Longer side of an object as a share of the picture's side."""
    choice = rng.random()
    if choice < 0.08:
        return rng.uniform(0.13, 0.2)
    if choice < 0.08 + 0.3 / count:
        return rng.uniform(0.42, 0.85)
    return rng.uniform(0.18, 0.48)


def main() -> None:
    from vlmtasks.demo.scene_files import write_scenes  # it imports this module

    parser = argparse.ArgumentParser(description="Write scenes as pictures with COCO annotations.")
    parser.add_argument("--split", choices=("train", "val", "test"), required=True)
    parser.add_argument("--count", type=int, default=60, help="number of scenes (60)")
    parser.add_argument("--seed", type=int, default=0, help="scenes differ from seed to seed (0)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    options = parser.parse_args()
    scenes = [scene_at(options.seed, index, options.split) for index in range(options.count)]
    write_scenes(scenes, options.out)


if __name__ == "__main__":
    main()
