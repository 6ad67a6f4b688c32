"""Drawings ready to be pasted: trimmed, in three sizes, with what is known of their colour."""

from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np

from vlmtasks.demo.assets import TEST_VENDOR, TRAIN_VENDORS, Drawing, load_drawings
from vlmtasks.demo.classes import LABELS
from vlmtasks.demo.icons import load_icons
from vlmtasks.demo.recolor import draw_paint, main_surface, natural_color, repaint
from vlmtasks.demo.restyle import bend, restyle

ICON_SHARE = 0.3  # of the drawings that training sees
_SHEAR = 0.12


@dataclass(frozen=True, eq=False)
class Sprite:
    """One drawing.

    rgbs: straight colours (H, W, 3) uint8, trimmed to the drawing; full, half and quarter size.
    alphas: opacities (H, W) uint8 of the same sizes.
    surfaces: weights (H, W) uint8 of the main surface, too; None when it has none.
    color: the natural colour name of the main surface or None.
    """

    label: str
    vendor: str
    name: str
    rgbs: tuple[np.ndarray, ...]
    alphas: tuple[np.ndarray, ...]
    surfaces: tuple[np.ndarray, ...] | None
    color: str | None


@dataclass(frozen=True, eq=False)
class Patch:
    """A drawing to paste: premultiplied rgb (h, w, 3) uint8, alpha (h, w) float32 of 0..1.

    x, y: where its corner lies in the picture; area: opaque pixels before the picture's edge cuts.
    """

    rgb: np.ndarray
    alpha: np.ndarray
    x: int
    y: int
    area: float
    color: str | None


@cache
def load_sprites(split: str) -> dict[str, tuple[tuple[Sprite, ...], ...]]:
    """Label → sprites grouped by vendor: those for training, or for "test" the held-out one."""
    vendors = (TEST_VENDOR,) if split == "test" else TRAIN_VENDORS
    sprites: dict[str, list[tuple[Sprite, ...]]] = {label: [] for label in LABELS}
    for vendor in vendors:
        drawings = load_drawings(vendor)
        for label in LABELS:
            group = tuple(_make_sprite(d) for d in drawings if d.label == label)
            if group:
                sprites[label].append(group)
    return {label: tuple(groups) for label, groups in sprites.items()}


@cache
def load_icon_sprites() -> dict[str, tuple[Sprite, ...]]:
    """Label → icons, for training."""
    icons = load_icons()
    return {
        label: tuple(_make_sprite(icon) for icon in icons if icon.label == label)
        for label in LABELS
    }


def pick_sprite(rng: np.random.Generator, split: str, label: str) -> Sprite:
    """A random vendor's random drawing of a class; in training sometimes an icon."""
    if split == "train" and rng.random() < ICON_SHARE:
        icons = load_icon_sprites()[label]
        return icons[rng.integers(len(icons))]
    groups = load_sprites(split)[label]
    group = groups[rng.integers(len(groups))]
    return group[rng.integers(len(group))]


def _make_sprite(drawing: Drawing) -> Sprite:
    rgba = _trim(drawing.rgba)
    levels = [rgba]
    for _ in range(2):
        levels.append(_halve(levels[-1]))
    surface = main_surface(rgba)
    surfaces = None
    if surface is not None:
        sizes = [level.shape[1::-1] for level in levels]
        surfaces = tuple(cv2.resize(surface, size, interpolation=cv2.INTER_AREA) for size in sizes)
    color = None if surface is None else natural_color(rgba, surface)
    rgbs = tuple(np.ascontiguousarray(level[..., :3]) for level in levels)
    alphas = tuple(np.ascontiguousarray(level[..., 3]) for level in levels)
    return Sprite(drawing.label, drawing.vendor, drawing.name, rgbs, alphas, surfaces, color)


def _trim(rgba: np.ndarray) -> np.ndarray:
    rows = np.flatnonzero((rgba[..., 3] > 127).any(1))
    columns = np.flatnonzero((rgba[..., 3] > 127).any(0))
    return np.ascontiguousarray(rgba[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])


