"""Which detection belongs to which object, picture by picture: for looking, not for AP.

The best scored detection chooses first, among the objects that it overlaps by at least the
threshold, the one it overlaps most; each object is taken once. With `same_class` only objects of
the detection's own class can be chosen (right or wrong?), without it any (mistaken for what?).
A detection that only covers a crowd is neither right nor wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vlmtasks.boxes import box_iou

IOU_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Thing:
    """An object or a detection: its class, box in pixels, and for a detection its score."""

    label: str
    box_xyxy: tuple[float, float, float, float]
    score: float = 1.0
    is_crowd: bool = False


@dataclass(frozen=True)
class Matches:
    """pairs: (detection, object) places; missed: objects; wrong: detections that no object took."""

    pairs: tuple[tuple[int, int], ...]
    missed: tuple[int, ...]
    wrong: tuple[int, ...]

    @property
    def quality(self) -> float:
        """F1 of the picture, 1 when there was nothing to find and nothing was found."""
        total = 2 * len(self.pairs) + len(self.missed) + len(self.wrong)
        return 2 * len(self.pairs) / total if total else 1.0


def match(
    truths: Sequence[Thing],
    found: Sequence[Thing],
    *,
    same_class: bool = True,
    iou_threshold: float = IOU_THRESHOLD,
) -> Matches:
    """Pair the detections of one picture with its objects."""
    overlap = box_iou([thing.box_xyxy for thing in found], [thing.box_xyxy for thing in truths])
    if same_class:
        for row, detection in enumerate(found):
            overlap[row, [truth.label != detection.label for truth in truths]] = 0.0
    free = np.array([not truth.is_crowd for truth in truths], dtype=bool)
    pairs: list[tuple[int, int]] = []
    wrong: list[int] = []
    for row in sorted(range(len(found)), key=lambda place: -found[place].score):
        reach = overlap[row] >= iou_threshold
        candidates = np.flatnonzero(reach & free)
        if len(candidates):
            column = int(candidates[overlap[row, candidates].argmax()])
            free[column] = False
            pairs.append((row, column))
        elif not any(_covers(found[row], truth, same_class) for truth in truths if truth.is_crowd):
            wrong.append(row)
    return Matches(tuple(sorted(pairs)), tuple(np.flatnonzero(free).tolist()), tuple(sorted(wrong)))


def _covers(detection: Thing, crowd: Thing, same_class: bool) -> bool:
    """Whether at least half of a detection lies in a crowd, as COCO counts overlap with crowds."""
    if same_class and detection.label != crowd.label:
        return False
    x0, y0, x1, y1 = detection.box_xyxy
    u0, v0, u1, v1 = crowd.box_xyxy
    shared = max(0.0, min(x1, u1) - max(x0, u0)) * max(0.0, min(y1, v1) - max(y0, v0))
    area = (x1 - x0) * (y1 - y0)
    return area > 0 and shared / area >= IOU_THRESHOLD


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Detections with scores in low..high: number, mean score, and the share that is right."""

    low: float
    high: float
    count: int
    score: float
    precision: float


def reliability(scored: Sequence[tuple[float, bool]], bins: int = 10) -> list[ReliabilityBin]:
    """Group (score, right) pairs by score; bins without detections are left out."""
    groups: dict[int, list[tuple[float, bool]]] = {}
    for score, right in scored:
        groups.setdefault(min(int(score * bins), bins - 1), []).append((score, right))
    return [
        ReliabilityBin(
            place / bins,
            (place + 1) / bins,
            len(group),
            sum(score for score, _ in group) / len(group),
            sum(right for _, right in group) / len(group),
        )
        for place, group in sorted(groups.items())
    ]


def calibration_error(bins: Sequence[ReliabilityBin]) -> float | None:
    """Expected calibration error: mean distance of score and precision, weighted by count."""
    count = sum(one.count for one in bins)
    return (
        sum(one.count * abs(one.score - one.precision) for one in bins) / count if count else None
    )
