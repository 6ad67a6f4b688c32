"""The charts of a report as inline SVG: precision and recall, reliability, confusion.

Colours come from the page's style sheet by class, so that the charts follow its light and dark
looks. Every mark carries a <title>, which a browser shows when one points at it.
"""

import math
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from vlmtasks.evaluation.coco_ap import IOU_THRESHOLDS, RECALLS
from vlmtasks.evaluation.matching import ReliabilityBin

_SIDE = 300  # of the plotted square, in SVG units
_LEFT, _TOP, _RIGHT, _BOTTOM = 44, 12, 12, 40
_CELL = 26  # of the confusion matrix


def precision_recall_chart(precision: NDArray[np.float64]) -> str:
    """Curves at IoU 0.5, 0.75 and the mean of all ten, over the classes that have objects.

    precision: (10, 101, classes), NaN for classes without objects, as `CocoScores.precision`.
    """
    known = precision[:, :, ~np.isnan(precision).all(axis=(0, 1))]
    if known.shape[2] == 0:
        return _nothing("No class has an object, so there is no curve.")
    curves = [
        ("IoU 0.50", "curve-1", known[0].mean(axis=1)),
        ("IoU 0.75", "curve-2", known[5].mean(axis=1)),
        ("IoU 0.50–0.95", "curve-3", known.mean(axis=(0, 2))),
    ]
    assert math.isclose(IOU_THRESHOLDS[5], 0.75)
    parts = [_axes("recall", "precision")]
    for place, (name, style, values) in enumerate(curves):
        points = " ".join(f"{_x(r):.1f},{_y(p):.1f}" for r, p in zip(RECALLS, values, strict=True))
        parts.append(
            f'<polyline class="curve {style}" points="{points}"><title>{name}: mean precision '
            f"{values.mean():.3f}</title></polyline>"
        )
        parts.append(_legend(place, f"{name}: {values.mean():.3f}", style))
    return _svg("Precision against recall, mean of the classes", parts)


def reliability_chart(bins: Sequence[ReliabilityBin]) -> str:
    """The share of right detections against their score; on the diagonal a score is honest."""
    if not bins:
        return _nothing("Nothing was detected, so there are no scores to judge.")
    most = max(one.count for one in bins)
    parts = [_axes("score", "share that is right")]
    parts.append(f'<line class="guide" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"></line>')
    for one in bins:
        width = (_x(one.high) - _x(one.low)) * 0.86
        left = (_x(one.low) + _x(one.high) - width) / 2
        opacity = 0.25 + 0.75 * one.count / most
        parts.append(
            f'<rect class="bar" style="opacity:{opacity:.2f}" x="{left:.1f}" '
            f'y="{_y(one.precision):.1f}" width="{width:.1f}" '
            f'height="{max(_y(0) - _y(one.precision), 1):.1f}"><title>scores {one.low:.1f} to '
            f"{one.high:.1f}: {one.count} detections, mean score {one.score:.2f}, "
            f"{one.precision:.0%} right</title></rect>"
            f'<circle class="dot" cx="{_x(one.score):.1f}" cy="{_y(one.precision):.1f}" r="4">'
            f"</circle>"
        )
    parts.append(f'<line class="guide" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"></line>')
    return _svg("Share of right detections against their score", parts)


def confusion_chart(rows: Sequence[str], columns: Sequence[str], counts: NDArray[np.int64]) -> str:
    """What objects were taken for. rows: true classes; columns: predicted; counts (rows, columns).

    The shade of a cell is its share of the row.
    """
    left, top = 8 * max(map(len, rows)) + 16, 7 * max(map(len, columns)) + 16
    width = left + _CELL * len(columns) + 4 * len(columns[-1]) + 8  # names lean to the right
    height = top + _CELL * len(rows) + 8
    parts = []
    for place, name in enumerate(columns):
        x = left + _CELL * (place + 0.62)
        parts.append(
            f'<text class="name" transform="translate({x:.0f},{top - 6}) rotate(-60)">'
            f"{escape(name)}</text>"
        )
    for row, name in enumerate(rows):
        y = top + _CELL * row
        total = max(int(counts[row].sum()), 1)
        parts.append(
            f'<text class="name end" x="{left - 8}" y="{y + _CELL * 0.68:.0f}">'
            f"{escape(name)}</text>"
        )
        for column, other in enumerate(columns):
            count = int(counts[row, column])
            style = "hit" if name == other else "mistake"
            x = left + _CELL * column
            parts.append(
                f'<rect class="cell" x="{x}" y="{y}" width="{_CELL - 2}" height="{_CELL - 2}">'
                f"<title>{escape(name)} as {escape(other)}: {count}</title></rect>"
            )
            if count:
                parts.append(
                    f'<rect class="cell {style}" style="opacity:{0.15 + 0.85 * count / total:.2f}" '
                    f'x="{x}" y="{y}" width="{_CELL - 2}" height="{_CELL - 2}"></rect>'
                    f'<text class="count" x="{x + _CELL / 2 - 1:.0f}" y="{y + _CELL * 0.64:.0f}">'
                    f"{count}<title>{escape(name)} as {escape(other)}: {count}</title></text>"
                )
    return (
        f'<div class="wide"><svg role="img" aria-label="Confusion of classes" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}">{"".join(parts)}</svg></div>'
    )


def _svg(title: str, parts: list[str]) -> str:
    width, height = _LEFT + _SIDE + _RIGHT, _TOP + _SIDE + _BOTTOM
    return (
        f'<svg class="chart" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'
    )


def _axes(x_name: str, y_name: str) -> str:
    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<line class="grid" x1="{_x(0)}" y1="{_y(tick)}" x2="{_x(1)}" y2="{_y(tick)}"></line>'
            f'<line class="grid" x1="{_x(tick)}" y1="{_y(0)}" x2="{_x(tick)}" y2="{_y(1)}"></line>'
            f'<text class="tick end" x="{_LEFT - 6}" y="{_y(tick) + 4:.0f}">{tick:g}</text>'
            f'<text class="tick middle" x="{_x(tick):.0f}" y="{_y(0) + 16:.0f}">{tick:g}</text>'
        )
    middle = _LEFT + _SIDE / 2
    parts.append(f'<text class="axis middle" x="{middle}" y="{_y(0) + 34:.0f}">{x_name}</text>')
    parts.append(
        f'<text class="axis middle" transform="translate(11,{_TOP + _SIDE / 2}) rotate(-90)">'
        f"{y_name}</text>"
    )
    return "".join(parts)


def _legend(place: int, text: str, style: str) -> str:
    y = _TOP + 20 + 18 * place
    x = _x(0.48)
    return (
        f'<line class="curve {style}" x1="{x:.0f}" y1="{y - 4}" x2="{x + 18:.0f}" y2="{y - 4}">'
        f'</line><text class="tick" x="{x + 24:.0f}" y="{y}">{text}</text>'
    )


def _nothing(sentence: str) -> str:
    return f'<p class="note">{sentence}</p>'


def _x(value: float) -> float:
    return _LEFT + _SIDE * float(value)


def _y(value: float) -> float:
    return _TOP + _SIDE * (1 - float(value))
