"""The pictures of a report: a small JPEG each, with truth and predictions drawn over it in SVG."""

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import cv2
import numpy as np
from numpy.typing import NDArray

from vlmtasks.errors import ImageError
from vlmtasks.evaluation.matching import Matches, Thing
from vlmtasks.images import open_image
from vlmtasks.rle import RLE, decode_rle

_LONGEST_SIDE = 480
_QUALITY = 78
_LABELLED_THINGS = 24  # in a picture; where there are more, only mistakes carry their names
_SHOWN_WIDTH = 350  # of a picture on the page, about; lines and letters are drawn for it


@dataclass(frozen=True)
class Picture:
    """A picture with its objects, detections and their matches.

    truth_masks, found_masks: run lengths in the same order as truths and found, None without mask.
    """

    name: str
    path: str | os.PathLike[str] | None
    size_wh: tuple[int, int]
    truths: Sequence[Thing]
    found: Sequence[Thing]
    matches: Matches
    truth_masks: Sequence[RLE | None] = field(default=())
    found_masks: Sequence[RLE | None] = field(default=())

    @property
    def is_interesting(self) -> bool:
        return bool(self.truths or self.found)


def choose(pictures: Sequence[Picture], count: int) -> list[tuple[str, str, list[Picture]]]:
    """(heading, explanation, pictures) of the three rows; a picture stands in one row only."""
    wanted = [picture for picture in pictures if picture.is_interesting]
    rows = [
        (
            "Best",
            "all objects found, nothing invented, the most objects first",
            lambda p: p.matches.quality == 1.0 and bool(p.matches.pairs),
            lambda p: (-len(p.matches.pairs), p.name),
        ),
        (
            "Missed",
            "the most objects not found",
            lambda p: bool(p.matches.missed),
            lambda p: (-len(p.matches.missed), p.matches.quality, p.name),
        ),
        (
            "Worst",
            "the most detections that are wrong",
            lambda p: bool(p.matches.wrong),
            lambda p: (-len(p.matches.wrong), p.matches.quality, p.name),
        ),
    ]
    chosen = []
    used: set[str] = set()
    for heading, words, fits, order in rows:
        row = [p for p in sorted(filter(fits, wanted), key=order) if p.name not in used][:count]
        used |= {picture.name for picture in row}
        chosen.append((heading, words, row))
    return chosen


def figure(picture: Picture) -> str:
    """One <figure>: the picture, what is there (dashed), what was found (solid)."""
    width, height = picture.size_wh
    matches = picture.matches
    wrong = set(matches.wrong)
    crowded = len(picture.truths) + len(picture.found) > _LABELLED_THINGS
    shapes = [
        _shape(thing, mask, picture.size_wh, "truth missed" if missed else "truth", missed)
        for place, (thing, mask) in enumerate(_with_masks(picture.truths, picture.truth_masks))
        for missed in [place in matches.missed]
    ]
    shapes += [
        _shape(
            thing,
            mask,
            picture.size_wh,
            "found wrong" if place in wrong else "found",
            place in wrong or not crowded,
        )
        for place, (thing, mask) in enumerate(_with_masks(picture.found, picture.found_masks))
    ]
    jpeg = _jpeg(picture)
    ground = (
        f'<image href="data:image/jpeg;base64,{jpeg}" width="{width}" height="{height}" '
        'preserveAspectRatio="none"></image>'
        if jpeg
        else f'<rect class="nothing" width="{width}" height="{height}"></rect>'
    )
    words = f"{len(matches.pairs)} right, {len(matches.missed)} missed, {len(matches.wrong)} wrong"
    return (
        f'<figure><svg role="img" aria-label="{escape(picture.name)}: {words}" '
        f'viewBox="0 0 {width} {height}" style="--unit:{width / _SHOWN_WIDTH:.3f}px">'
        f"{ground}{''.join(shapes)}</svg>"
        f"<figcaption><b>{escape(picture.name)}</b> {words}</figcaption></figure>"
    )


def _with_masks(
    things: Sequence[Thing], masks: Sequence[RLE | None]
) -> list[tuple[Thing, RLE | None]]:
    return list(zip(things, masks or [None] * len(things), strict=True))


def _shape(
    thing: Thing, mask: RLE | None, size_wh: tuple[int, int], style: str, is_labelled: bool
) -> str:
    x0, y0, x1, y1 = thing.box_xyxy
    label = thing.label or "(no label)"
    words = label if style.startswith("truth") else f"{label} {thing.score:.2f}"
    outline = f'<path d="{_outline(decode_rle(mask), size_wh)}"></path>' if mask else ""
    return (
        f'<g class="{style}"><title>{escape(words)}</title>{outline}'
        f'<rect x="{x0:.1f}" y="{y0:.1f}" width="{x1 - x0:.1f}" height="{y1 - y0:.1f}"></rect>'
        f"{_label(words, thing.box_xyxy, size_wh) if is_labelled else ''}</g>"
    )


def _label(
    words: str, box_xyxy: tuple[float, float, float, float], size_wh: tuple[int, int]
) -> str:
    """Above the box, or inside where the box touches the upper border; never beyond the picture."""
    x0, y0, x1, _ = box_xyxy
    width, height = size_wh
    place = f'y="{max(y0, 0):.1f}" dy="{"-0.3em" if y0 > height * 0.05 else "1.1em"}"'
    if x0 > width * 0.7:
        place += f' x="{min(x1, width):.1f}" dx="-0.2em" class="end"'
    else:
        place += f' x="{max(x0, 0):.1f}" dx="0.2em"'
    return f"<text {place}>{escape(words)}</text>"


def _outline(mask: NDArray[np.bool_], size_wh: tuple[int, int]) -> str:
    """The border of a mask as an SVG path, in pixels of the picture."""
    tolerance = max(size_wh) / 400
    contours, _ = cv2.findContours(
        mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE
    )
    paths = []
    for contour in contours:
        points = cv2.approxPolyDP(contour, tolerance, True)[:, 0]
        if len(points) > 2:
            paths.append("M" + "L".join(f"{x} {y}" for x, y in points.tolist()) + "Z")
    return "".join(paths)


def _jpeg(picture: Picture) -> str | None:
    """A small copy of the picture in base64; None where it cannot be read."""
    if picture.path is None:
        return None
    try:
        image = open_image(picture.path)
    except ImageError:
        return None
    image.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