def _halve(rgba: np.ndarray) -> np.ndarray:
    """Half size; colours are averaged with their alpha so that edges keep their colour."""
    alpha = rgba[..., 3:].astype(np.float32) / 255
    premultiplied = np.dstack([rgba[..., :3] * alpha, alpha])
    small = cv2.resize(premultiplied, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    straight = small[..., :3] / np.maximum(small[..., 3:], 1e-3)
    return np.dstack([straight, small[..., 3:] * 255]).clip(0, 255).round().astype(np.uint8)


def place_sprite(
    rng: np.random.Generator,
    sprite: Sprite,
    center_xy: tuple[float, float],
    side: float,
    angle: float,
    paint: str | None,
    size: int,
    *,
    new_style: bool = False,
) -> Patch | None:
    """The sprite turned, sheared, flipped and painted, cut to a picture of size × size.

    side: length in pixels of the drawing's longer side; angle in degrees.
    paint: colour name to repaint with, None to leave it (sprites without surface are left too).
    new_style: also bent and drawn in another style, as training has it.
    None when nothing of it falls into the picture.
    """
    longest = max(sprite.alphas[0].shape)
    level = int(np.clip(np.floor(np.log2(longest / side)), 0, len(sprite.alphas) - 1))
    rgb, alpha = sprite.rgbs[level], sprite.alphas[level]
    color = sprite.color
    is_painted = paint is not None and sprite.surfaces is not None
    if paint is not None and sprite.surfaces is not None:
        rgb = repaint(rgb, sprite.surfaces[level], draw_paint(paint, rng))
        color = paint
    if new_style:
        rgb, keeps_color = restyle(rng, rgb, alpha, is_painted)
        color = color if keeps_color else None
    premultiplied = cv2.multiply(rgb, cv2.merge([alpha, alpha, alpha]), scale=1 / 255)
    turn = random_turn(rng, angle) * (side / max(alpha.shape))
    rgba = cv2.merge([premultiplied, alpha])
    return warp_patch(bend(rng, rgba) if new_style else rgba, turn, center_xy, size, color)


def random_turn(rng: np.random.Generator, angle: float) -> np.ndarray:
    """Rotation by `angle` degrees after a random flip, stretch and shear, (2, 2)."""
    radians = np.deg2rad(angle)
    cos, sin = np.cos(radians), np.sin(radians)
    stretch = np.exp(rng.uniform(-0.12, 0.12))
    flip = -1 if rng.random() < 0.5 else 1
    shape = np.array([[flip * stretch, rng.uniform(-_SHEAR, _SHEAR)], [0, 1 / stretch]])
    return np.array([[cos, -sin], [sin, cos]]) @ shape


def warp_patch(
    rgba: np.ndarray, turn: np.ndarray, center_xy: tuple[float, float], size: int, color: str | None
) -> Patch | None:
    """Premultiplied (H, W, 4) uint8 under the linear map `turn` (2, 2), centred at `center_xy`.

    Cut to a picture of size × size; None when nothing of it falls inside.
    """
    height, width = rgba.shape[:2]
    half_w, half_h = np.abs(turn) @ (width / 2, height / 2)
    x0, y0 = (
        max(0, int(np.floor(c - h))) for c, h in zip(center_xy, (half_w, half_h), strict=True)
    )
    x1 = min(size, int(np.ceil(center_xy[0] + half_w)) + 1)
    y1 = min(size, int(np.ceil(center_xy[1] + half_h)) + 1)
    if x1 - x0 < 2 or y1 - y0 < 2:
        return None
    offset = np.array(center_xy) - (x0, y0) - turn @ ((width - 1) / 2, (height - 1) / 2)
    matrix = np.column_stack([turn, offset])
    warped = cv2.warpAffine(rgba, matrix, (x1 - x0, y1 - y0), flags=cv2.INTER_LINEAR)
    area = float(cv2.sumElems(rgba)[3] / 255 * abs(np.linalg.det(turn)))
    alpha = warped[..., 3] * np.float32(1 / 255)
    return Patch(warped[..., :3], alpha, x0, y0, area, color)
