"""Words in capital letters and digits, drawn on a sign or on the bare background.

A font's glyphs are drawn once, words are put together from them and warped into the picture.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vlmtasks.demo.backgrounds import Split
from vlmtasks.demo.patterns import random_color
from vlmtasks.demo.words import TEST_WORDS, TRAIN_WORDS
from vlmtasks.errors import MissingExtraError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "0123456789"

# package of PyPI → (font file, weights)
_FONT_FILES = {
    "fontpkg_roboto": ("Roboto[wdth,wght].ttf", (400, 700, 900)),
    "fontpkg_roboto_condensed": ("RobotoCondensed[wght].ttf", (500, 800)),
    "fontpkg_roboto_slab": ("RobotoSlab[wght].ttf", (400, 800)),
    "fontpkg_arimo": ("Arimo[wght].ttf", (400, 700)),
    "fontpkg_montserrat": ("Montserrat[wght].ttf", (500, 800)),
    "fontpkg_bitter": ("Bitter[wght].ttf", (500, 800)),
    "fontpkg_oswald": ("Oswald[wght].ttf", (500, 700)),
    "fontpkg_open_sans": ("OpenSans[wdth,wght].ttf", (400, 600, 800)),
}

TEST_FONT = "fontpkg_open_sans"
"""Held out: never used in a training or validation scene."""

TRAIN_FONTS: tuple[str, ...] = tuple(font for font in _FONT_FILES if font != TEST_FONT)

_CAP = 48  # height in pixels of the capitals of the stored glyphs
_MIN_CAP, _MAX_CAP = 0.075, 0.25  # of the picture's side
_LEAST_CONTRAST = 90


@dataclass(frozen=True, eq=False)
class Word:
    """A drawn word: its box and the boxes of its characters (N, 4), x1 y1 x2 y2 in pixels."""

    text: str
    box_xyxy: tuple[float, float, float, float]
    char_boxes_xyxy: np.ndarray


class _Glyph(NamedTuple):
    alpha: np.ndarray  # (H, W) float32, as high as every glyph of the font
    left: int  # where the ink begins and ends
    right: int


class _Block(NamedTuple):
    alpha: np.ndarray  # (H, W) float32, twice the size in the picture
    char_boxes: list[np.ndarray]  # one (N, 4) a word, in pixels of `alpha`


def draw_words(
    rng: np.random.Generator, split: Split, canvas: np.ndarray, lines: int
) -> tuple[tuple[Word, ...], np.ndarray]:
    """Draw so many lines of one word each on canvas (H, W, 3) float32.

    Returns the words in reading order and the mask (H, W) bool of the pixels that they need.
    """
    size = canvas.shape[0]
    texts = [random_text(rng, split) for _ in range(lines)]
    fonts = (TEST_FONT,) if split == "test" else TRAIN_FONTS
    font = fonts[rng.integers(len(fonts))]
    weights = _FONT_FILES[font][1]
    block = _set_block(rng, texts, font, int(weights[rng.integers(len(weights))]), size)
    matrix = _place_block(rng, block.alpha.shape, size)
    ink = cv2.warpAffine(block.alpha, matrix, (size, size), flags=cv2.INTER_LINEAR)
    plate = _plate_mask(block.alpha.shape, matrix, size, margin=int(size * rng.uniform(0.03, 0.09)))
    color = _prepare_ground(rng, canvas, plate)
    canvas *= 1 - ink[..., None]
    canvas += ink[..., None] * color.astype(np.float32)
    words = tuple(
        _make_word(text, _move_boxes(boxes, matrix, size))
        for text, boxes in zip(texts, block.char_boxes, strict=True)
    )
    return words, plate > 0.5


def random_text(rng: np.random.Generator, split: Split) -> str:
    """A word, random letters, a number, or letters with a number.

    Mixtures leave out 0 O 1 I, which a reader could not tell apart.
    """
    choice = rng.random()
    if choice < 0.55:
        words = TEST_WORDS if split == "test" else TRAIN_WORDS
        return words[rng.integers(len(words))]
    if choice < 0.8:
        return _random_string(rng, LETTERS, 2, 6)
    if choice < 0.92:
        return _random_string(rng, DIGITS, 1, 5)
    return _random_string(rng, "ABCDEFGHJKLMNPQRSTUVWXYZ", 1, 3) + _random_string(
        rng, "23456789", 1, 3
    )


def _random_string(rng: np.random.Generator, alphabet: str, least: int, most: int) -> str:
    length = int(rng.integers(least, most + 1))
    return "".join(alphabet[k] for k in rng.integers(len(alphabet), size=length))


@cache
def _load_glyphs(package: str, weight: int) -> dict[str, _Glyph]:
    file, _ = _FONT_FILES[package]
    try:
        path = files(package) / "files" / file
    except ModuleNotFoundError as error:
        raise MissingExtraError(package.replace("_", "-"), "demo-data") from error
    font = ImageFont.truetype(str(path), 100)
    _set_weight(font, weight)
    top, bottom = font.getbbox("H", anchor="ls")[1::2]
    font = ImageFont.truetype(str(path), round(100 * _CAP / (bottom - top)))
    _set_weight(font, weight)
    return {char: _draw_glyph(font, char) for char in LETTERS + DIGITS}


def _set_weight(font: ImageFont.FreeTypeFont, weight: int) -> None:
    """Other axes (width) stay at their defaults."""
    values = []
    for axis in font.get_variation_axes():
        name, default = axis.get("name"), axis.get("default")
        values.append(float(weight) if name == b"Weight" else float(default or 0))
    font.set_variation_by_axes(values)


def _draw_glyph(font: ImageFont.FreeTypeFont, char: str) -> _Glyph:
    """The character on a strip of its advance's width, a few pixels of room above and below."""
    room = 12  # Q and J reach below the line
    width = round(font.getlength(char))
    image = Image.new("L", (width + 2 * room, _CAP + 2 * room))
    ImageDraw.Draw(image).text((room, room + _CAP), char, fill=255, font=font, anchor="ls")
    alpha = np.asarray(image, np.float32) / 255
    inked = np.flatnonzero((alpha > 0.3).any(0))
    alpha = alpha[:, room : room + width]
    return _Glyph(alpha, int(inked[0]) - room, int(inked[-1]) + 1 - room)


