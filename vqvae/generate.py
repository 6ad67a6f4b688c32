"""Endless random masks that resemble instance masks cropped to their boxes.

Each mask is a shape, bent, cut by occluders and by the picture's border, drawn at the size an
object has in a photograph (often only a dozen pixels), cropped to its box and resized to 64×64 as
the codec's users do.
"""

import cv2
import numpy as np
from numpy.random import Generator
from PIL import Image

from vqvae.model import MASK_SIZE
from vqvae.shapes import CANVAS, Mask, random_shape


def random_mask(rng: Generator, silhouettes: np.ndarray) -> Mask:
    """(64, 64) uint8 of 0 … 255, antialiased; ``silhouettes`` (N, s, s) may be empty."""
    while True:
        shape = _thicken(rng, _deform(rng, random_shape(rng, silhouettes)))
        shape = _occlude(rng, shape, silhouettes)
        if rng.random() < 0.5:
            shape = _as_polygon(rng, shape)
        mask = _at_object_size(rng, shape)
        if mask is not None:
            return mask


def random_masks(rng: Generator, count: int, silhouettes: np.ndarray) -> np.ndarray:
    """(count, 64, 64) uint8."""
    return np.stack([random_mask(rng, silhouettes) for _ in range(count)])


def _deform(rng: Generator, shape: Mask) -> Mask:
    angle = rng.normal(0, 12) if rng.random() < 0.75 else rng.uniform(0, 360)
    matrix = cv2.getRotationMatrix2D((CANVAS / 2, CANVAS / 2), angle, rng.uniform(0.75, 1.0))
    matrix[0, 1] += rng.normal(0, 0.15)  # shear
    if rng.random() < 0.5:
        matrix[0] = (-1, 0, CANVAS) @ np.vstack([matrix, (0, 0, 1)])[[0, 1, 2]]
    if rng.random() < 0.5:
        return cv2.warpAffine(shape, matrix, (CANVAS, CANVAS), flags=cv2.INTER_NEAREST)
    grid = np.stack(np.meshgrid(np.arange(CANVAS), np.arange(CANVAS)), -1).astype(np.float32)
    bends = rng.normal(0, rng.uniform(2, 9), (int(rng.integers(3, 7)),) * 2 + (2,))
    bend = cv2.resize(bends.astype(np.float32), (CANVAS, CANVAS), interpolation=cv2.INTER_CUBIC)
    inverse = cv2.invertAffineTransform(matrix).astype(np.float32)
    source = grid @ inverse[:, :2].T + inverse[:, 2] + bend
    return cv2.remap(shape, source[..., 0], source[..., 1], cv2.INTER_NEAREST)


def _thicken(rng: Generator, shape: Mask) -> Mask:
    """Clothes, fur and rough annotation make real figures plumper than their limbs."""
    if rng.random() < 0.45:
        return shape
    size = int(rng.integers(3, 17))
    return cv2.dilate(shape, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (size, size)))


def _occlude(rng: Generator, shape: Mask, silhouettes: np.ndarray) -> Mask:
    draw = rng.random()
    if draw < 0.35:
        return shape
    if draw < 0.55:
        return _cut_by_border(rng, shape)
    for _ in range(1 + int(rng.random() < 0.3)):
        shape = _cut_by_shape(rng, shape, silhouettes)
    return _cut_by_border(rng, shape) if rng.random() < 0.3 else shape


def _cut_by_border(rng: Generator, shape: Mask) -> Mask:
    """Keep one side of one or two straight cuts along the axes (or nearly so)."""
    shape = shape.copy()
    for _ in range(1 + int(rng.random() < 0.35)):
        left, top, width, height = cv2.boundingRect(shape)
        share = rng.uniform(0.3, 0.95)
        side = rng.choice(4, p=(0.25, 0.25, 0.35, 0.15))  # most objects lose their lower part
        if side == 0:
            shape[:, left + int(width * share) :] = 0
        elif side == 1:
            shape[:, : left + int(width * (1 - share))] = 0
        elif side == 2:
            shape[top + int(height * share) :] = 0
        else:
            shape[: top + int(height * (1 - share))] = 0
    return shape


