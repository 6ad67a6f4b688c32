"""Colours by name: which one a drawing shows, and repainting it in another.

Colours are judged in HSV as OpenCV scales it: hue 0..179, saturation and value 0..255.
"""

import cv2
import numpy as np

from vlmtasks.demo.classes import COLORS

# name → (hue, saturation, value) ranges to paint with; well inside what people call that colour
_PAINTS = {
    "red": ((-4, 4), (200, 250), (170, 235)),
    "orange": ((11, 16), (215, 255), (235, 255)),
    "yellow": ((25, 30), (190, 250), (235, 255)),
    "green": ((48, 72), (130, 230), (110, 200)),
    "blue": ((101, 116), (160, 250), (150, 245)),
    "purple": ((133, 143), (120, 200), (120, 200)),
    "pink": ((162, 172), (80, 130), (240, 255)),
    "brown": ((8, 14), (150, 200), (90, 130)),
    "black": ((0, 179), (0, 40), (25, 50)),
    "white": ((0, 179), (0, 8), (242, 255)),
    "gray": ((0, 179), (0, 20), (125, 160)),
}

NATURAL_SHARE = 0.7
"""A drawing has a natural colour when this share of its main surface bears one name."""

PAINTABLE_SHARE = 0.5
"""A drawing can be repainted when its main surface covers this share."""


def name_pixels(rgb: np.ndarray) -> np.ndarray:
    """Index into COLORS of each pixel of (H, W, 3) uint8, −1 where people would disagree."""
    hsv = cv2.cvtColor(rgb, cv2.COLOR_RGB2HSV).astype(np.int16)
    h, s, v = hsv[..., 0], hsv[..., 1], hsv[..., 2]
    vivid = s > 90
    names = np.full(h.shape, -1, np.int8)
    rules = {
        "red": ((h <= 6) | (h >= 174)) & (s > 140) & (v > 120),
        "orange": (h >= 9) & (h <= 17) & (s > 150) & (v > 210),
        "yellow": (h >= 21) & (h <= 33) & vivid & (v > 190),
        "green": (h >= 36) & (h <= 85) & (s > 70) & (v > 60),
        "blue": (h >= 94) & (h <= 121) & vivid & (v > 90),
        "purple": (h >= 129) & (h <= 150) & (s > 70) & (v > 70),
        "pink": (
            ((h >= 152) & (s > 50) & ((h < 169) | (s < 150))) | ((h <= 4) & (s > 60) & (s < 130))
        )
        & (v > 200),
        "brown": (h >= 2) & (h <= 18) & (s > 80) & (v > 55) & (v < 165),
        "gray": (s < 40) & (v > 105) & (v < 185),
        "white": (s < 30) & (v > 215),
        "black": (v < 55),
    }
    for name, chosen in rules.items():
        names[chosen & (names < 0)] = COLORS.index(name)
    return names


def natural_color(rgba: np.ndarray, surface: np.ndarray) -> str | None:
    """The one colour name of a drawing's main surface, None when no name covers most of it.

    White and grey must cover most of the whole drawing: people name a thing by its vivid part.
    """
    names = name_pixels(np.ascontiguousarray(rgba[..., :3]))
    counts = np.bincount(names[(surface > 200) & (names >= 0)], minlength=len(COLORS))
    best = COLORS[int(counts.argmax())]
    whole = (rgba[..., 3] > 127) if best in ("white", "gray") else (surface > 200)
    return best if counts.max() >= NATURAL_SHARE * whole.sum() else None


def main_surface(rgba: np.ndarray) -> np.ndarray | None:
    """Weight (H, W) uint8 of the pixels to repaint, or None when no surface is large enough.

    The surface is the best covered window of neighbouring hues, or else the greys.
    """
    hsv = cv2.cvtColor(np.ascontiguousarray(rgba[..., :3]), cv2.COLOR_RGB2HSV)
    opaque = rgba[..., 3] > 127
    hue, saturation, value = hsv[..., 0].astype(int), hsv[..., 1], hsv[..., 2]
    colored = opaque & (saturation > 50) & (value > 50)
    histogram = np.bincount(hue[colored] // 6, minlength=30)
    window = histogram + np.roll(histogram, 1) + np.roll(histogram, -1)
    center = int(window.argmax()) * 6 + 3
    distance = np.abs((hue - center + 90) % 180 - 90)
    chosen = colored & (distance <= 12)
    greys = opaque & (saturation <= 50) & (value > 60)
    if greys.sum() > chosen.sum():
        chosen = greys
    if chosen.sum() < PAINTABLE_SHARE * opaque.sum():
        return None
    return cv2.blur(chosen.astype(np.uint8) * 255, (3, 3))


def draw_paint(color: str, rng: np.random.Generator) -> np.ndarray:
    """A random RGB (3,) float that people call `color`."""
    (h0, h1), (s0, s1), (v0, v1) = _PAINTS[color]
    hsv = [rng.uniform(h0, h1) % 180, rng.uniform(s0, s1), rng.uniform(v0, v1)]
    pixel = np.array([[hsv]], np.uint8)
    return cv2.cvtColor(pixel, cv2.COLOR_HSV2RGB)[0, 0].astype(np.float64)


def repaint(rgb: np.ndarray, weight: np.ndarray, paint: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8 with its weighted surface in `paint`, light and shade kept.

    The surface's own mean luminance becomes the paint; darker pixels go towards black and lighter
    ones towards white, softened so that the colour stays nameable.
    """
    light = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    mean = float(cv2.mean(light, mask=(weight > 127).astype(np.uint8))[0]) or 1.0
    shade = (np.arange(256) - mean) / 255.0
    darker = np.clip(1 + 0.9 * shade, 0.55, 1)[:, None]
    lighter = np.clip(0.7 * shade, 0, 0.3)[:, None]
    table = paint * darker + (255 - paint) * lighter
    table = np.clip(table, 0, 255).astype(np.uint8)
    painted = cv2.LUT(cv2.merge([light, light, light]), table[None])
    share = weight * np.float32(1 / 255)
    return cv2.blendLinear(painted, rgb, share, 1 - share)