def _set_block(
    rng: np.random.Generator, texts: list[str], font: str, weight: int, size: int
) -> _Block:
    """The lines below one another, centred or flush left, at twice their size in the picture."""
    spacing = int(rng.integers(-1, 8))
    lines = [_set_line(_load_glyphs(font, weight), text, spacing) for text in texts]
    longest = max(alpha.shape[1] for alpha, _ in lines)
    most = min(_MAX_CAP * size, 0.9 * size / longest * _CAP, 0.8 * size / (1.5 * len(lines)))
    least = min(_MIN_CAP * size, most)
    scale = 2 * np.exp(rng.uniform(np.log(least), np.log(most))) / _CAP
    scaled = [_scale_line(alpha, boxes, scale) for alpha, boxes in lines]
    centred = rng.random() < 0.6
    width = max(alpha.shape[1] for alpha, _ in scaled)
    block = np.zeros((sum(alpha.shape[0] for alpha, _ in scaled), width), np.float32)
    char_boxes, y = [], 0
    for alpha, boxes in scaled:
        x = (width - alpha.shape[1]) // 2 if centred else 0
        block[y : y + alpha.shape[0], x : x + alpha.shape[1]] = alpha
        char_boxes.append(boxes + np.array([x, y, x, y]))
        y += alpha.shape[0]
    return _Block(block, char_boxes)


def _set_line(glyphs: dict[str, _Glyph], text: str, spacing: int) -> tuple[np.ndarray, np.ndarray]:
    strips, boxes, x = [], [], 0
    for char in text:
        glyph = glyphs[char]
        strip = np.pad(glyph.alpha, ((0, 0), (0, max(spacing, 0))))
        height = strip.shape[0]
        room = (height - _CAP) / 2
        boxes.append((x + glyph.left, room, x + glyph.right, height - room))
        strips.append(strip)
        x += strip.shape[1]
    return np.hstack(strips), np.array(boxes, np.float64)


def _scale_line(
    alpha: np.ndarray, boxes: np.ndarray, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    width, height = (max(1, round(n * scale)) for n in alpha.shape[::-1])
    interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    return cv2.resize(alpha, (width, height), interpolation=interpolation), boxes * scale


def _place_block(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Affine matrix (2, 3) from block pixels to picture pixels; the block stays inside."""
    angle = np.deg2rad(rng.uniform(-8, 8) if rng.random() < 0.7 else 0.0)
    turn = 0.5 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    half = np.abs(turn) @ (shape[1] / 2, shape[0] / 2) + 1
    low, high = np.minimum(half, size / 2), np.maximum(size - half, size / 2)
    center = rng.uniform(low, high)
    return np.column_stack([turn, center - turn @ (shape[1] / 2, shape[0] / 2)])


def _plate_mask(shape: tuple[int, ...], matrix: np.ndarray, size: int, margin: int) -> np.ndarray:
    """Anti-aliased board (H, W) float32 under the block."""
    h, w = shape[:2]
    m = margin
    corners = np.array([[-m, -m / 2], [w + m, -m / 2], [w + m, h + m / 2], [-m, h + m / 2]])
    corners = corners @ matrix[:, :2].T + matrix[:, 2]
    mask = np.zeros((size, size), np.uint8)
    cv2.fillConvexPoly(mask, np.round(corners * 16).astype(np.int32), 255, cv2.LINE_AA, 4)
    return mask.astype(np.float32) / 255


def _prepare_ground(rng: np.random.Generator, canvas: np.ndarray, plate: np.ndarray) -> np.ndarray:
    """Paint the board unless the bare background is calm enough; returns a readable ink colour."""
    light = cv2.cvtColor(canvas.clip(0, 255).astype(np.uint8), cv2.COLOR_RGB2GRAY)[plate > 0.5]
    if light.std() < 22 and rng.random() < 0.7:
        return _contrasting_color(rng, float(light.mean()))
    board = random_color(rng)
    opacity = plate[..., None] * np.float32(rng.uniform(0.85, 1.0))
    canvas *= 1 - opacity
    canvas += opacity * board.astype(np.float32)
    return _contrasting_color(rng, _luminance(board))


def _contrasting_color(rng: np.random.Generator, ground: float) -> np.ndarray:
    for _ in range(20):
        color = random_color(rng) * rng.uniform(0, 1)
        if rng.random() < 0.5:
            color = 255 - color
        if abs(_luminance(color) - ground) > _LEAST_CONTRAST:
            return color
    return np.full(3, 0.0 if ground > 127 else 255.0)


def _luminance(rgb: np.ndarray) -> float:
    return float(rgb @ (0.299, 0.587, 0.114))


def _move_boxes(boxes: np.ndarray, matrix: np.ndarray, size: int) -> np.ndarray:
    """Upright boxes around the warped ones, (N, 4), cut to the picture."""
    corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
    moved = corners @ matrix[:, :2].T + matrix[:, 2]
    return np.hstack([moved.min(1), moved.max(1)]).clip(0, size)


def _make_word(text: str, boxes: np.ndarray) -> Word:
    x1, y1 = boxes[:, :2].min(0).tolist()
    x2, y2 = boxes[:, 2:].max(0).tolist()
    return Word(text, (x1, y1, x2, y2), boxes)
