"""Painted patterns to lay behind objects, and random colours.

Each `paint_*` gives a random picture (size, size, 3) uint8 of its family.
"""

from collections.abc import Callable
from functools import cache

import cv2
import numpy as np

Painter = Callable[[np.random.Generator, int], np.ndarray]


def random_color(rng: np.random.Generator) -> np.ndarray:
    """RGB (3,) float: half of them pale or dull, as walls and skies are."""
    saturation = rng.uniform(0, 90) if rng.random() < 0.5 else rng.uniform(0, 230)
    hsv = [rng.integers(180), saturation, rng.uniform(60, 255)]
    return cv2.cvtColor(np.array([[hsv]], np.uint8), cv2.COLOR_HSV2RGB)[0, 0].astype(np.float64)


def blend(t: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
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
    return blend(_ramp(rng, size) / 2.8 + 0.5, random_color(rng), random_color(rng))


def paint_glow(rng: np.random.Generator, size: int) -> np.ndarray:
    x, y = _grid(size)
    cx, cy = rng.uniform(-1, 1, 2).astype(np.float32)
    return blend(np.hypot(x - cx, y - cy) / 2, random_color(rng), random_color(rng))


def paint_clouds(rng: np.random.Generator, size: int) -> np.ndarray:
    noise = sum(_smooth_noise(rng, size, 3 * 2**k) / 2**k for k in range(4))
    return blend(np.asarray(noise) / 1.9, random_color(rng), random_color(rng))


def paint_stripes(rng: np.random.Generator, size: int) -> np.ndarray:
    wave = np.sin(_ramp(rng, size) * rng.uniform(6, 45))
    return blend(wave * rng.uniform(0.6, 6) + 0.5, random_color(rng), random_color(rng))


def paint_checks(rng: np.random.Generator, size: int) -> np.ndarray:
    count = rng.uniform(1.5, 9)
    first = np.floor(_ramp(rng, size) * count)
    second = np.floor(_ramp(rng, size) * count)
    return blend((first + second) % 2, random_color(rng), random_color(rng))


def paint_paper(rng: np.random.Generator, size: int) -> np.ndarray:
    grain = rng.random((size, size), dtype=np.float32)
    blotches = _smooth_noise(rng, size, 5)
    color = random_color(rng)
    return blend(grain * 0.5 + blotches * 0.5, color * 0.82, np.minimum(color * 1.1, 255))


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
    return blend(wave / 2 + 0.5, random_color(rng), random_color(rng))


def paint_zigzag(rng: np.random.Generator, size: int) -> np.ndarray:
    along, across = _ramp(rng, size), _ramp(rng, size)
    fold = np.abs((along * rng.uniform(2, 6)) % 1 - 0.5)
    return blend(((across * 3 + fold) * 2) % 1, random_color(rng), random_color(rng))


def paint_plasma(rng: np.random.Generator, size: int) -> np.ndarray:
    waves = sum(np.sin(_ramp(rng, size) * rng.uniform(2, 12)) for _ in range(4))
    return blend(np.asarray(waves) / 6 + 0.5, random_color(rng), random_color(rng))


def paint_dots(rng: np.random.Generator, size: int) -> np.ndarray:
    count = rng.uniform(10, 30)
    dots = np.sin(_ramp(rng, size) * count) * np.sin(_ramp(rng, size) * count)
    return blend((dots - rng.uniform(0, 0.5)) * 8, random_color(rng), random_color(rng))


def paint_weave(rng: np.random.Generator, size: int) -> np.ndarray:
    count = rng.uniform(10, 40)
    first, second = np.sin(_ramp(rng, size) * count), np.sin(_ramp(rng, size) * count)
    return blend(np.maximum(first, second) / 2 + 0.5, random_color(rng), random_color(rng))


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
