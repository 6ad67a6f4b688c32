"""Scores that mean what they say: fit a calibration on a data set, keep it beside the checkpoint.

Protocol. The model is asked as for COCO's AP; a detection is right when it meets an object of its
class at IoU 0.5, every object once. The fitted calibration goes to the checkpoint's
`vlmtasks.json`, see `vlmtasks.tasks.calibration`. Data that the model was trained on makes it look
surer than it is.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmtasks.datasets.coco import CocoDataset
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.errors import CheckpointError
from vlmtasks.evaluation import coco_task
from vlmtasks.evaluation.coco_report import found_things, truth_thing
from vlmtasks.evaluation.matching import calibration_error, match, reliability
from vlmtasks.tasks.calibration import KEY, Calibration, fit_calibration
from vlmtasks.tasks.scores import Score

if TYPE_CHECKING:
    from vlmtasks.api import VLM

FILE_NAME = "vlmtasks.json"


@dataclass(frozen=True)
class Fit:
    """A calibration, how many detections it was made of, and the expected calibration error."""

    calibration: Calibration
    count: int
    error_before: float
    error_after: float


def fit_on_dataset(
    vlm: "VLM",
    dataset: CocoDataset,
    images: Path,
    task: coco_task.Task,
    score: Score,
    *,
    classes: coco_task.Classes = "all",
    batch_size: int = 8,
    limit: int | None = None,
) -> Fit:
    """Ask about every picture and fit. InputError where all or no detections are right."""
    items = coco_task.plan(dataset, images, classes, limit=limit)
    options: dict[str, Any] = {"batch_size": batch_size, "score": score, "calibrate": False}
    records = []
    for start in range(0, len(items), batch_size):
        part = items[start : start + batch_size]
        answers = coco_task.ask(vlm, part, task, "each", **options)
        records += [
            {"id": item.image.id, **answer} for item, answer in zip(part, answers, strict=True)
        ]
    return _fit(judged(dataset, records, task))


def judged(
    dataset: CocoDataset, records: Sequence[dict[str, Any]], task: coco_task.Task
) -> list[tuple[float, bool]]:
    """(score, right) of every detection in the records of a run."""
    outcome = coco_task.score(dataset, records, task)
    annotations = dataset.by_image()
    pairs: list[tuple[float, bool]] = []
    for image_id, found in outcome.detections.items():
        entries = (entry for entry in annotations[image_id] if entry.bbox_xywh is not None)
        truths = [truth_thing(entry, dataset) for entry in entries]
        things = found_things(found, dataset)
        matches = match(truths, things)
        pairs += [(things[place].score, True) for place, _ in matches.pairs]
        pairs += [(things[place].score, False) for place in matches.wrong]
    return pairs


def store(folder: Path, task: coco_task.Task, score: Score, calibration: Calibration) -> Path:
    """Write a calibration to the folder's `vlmtasks.json`, whose other entries stay."""
    path = folder / FILE_NAME
    try:
        content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        entry = content.setdefault(KEY, {}).setdefault(task, {})
        entry[score] = {
            "temperature": round(calibration.temperature, 6),
            "bias": round(calibration.bias, 6),
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be completed, repair or remove it: {error}") from None
    half = path.with_name(path.name + ".part")
    half.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    os.replace(half, path)
    return path


def calibrate(
    vlm: "VLM", annotations: Path, images: Path, task: coco_task.Task, score: Score, **more: Any
) -> int:
    """Fit, store, and say so on stdout. Returns the exit status."""
    fit = fit_on_dataset(vlm, read_coco(annotations), images, task, score, **more)
    path = store(vlm.engine.folder, task, score, fit.calibration)
    print(f"{fit.count} detections of {task}, scored by {score}")
    print(f"calibration error  {fit.error_before:.4f} before, {fit.error_after:.4f} after")
    print(f"temperature        {fit.calibration.temperature:.4f}")
    print(f"bias               {fit.calibration.bias:.4f}")
    print(f"written to         {path}")
    return 0


def _fit(pairs: Sequence[tuple[float, bool]]) -> Fit:
    calibration = fit_calibration([value for value, _ in pairs], [right for _, right in pairs])
    after = [(calibration(value), right) for value, right in pairs]
    before_error, after_error = (
        calibration_error(reliability(some)) or 0.0 for some in (pairs, after)
    )
    return Fit(calibration, len(pairs), before_error, after_error)