def _cut_by_shape(rng: Generator, shape: Mask, silhouettes: np.ndarray) -> Mask:
    left, top, width, height = cv2.boundingRect(shape)
    cutter = random_shape(rng, silhouettes)
    scale = rng.uniform(0.15, 0.8)
    # mostly across the outline: the middle of the object is seldom behind something
    offset = rng.uniform(-0.5, 0.5, 2)
    if rng.random() < 0.8:
        offset[rng.integers(2)] = rng.choice((-0.5, 0.5)) * rng.uniform(0.7, 1.1)
    target = np.array([left + width / 2, top + height / 2]) + offset * (width, height)
    matrix = np.hstack([np.eye(2) * scale, (target - scale * CANVAS / 2)[:, None]])
    moved = cv2.warpAffine(cutter, matrix, (CANVAS, CANVAS), flags=cv2.INTER_NEAREST)
    cut = np.where(moved > 0, 0, shape).astype(np.uint8)
    return cut if cut.sum() > 0.3 * shape.sum() else shape


def _as_polygon(rng: Generator, shape: Mask) -> Mask:
    """Replace the outline by the few straight edges that an annotator clicks."""
    contours, _ = cv2.findContours(shape, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    tolerance = rng.uniform(1, 5)
    canvas = np.zeros_like(shape)
    outlines = [cv2.approxPolyDP(contour, tolerance, True) for contour in contours]
    cv2.fillPoly(canvas, [outline for outline in outlines if len(outline) > 2], 255)
    return canvas


def _at_object_size(rng: Generator, shape: Mask) -> Mask | None:
    """Draw at the size of an object in a photograph, crop to the box, resize to 64×64."""
    parts, labels, stats, _ = cv2.connectedComponentsWithStats(shape)
    if parts > 2 and rng.random() < 0.6:
        largest = 1 + stats[1:, cv2.CC_STAT_AREA].argmax()
        shape = np.where(labels == largest, 255, 0).astype(np.uint8)
    left, top, width, height = cv2.boundingRect(shape)
    if min(width, height) < 8:
        return None
    crop = shape[top : top + height, left : left + width]
    longest = np.exp(rng.uniform(np.log(10), np.log(320)))
    aspect = width / height * np.exp(rng.normal(0, 0.25))
    size_wh = longest * np.array([min(1, aspect), min(1, 1 / aspect)])
    if size_wh.max() < 160:
        size = tuple(np.maximum(4, np.round(size_wh)).astype(int).tolist())
        small = cv2.resize(crop, size, interpolation=cv2.INTER_AREA)
        crop = np.where(small > 127, 255, 0).astype(np.uint8)
        left, top, width, height = cv2.boundingRect(crop)
        if min(width, height) < 3:
            return None
        crop = crop[top : top + height, left : left + width]
    if rng.random() < 0.25:
        crop = _with_loose_box(rng, crop)
    return _resize_antialiased(crop)


def _with_loose_box(rng: Generator, crop: Mask) -> Mask:
    """Move the sides of the box a little outward or inward, as a model's boxes are."""
    height, width = crop.shape
    share = rng.normal(0, 0.04, 4)
    out = np.maximum(0, np.round(share * (height, height, width, width))).astype(int)
    inward = np.maximum(0, np.round(-share * (height, height, width, width))).astype(int)
    inner = crop[inward[0] : height - inward[1], inward[2] : width - inward[3]]
    return np.pad(inner, ((out[0], out[1]), (out[2], out[3])))


def _resize_antialiased(crop: Mask) -> Mask:
    resized = Image.fromarray(crop).resize((MASK_SIZE, MASK_SIZE), Image.Resampling.BILINEAR)
    return np.asarray(resized)
