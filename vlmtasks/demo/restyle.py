"""Other styles of a drawing, for training only: what a vendor never seen may draw differently.

Five vendors are few: a network learns their outlines, shading and palettes by heart. Proportions,
lines, light and colours change here; what the thing is stays plain.
"""

import cv2
import numpy as np

_BENT_SHARE, _BEND = 0.6, 0.07  # how often, and by what share of the longer side at most
_RECOLORED_SHARE = 0.3  # of the drawings that were not repainted
_FLAT_SHARE, _LIT_SHARE, _LINED_SHARE = 0.25, 0.3, 0.25


def bend(rng: np.random.Generator, rgba: np.ndarray) -> np.ndarray:
    """(H, W, 4) uint8 with other proportions: a smooth random displacement of its parts."""
    if rng.random() >= _BENT_SHARE:
        return rgba
    height, width = rgba.shape[:2]
    room = int(np.ceil(0.08 * max(height, width)))
    rgba = cv2.copyMakeBorder(rgba, room, room, room, room, cv2.BORDER_CONSTANT)
    size_wh = (width + 2 * room, height + 2 * room)
    most = rng.uniform(0.3, 1.0) * _BEND * max(height, width)
    knots = rng.uniform(-most, most, (4, 4, 2)).astype(np.float32)
    moved = cv2.resize(knots, size_wh, interpolation=cv2.INTER_CUBIC)
    moved[..., 0] += np.arange(size_wh[0], dtype=np.float32)
    moved[..., 1] += np.arange(size_wh[1], dtype=np.float32)[:, None]
    return cv2.remap(rgba, moved, None, cv2.INTER_LINEAR)  # type: ignore[call-overload]


def restyle(
    rng: np.random.Generator, rgb: np.ndarray, alpha: np.ndarray, is_painted: bool
) -> tuple[np.ndarray, bool]:
    """Straight colours (H, W, 3) uint8 in another style, and whether their names still hold."""
    keeps_color = True
    if rng.random() < _FLAT_SHARE:
        levels = int(rng.integers(3, 7))
        steps = np.rint(np.arange(256) / 255 * (levels - 1)) * 255 / (levels - 1)
        rgb = cv2.LUT(cv2.medianBlur(rgb, 5), steps.astype(np.uint8))
        keeps_color = is_painted and levels > 4
    if not is_painted and rng.random() < _RECOLORED_SHARE:
        rgb = _recolor(rng, rgb)
        keeps_color = False
    if rng.random() < _LIT_SHARE:
        rgb = _light(rng, rgb)
    if rng.random() < _LINED_SHARE:
        rgb = _draw_lines(rng, rgb, alpha)
    return rgb, keeps_color


def _recolor(rng: np.random.Generator, rgb: np.ndarray) -> np.ndarray:
    """Other hues, more or less vivid, darker or lighter, seldom grey."""
    hsv = cv2.cvtColor(np.ascontiguousarray(rgb), cv2.COLOR_RGB2HSV)
    shift = rng.integers(180) if rng.random() < 0.5 else rng.integers(-12, 13)
    hues = ((np.arange(256) + int(shift)) % 180).astype(np.uint8)
    levels = np.arange(256) / 255
    vivid = 0.0 if rng.random() < 0.15 else rng.uniform(0.4, 1.6)
    tables = (hues, _to_bytes(levels * vivid), _to_bytes(levels ** np.exp(rng.uniform(-0.5, 0.5))))
    hsv = cv2.LUT(hsv, np.dstack([table.reshape(1, 256) for table in tables]))
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)


def _light(rng: np.random.Generator, rgb: np.ndarray) -> np.ndarray:
    """Light that falls in from one side."""
    height, width = rgb.shape[:2]
    angle, strength = rng.uniform(0, 2 * np.pi), rng.uniform(0.1, 0.35)
    x = np.linspace(-1, 1, width, dtype=np.float32) * np.float32(strength * np.cos(angle))
    y = np.linspace(-1, 1, height, dtype=np.float32) * np.float32(strength * np.sin(angle))
    shade = (1 + x[None, :] + y[:, None])[..., None]
    return (rgb * shade).clip(0, 255).astype(np.uint8)


def _draw_lines(rng: np.random.Generator, rgb: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """A dark or light line along the outline and, half the time, along the inner edges."""
    width = max(1, round(max(alpha.shape) * rng.uniform(0.01, 0.035)))
    kernel = np.ones((2 * width + 1, 2 * width + 1), np.uint8)
    line = alpha.astype(np.int16) - cv2.erode(
        alpha, kernel, borderType=cv2.BORDER_CONSTANT, borderValue=0
    )
    if rng.random() < 0.5:
        inner = cv2.morphologyEx(rgb, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)).max(2)
        line = np.maximum(line, (inner.astype(np.int16) - 40).clip(0, 127) * 2)
    share = (line.clip(0, 255) * rng.uniform(0.5, 1.0)).astype(np.float32)[..., None] / 255
    tone = 255.0 if rng.random() < 0.2 else rng.uniform(0, 60)
    return (rgb * (1 - share) + tone * share).astype(np.uint8)


def _to_bytes(values: np.ndarray) -> np.ndarray:
    return (values * 255).clip(0, 255).astype(np.uint8)
