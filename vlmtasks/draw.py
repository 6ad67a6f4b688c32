"""Boxes, labels and masks on a picture, legible on a thumbnail and on a poster."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vlmtasks.categories import normalize_name
from vlmtasks.errors import InputError
from vlmtasks.images import open_image
from vlmtasks.results import Detections
from vlmtasks.shorten import shorten

Colour = tuple[int, int, int]

# Strong colours that differ from each other, and from most of what is photographed.
PALETTE: tuple[Colour, ...] = (
    (255, 64, 87),
    (0, 166, 251),
    (255, 176, 0),
    (29, 185, 84),
    (171, 71, 255),
    (255, 112, 31),
    (0, 201, 183),
    (255, 86, 190),
    (96, 108, 255),
    (173, 214, 0),
    (190, 120, 70),
    (120, 200, 255),
)

_MASK_OPACITY = 0.42
_LONGEST_TAG = 500  # letters of a label that are drawn at most
_DARK: Colour = (20, 20, 24)
_LIGHT: Colour = (255, 255, 255)

# Fonts with more letters than Pillow's own, tried in this order where they are installed.
_FONTS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "Arial.ttf",
    "NotoSansCJK-Regular.ttc",
    "WenQuanYi Micro Hei.ttf",
    "msyh.ttc",
    "PingFang.ttc",
    "Arial Unicode.ttf",
    "seguiemj.ttf",
)


def draw_detections(
    image: Any,
    found: Detections,
    *,
    boxes: bool = True,
    masks: bool = True,
    labels: bool = True,
    scores: bool = True,
    zoom: int = 1,
) -> Image.Image:
    """Return a new RGB picture with the objects drawn on it.

    image: the picture that was asked about, in any form that `open_image` takes.
    boxes, masks, labels, scores: what to draw; scores stand behind labels.
    zoom: enlarge the picture first; masks and letters then are finer than its pixels.

    Each label has a colour of its own, the same in every picture unless two labels collide.
    InputError when the picture has another size than the one that was asked about.
    """
    picture = open_image(image)
    if picture.size != found.image_size:
        raise InputError(
            f"the picture has the size {picture.size}, but the objects were found in one of "
            f"{found.image_size} (width, height); pass the same picture"
        )
    if isinstance(zoom, bool) or not isinstance(zoom, int) or zoom < 1:
        raise InputError(f"zoom is {shorten(zoom)}; it must be a whole number of at least 1")
    if zoom > 1:
        size = picture.width * zoom, picture.height * zoom
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    style = Style.for_size(picture.size)
    colours = label_colours(found.labels)
    canvas = np.array(picture)
    corners = [_pixel_corners(box * zoom, picture.size) for box in found.boxes_xyxy]
    big_first = sorted(range(len(found)), key=lambda i: -_area(corners[i]))
    if masks and found.masks is not None:
        placed = found.masks.resized(picture.size)
        for i in big_first:
            if placed.has_mask(i):
                _draw_mask(canvas, placed[i], colours[found.labels[i]], style)
    if boxes:
        for i in big_first:
            _draw_box(canvas, corners[i], colours[found.labels[i]], style)
    drawn = Image.fromarray(canvas)
    if labels:
        tags = _Tags(drawn, style)
        for i in big_first:
            text = _tag_text(found.labels[i], float(found.scores[i]) if scores else None)
            tags.add(text, corners[i], colours[found.labels[i]])
    return drawn


def label_colours(labels: Iterable[str]) -> dict[str, Colour]:
    """A colour for each label: chosen by its name, the next free one where two would be equal."""
    colours: dict[str, Colour] = {}
    taken: dict[str, int] = {}
    for label in labels:
        name = normalize_name(label)
        if name not in taken:
            place = zlib.crc32(name.encode("utf-8", "replace")) % len(PALETTE)
            while place in taken.values() and len(taken) < len(PALETTE):
                place = (place + 1) % len(PALETTE)
            taken[name] = place
        colours[label] = PALETTE[taken[name]]
    return colours


@dataclass(frozen=True)
class Style:
    """Sizes in pixels, in proportion to the picture.

    line: width of box lines; letters: height of the font; pad: around the letters of a tag.
    """

    line: int
    letters: int
    pad: int

    @classmethod
    def for_size(cls, size_wh: tuple[int, int]) -> "Style":
        side = float(np.sqrt(size_wh[0] * size_wh[1]))
        letters = max(11, round(side * 0.026))
        return cls(line=max(1, round(side * 0.0036)), letters=letters, pad=max(1, letters // 5))


_Corners = tuple[int, int, int, int]  # x0, y0, x1, y1: the first and the last pixel


def _pixel_corners(box_xyxy: NDArray[Any], size_wh: tuple[int, int]) -> _Corners:
    limits = np.array([*size_wh, *size_wh]) - 1
    x0, y0, x1, y1 = np.clip(np.rint(box_xyxy) - [0, 0, 1, 1], 0, limits).astype(int).tolist()
    return x0, y0, max(x0, x1), max(y0, y1)


def _area(corners: _Corners) -> int:
    x0, y0, x1, y1 = corners
    return (x1 - x0) * (y1 - y0)


def _draw_mask(
    canvas: NDArray[np.uint8], mask: NDArray[np.bool_], colour: Colour, style: Style
) -> None:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return
    y0, x0 = rows[0], columns[0]
    inside = mask[y0 : rows[-1] + 1, x0 : columns[-1] + 1]
    region = canvas[y0 : rows[-1] + 1, x0 : columns[-1] + 1]
    plain = np.full_like(region, colour)
    tinted = cv2.addWeighted(region, 1 - _MASK_OPACITY, plain, _MASK_OPACITY, 0)
    np.copyto(region, tinted, where=inside[:, :, None])
    outlines, _ = cv2.findContours(
        inside.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE, offset=(int(x0), int(y0))
    )
    cv2.drawContours(canvas, outlines, -1, colour, max(1, style.line // 2), cv2.LINE_AA)


def _draw_box(canvas: NDArray[np.uint8], corners: _Corners, colour: Colour, style: Style) -> None:
    x0, y0, x1, y1 = corners
    if style.line > 1:  # a dark rim, or the line is lost on a background of its colour
        rim = style.line + max(2, style.line // 2)
        cv2.rectangle(canvas, (x0, y0), (x1, y1), _DARK, rim)
    cv2.rectangle(canvas, (x0, y0), (x1, y1), colour, style.line)


# --- labels --------------------------------------------------------------------------------------


def _tag_text(label: str, score: float | None) -> str:
    printable = label[:_LONGEST_TAG].encode("utf-8", "replace").decode()  # half a pair: no glyph
    words = " ".join(printable.split())
    return words if score is None else f"{words} {score:.2f}".strip()


class _Tags:
    """Labels on coloured plates, each where it hides no other one if there is such a place."""

    def __init__(self, image: Image.Image, style: Style) -> None:
        self._draw = ImageDraw.Draw(image)
        self._size = image.size
        self._style = style
        self._taken: list[_Corners] = []

    def add(self, text: str, corners: _Corners, colour: Colour) -> None:
        if not text:
            return
        font = _font_for(text, self._style.letters)
        text = self._shortened(text, font)
        left, top, right, bottom = self._draw.textbbox((0, 0), text, font=font)
        _, line_top, _, line_bottom = self._draw.textbbox((0, 0), "Ág", font=font)
        top, bottom = min(top, line_top), max(bottom, line_bottom)  # plates of one height
        pad = self._style.pad
        plate_wh = round(right - left) + 2 * pad, round(bottom - top) + 2 * pad
        x0, y0, x1, y1 = self._place(corners, plate_wh)
        self._taken.append((x0, y0, x1, y1))
        self._draw.rectangle((x0, y0, x1 - 1, y1 - 1), fill=colour)
        ink = _DARK if _luminance(colour) > 0.36 else _LIGHT
        self._draw.text((x0 + pad - left, y0 + pad - top), text, font=font, fill=ink)

    def _place(self, corners: _Corners, plate_wh: tuple[int, int]) -> _Corners:
        x0, y0, x1, y1 = corners
        width, height = plate_wh
        half = self._style.line // 2
        left, right = x0 - half, x1 + half + 1 - width
        above, below = y0 - half - height + 1, y1 + half
        candidates = [
            (left, above),
            (left, y0 - half),
            (right, above),
            (left, below),
            (right, y0 - half),
            (left, y1 + half + 1 - height),
            (right, below),
        ]
        places = [(x, y, x + width, y + height) for x, y in candidates]
        free = [place for place in places if self._fits(place)]
        x, y, _, _ = free[0] if free else places[0] if above >= 0 else places[1]
        x = max(0, min(x, self._size[0] - width))
        y = max(0, min(y, self._size[1] - height))
        return x, y, x + width, y + height

    def _fits(self, place: _Corners) -> bool:
        x0, y0, x1, y1 = place
        slack = self._style.line  # a little outside is moved inside
        if y0 < 0 or x0 < -slack or x1 > self._size[0] + slack or y1 > self._size[1]:
            return False
        return not any(
            x0 < right and left < x1 and y0 < bottom and top < y1
            for left, top, right, bottom in self._taken
        )

    def _shortened(self, text: str, font: Any) -> str:
        room = self._size[0] - 2 * self._style.pad
        if self._draw.textlength(text, font=font) <= room:
            return text
        fits, too_long = 0, len(text)  # letters
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            if self._draw.textlength(text[:middle] + "…", font=font) <= room:
                fits = middle
            else:
                too_long = middle
        return text[:fits] + "…"


def _luminance(colour: Colour) -> float:
    """Relative luminance, 0..1 (WCAG 2)."""
    linear = (np.array(colour) / 255) ** 2.2
    return float(linear @ (0.2126, 0.7152, 0.0722))


def _font_for(text: str, letters: int) -> Any:
    """Pillow's own font, or of those that are installed the one that lacks the fewest letters."""
    best = _load_font(None, letters)
    fewest = _missing_letters(best, text)
    for name in _FONTS:
        font = _load_font(name, letters) if fewest else None
        if font is not None and _missing_letters(font, text) < fewest:
            best, fewest = font, _missing_letters(font, text)
    return best


@lru_cache(maxsize=64)
def _load_font(name: str | None, letters: int) -> Any:
    if name is None:
        return ImageFont.load_default(letters)
    try:
        return ImageFont.truetype(name, letters)
    except OSError:  # not installed
        return None


def _missing_letters(font: Any, text: str) -> int:
    missing = bytes(font.getmask("\U0010fffe"))  # the box that stands for a missing letter
    return sum(
        not letter.isspace() and bytes(font.getmask(letter)) == missing for letter in set(text)
    )
