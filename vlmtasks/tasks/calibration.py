"""Scores as probabilities that an object is right.

    calibrated = sigmoid(logit(score) / temperature + bias)

Temperature scaling with an offset (Guo et al., arXiv 1706.04599; Platt 1999): monotonic, so that no
ranking and no average precision changes. The offset is needed because a geometric mean of four bin
probabilities may be 0.1 for a perfectly good box.

A checkpoint keeps it in `vlmtasks.json`, for each task and score:

    {"calibration": {"detect": {"loc": {"temperature": 0.6, "bias": 2.1}}}}
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmtasks.errors import CheckpointError, InputError

KEY = "calibration"
_TINY = 1e-6
_STEPS = 100


@dataclass(frozen=True)
class Calibration:
    """temperature: above 0; bias: any finite number."""

    temperature: float = 1.0
    bias: float = 0.0

    def __call__(self, score: float) -> float:
        return 1 / (1 + math.exp(-min(max(_logit(score) / self.temperature + self.bias, -60), 60)))

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], task: str, score: str
    ) -> "Calibration | None":
        """What a checkpoint's `vlmtasks.json` says, None for nothing. CheckpointError if wrong."""
        entry = metadata.get(KEY, {})
        for key in (task, score):
            if not isinstance(entry, Mapping):
                break
            entry = entry.get(key)
            if entry is None:
                return None
        try:
            found = cls(float(entry["temperature"]), float(entry["bias"]))  # type: ignore[index]
        except (KeyError, TypeError, ValueError, OverflowError):
            found = cls(0.0)
        if not (0 < found.temperature < math.inf and math.isfinite(found.bias)):
            raise CheckpointError(
                f"vlmtasks.json: the {KEY} of {task} by {score} is {entry!r}; it must be "
                '{"temperature": above 0, "bias": a number}'
            )
        return found


def fit_calibration(scores: Sequence[float], right: Sequence[bool]) -> Calibration:
    """The calibration of the largest likelihood, by Newton's method.

    scores: (N,) of 0..1. right: (N,) whether the object was right. InputError unless there are both
    right and wrong ones and right ones score higher on the whole.
    """
    x = np.array([_logit(score) for score in scores])
    y = np.array(right, float)
    if len(x) != len(y) or not 0 < y.sum() < len(y):
        raise InputError("a calibration needs scores of right and of wrong objects, one label each")
    # Platt's targets: never quite 0 or 1, or scores that part right from wrong have no best fit
    y = np.where(y > 0, (y.sum() + 1) / (y.sum() + 2), 1 / (len(y) - y.sum() + 2))
    middle, width = x.mean(), max(float(x.std()), _TINY)
    slope, offset = _logistic_regression((x - middle) / width, y)
    if slope <= 0:
        raise InputError("these scores are no higher for right objects; nothing can be calibrated")
    return Calibration(width / slope, offset - slope * middle / width)


def _logistic_regression(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Slope and offset of the largest likelihood, by Newton's method with halved steps."""
    design = np.stack([x, np.ones_like(x)], axis=1)

    def loss(weights: NDArray[np.float64]) -> float:
        margins = design @ weights
        return float((np.logaddexp(0, margins) - y * margins).sum())

    weights = np.zeros(2)
    for _ in range(_STEPS):
        p = 0.5 + 0.5 * np.tanh(0.5 * (design @ weights))
        curvature = design.T @ (design * (p * (1 - p))[:, None]) + _TINY * np.eye(2)
        step = np.linalg.solve(curvature, design.T @ (y - p))
        while loss(weights + step) > loss(weights) and np.abs(step).max() > _TINY:
            step /= 2
        weights += step
        if np.abs(step).max() < _TINY:
            break
    return float(weights[0]), float(weights[1])


def _logit(score: float) -> float:
    p = min(max(score, _TINY), 1 - _TINY)
    return math.log(p / (1 - p))
