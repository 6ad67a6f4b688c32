"""Random shapes on a canvas: polygons, blobs, figures with limbs, furniture, silhouettes."""

from collections.abc import Callable

import cv2
import numpy as np
from numpy.random import Generator

CANVAS = 192
Mask = np.ndarray  # (h, w) uint8 of 0 or 255


def random_shape(rng: Generator, silhouettes: np.ndarray) -> Mask:
    """(192, 192) uint8 of 0 or 255; three in ten are silhouettes (N, s, s), where N > 0."""
    if len(silhouettes) and rng.random() < 0.30:
        return _silhouette(rng, silhouettes)
    makers: list[tuple[float, Callable[[Generator], Mask]]] = [
        (0.19, _polygon),
        (0.23, _blob),
        (0.10, _rotated_box),
        (0.22, _person),
        (0.12, _animal),
        (0.09, _furniture),
        (0.05, _stroke),
    ]
    pick = rng.choice(len(makers), p=[weight for weight, _ in makers])
    return makers[pick][1](rng)


def _silhouette(rng: Generator, silhouettes: np.ndarray) -> Mask:
    chosen = silhouettes[rng.integers(len(silhouettes))]
    enlarged = cv2.resize(chosen, (144, 144), interpolation=cv2.INTER_LINEAR)
    return np.pad(np.where(enlarged > 127, 255, 0).astype(np.uint8), (CANVAS - 144) // 2)


def _fill(points_xy: np.ndarray) -> Mask:
    canvas = np.zeros((CANVAS, CANVAS), np.uint8)
    cv2.fillPoly(canvas, [np.round(points_xy).astype(np.int32)], 255)
    return canvas


def _ring_points(radius: np.ndarray, angles: np.ndarray) -> np.ndarray:
    return CANVAS / 2 + 80 * radius[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)


def _polygon(rng: Generator) -> Mask:
    count = int(rng.integers(3, 12))
    steps = rng.uniform(0.3, 1, count).cumsum()
    angles = steps / steps[-1] * 2 * np.pi + rng.uniform(0, 2 * np.pi)
    return _fill(_ring_points(rng.uniform(rng.uniform(0.3, 0.95), 1, count), angles))


def _blob(rng: Generator) -> Mask:
    angles = np.linspace(0, 2 * np.pi, 90, endpoint=False)
    waves = np.arange(2, 10)
    amplitudes = rng.normal(0, rng.uniform(0.02, 0.4), 8) / waves ** rng.uniform(0.6, 1.6)
    phases = rng.uniform(0, 2 * np.pi, 8)
    radius = 1 + (amplitudes * np.cos(angles[:, None] * waves + phases)).sum(1)
    return _fill(_ring_points(np.clip(radius, 0.15, None) / radius.max(), angles))


def _rotated_box(rng: Generator) -> Mask:
    sides = rng.uniform((0.6, 0.12), (1.0, 0.9)) * 80
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * sides
    corners[:2] *= rng.uniform(0.5, 1)  # a trapezoid
    angle = rng.normal(0, 0.15) if rng.random() < 0.6 else rng.uniform(0, np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return _fill(corners @ turn + CANVAS / 2)


def _limb(
    canvas: Mask,
    rng: Generator,
    start_xy: np.ndarray,
    direction: float,
    length: float,
    width: float,
) -> None:
    """Two tapering segments with a bend between them."""
    point = start_xy
    for part in range(2):
        end = point + length / 2 * np.array([np.cos(direction), np.sin(direction)])
        thickness = max(1, round(width * (1 - 0.25 * part)))
        cv2.line(canvas, _pixel(point), _pixel(end), 255, thickness)
        point, direction = end, direction + rng.normal(0, 0.5)


def _ellipse(canvas: Mask, center_xy: np.ndarray, radii: np.ndarray, degrees: float = 0) -> None:
    axes = _pixel(np.maximum(1, radii))
    cv2.ellipse(canvas, _pixel(center_xy), axes, degrees, 0, 360, 255, -1)


def _pixel(point_xy: np.ndarray) -> tuple[int, int]:
    x, y = np.round(point_xy).astype(int).tolist()
    return x, y


def _person(rng: Generator) -> Mask:
    canvas = np.zeros((CANVAS, CANVAS), np.uint8)
    shoulder, hip = rng.uniform(13, 30), rng.uniform(9, 24)
    top, bottom = 56.0, rng.uniform(92, 120)
    lean = rng.normal(0, 8)
    torso = [
        (96 - shoulder, top),
        (96 + shoulder, top),
        (96 + lean + hip, bottom),
        (96 + lean - hip, bottom),
    ]
    cv2.fillPoly(canvas, [np.round(torso).astype(np.int32)], 255)
    head = rng.uniform(8, 17)
    _ellipse(
        canvas, np.array([96 + rng.normal(0, 5), top - head * 0.9]), np.array([head * 0.85, head])
    )
    width = rng.uniform(7, 16)
    for side in (-1, 1):
        _limb(
            canvas,
            rng,
            np.array([96 + side * (shoulder - 3), top + 5]),
            np.pi / 2 - side * rng.uniform(-0.3, 1.8),
            rng.uniform(40, 70),
            width,
        )
        _limb(
            canvas,
            rng,
            np.array([96 + lean + side * hip * 0.6, bottom]),
            np.pi / 2 - side * rng.uniform(-0.2, 0.7),
            rng.uniform(40, 75),
            width * 1.4,
        )
    return canvas


def _animal(rng: Generator) -> Mask:
    canvas = np.zeros((CANVAS, CANVAS), np.uint8)
    length, height = rng.uniform(35, 55), rng.uniform(14, 30)
    _ellipse(canvas, np.array([96, 90]), np.array([length, height]), rng.normal(0, 8))
    width = rng.uniform(5, 15)
    for x in (-0.8, -0.55, 0.5, 0.8):
        _limb(
            canvas,
            rng,
            np.array([96 + x * length, 96]),
            np.pi / 2 + rng.normal(0, 0.25),
            rng.uniform(40, 65),
            width,
        )
    neck = np.array([96 + length * 0.8, 85.0])
    rise = rng.uniform(-1.6, 0.4)
    reach = rng.uniform(10, 45)
    _limb(canvas, rng, neck, rise, reach, rng.uniform(10, 26))
    head = neck + reach * np.array([np.cos(rise), np.sin(rise)])
    _ellipse(canvas, head, rng.uniform((9, 7), (22, 14)), rng.uniform(-40, 60))
    if rng.random() < 0.6:
        _limb(canvas, rng, np.array([96 - length * 0.9, 85.0]), np.pi + rng.normal(0, 0.9), 40, 6)
    return canvas


def _furniture(rng: Generator) -> Mask:
    """A few upright boxes, often a top with legs: tables, chairs, benches, carts."""
    canvas = np.zeros((CANVAS, CANVAS), np.uint8)
    top = int(rng.integers(60, 110))
    left, right = 96 - int(rng.integers(30, 75)), 96 + int(rng.integers(30, 75))
    cv2.rectangle(canvas, (left, top), (right, top + int(rng.integers(8, 50))), 255, -1)
    for leg in range(int(rng.integers(0, 5))):
        x = left + (right - left) * leg / 3 + rng.normal(0, 4)
        cv2.line(
            canvas,
            (round(x), top),
            (round(x + rng.normal(0, 8)), int(rng.integers(130, 180))),
            255,
            int(rng.integers(4, 16)),
        )
    for _ in range(int(rng.integers(0, 3))):
        x, y = rng.integers(left, right), rng.integers(20, top)
        cv2.rectangle(canvas, (int(x), int(y)), (int(x + rng.integers(15, 60)), top + 5), 255, -1)
    return canvas


def _stroke(rng: Generator) -> Mask:
    canvas = np.zeros((CANVAS, CANVAS), np.uint8)
    points = rng.uniform(20, CANVAS - 20, (int(rng.integers(2, 5)), 2)).astype(np.int32)
    cv2.polylines(canvas, [points], bool(rng.random() < 0.15), 255, int(rng.integers(8, 44)))
    return canvas
