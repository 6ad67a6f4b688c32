"""COCO detection and segmentation: what is asked, what is kept, how it becomes a score.

Protocol. Of every picture each class is asked on its own ("detect cat"), or all in one prompt
("detect cat ; dog"). The classes are all of the data set, or those present in the picture; the
second is easier, because the truth tells the model what to look for, and must be said with a
figure. Exact repetitions are dropped. Everything that changes a figure stands in the protocol that
is saved with it.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vlmtasks.datasets.coco import CocoDataset, CocoImage
from vlmtasks.datasets.paths import find_pictures
from vlmtasks.errors import DatasetError, ImageError, InputError
from vlmtasks.evaluation.coco_ap import Backend, CocoScores, coco_scores
from vlmtasks.images import open_image
from vlmtasks.results import Detections

if TYPE_CHECKING:
    from PIL import Image

    from vlmtasks.api import VLM

Task = Literal["detect", "segment"]
Classes = Literal["present", "all"]
Prompts = Literal["each", "joined"]

SCORE = "geometric mean of the probabilities of the four location tokens"


@dataclass(frozen=True)
class CocoItem:
    """A picture to ask about, where it lies, and the classes to ask for."""

    image: CocoImage
    path: Path
    labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class CocoOutcome:
    """Results and scores of a run, and what a reader must know about it.

    results: COCO results. detections: by image id, of those pictures that were answered.
    scores: of boxes and, for "segment", of masks. notes: plain sentences.
    failed: the errors of pictures that could not be read, by file name.
    """

    results: list[dict[str, Any]]
    detections: dict[int | str, Detections]
    scores: list[CocoScores]
    notes: list[str]
    failed: dict[str, str]


def plan(
    dataset: CocoDataset,
    images: str | os.PathLike[str],
    classes: Classes,
    *,
    limit: int | None = None,
) -> list[CocoItem]:
    """The pictures to ask about, in the order of the file, all of them looked for first.

    limit: only the first pictures.
    DatasetError: missing pictures, none to ask about, no categories, or two with the same name.
    """
    if not dataset.categories:
        raise DatasetError(f"{dataset.name}: has no categories, so there is nothing to ask for")
    dataset.check_names()
    chosen = list(dataset.images.values())[:limit]
    if not chosen:
        raise DatasetError(f"{dataset.name}: has no pictures to ask about")
    paths = find_pictures(images, (image.file_name for image in chosen))
    annotations = dataset.by_image()
    items = []
    for image in chosen:
        present = {entry.category_id for entry in annotations[image.id]}
        labels = tuple(
            name
            for name in dataset.names()
            if classes == "all" or dataset.category_id(name) in present
        )
        items.append(CocoItem(image, paths[image.file_name], labels))
    return items


def protocol(task: Task, classes: Classes, prompts: Prompts) -> dict[str, Any]:
    """What a figure depends on besides the model and the data, in words."""
    asked = "all classes of the data set" if classes == "all" else "only classes in the picture"
    return {
        "task": task,
        "classes": f"{classes} ({asked})",
        "prompts": "one for each class" if prompts == "each" else "one for all classes",
        "score": SCORE,
        "decoding": "greedy, kept to boxes of the classes that were asked",
    }


def ask(
    vlm: "VLM",
    items: Sequence[CocoItem],
    task: Task,
    prompts: Prompts,
    **options: Any,
) -> list[dict[str, Any]]:
    """The records of a batch: for each picture its answers, or the error that it could not be read.

    A record is {"file_name", "image_size", "answers": [{"labels": asked, **Detections.to_dict()},
    …]}, without answers that are empty, or {"file_name", "error"}. Repetitions are kept, to be
    counted later. options: see `vlmtasks.object_options.ObjectOptions`.
    """
    opened = [_open(item) for item in items]
    pictures = [picture for picture in opened if not isinstance(picture, str)]
    batch = {name: options[name] for name in options if name in ("batch_size", "on_error")}
    encoded = iter(vlm.encode_image(pictures, **batch) if pictures else ())
    records: list[dict[str, Any]] = []
    readable: list[tuple[CocoItem, Any, dict[str, Any]]] = []
    for item, picture in zip(items, opened, strict=True):
        record: dict[str, Any] = {"file_name": item.image.file_name}
        if isinstance(picture, str):
            record["error"] = picture
        else:
            record |= {"image_size": list(picture.size), "answers": []}
            readable.append((item, next(encoded), record))
        records.append(record)
    verb = vlm.detect if task == "detect" else vlm.segment
    for labels in _questions(items, prompts):
        asked = [entry for entry in readable if _is_asked(entry[0], labels, prompts)]
        if not asked:
            continue
        answers = verb([picture for _, picture, _ in asked], labels, unique=False, **options)
        for (_, _, record), answer in zip(asked, answers, strict=True):
            if answer.text:
                record["answers"].append({"labels": list(labels), **answer.to_dict()})
    return records


def score(
    dataset: CocoDataset,
    records: Sequence[Mapping[str, Any]],
    task: Task,
    *,
    deduplicate: bool = True,
    backend: Backend = "pycocotools",
) -> CocoOutcome:
    """Score the records of a run; no model is needed. Pictures without record do not count.

    DatasetError: records that do not belong to the data set or are no records of such a run.
    """
    category_ids = {name: dataset.category_id(name) for name in dataset.names()}
    results: list[dict[str, Any]] = []
    detections: dict[int | str, Detections] = {}
    failed: dict[str, str] = {}
    unknown: Counter[str] = Counter()
    cut = dropped = 0
    for record in records:
        image_id = _image_id(record, dataset)
        if "error" in record:
            failed[str(record.get("file_name"))] = str(record["error"])
            continue
        found, was_cut = _merge(record, deduplicate)
        detections[image_id] = found
        cut += was_cut
        dropped += len(found.dropped)
        unknown.update(name for name in found.labels if dataset.category_id(name) is None)
        known = [dataset.category_id(name) is not None for name in found.labels]
        kept = found[[place for place, is_known in enumerate(known) if is_known]]
        results += kept.to_coco(image_id, category_ids)
    ids = [_image_id(record, dataset) for record in records]
    kinds = ("bbox",) if task == "detect" else ("bbox", "segm")
    scores = [coco_scores(dataset, results, k, image_ids=ids, backend=backend) for k in kinds]  # type: ignore[arg-type]
    return CocoOutcome(results, detections, scores, _notes(failed, unknown, cut, dropped), failed)


def _open(item: CocoItem) -> "Image.Image | str":
    """The picture in the orientation that was annotated, or why it cannot be used."""
    try:
        picture = open_image(item.path)
        if item.image.size_wh in (None, picture.size):
            return picture
        raw = open_image(item.path, keep_orientation=True)
    except ImageError as error:
        return str(error)
    if raw.size == item.image.size_wh:
        return raw
    return f"has {picture.size} pixels (width, height), but is annotated as {item.image.size_wh}"


def _questions(items: Sequence[CocoItem], prompts: Prompts) -> list[tuple[str, ...]]:
    """What to ask, each for all pictures that it is asked about, in a fixed order."""
    if prompts == "joined":
        return list(dict.fromkeys(item.labels for item in items if item.labels))
    return [(name,) for name in dict.fromkeys(name for item in items for name in item.labels)]


def _is_asked(item: CocoItem, labels: tuple[str, ...], prompts: Prompts) -> bool:
    return item.labels == labels if prompts == "joined" else labels[0] in item.labels


def _image_id(record: Mapping[str, Any], dataset: CocoDataset) -> int | str:
    image_id = record.get("id")
    if not isinstance(image_id, (int, str)) or image_id not in dataset.images:
        raise DatasetError(
            f"the predictions hold the picture {image_id!r}, which {dataset.name} does not have; "
            "give the annotations that the run was made with"
        )
    return image_id


def _merge(record: Mapping[str, Any], deduplicate: bool) -> tuple[Detections, bool]:
    """All answers about a picture as one, and whether any was cut."""
    try:
        answers = [Detections.from_dict(answer) for answer in record["answers"]]
        objects = [entry for answer in record["answers"] for entry in answer["objects"]]
        merged = Detections.from_dict(
            {
                "image_size": record["image_size"],
                "objects": objects,
                "text": " | ".join(answer.text for answer in answers if answer.text),
                "dropped": [entry for answer in record["answers"] for entry in answer["dropped"]],
            }
        )
    except (InputError, KeyError, TypeError) as error:
        raise DatasetError(
            f"the predictions for picture {record.get('id')!r} are no detections: {error}"
        ) from None
    was_cut = any(answer.finish_reason == "length" for answer in answers)
    return (merged.deduplicated() if deduplicate else merged), was_cut


def _notes(failed: Mapping[str, str], unknown: Counter[str], cut: int, dropped: int) -> list[str]:
    notes = []
    if failed:
        name, error = next(iter(failed.items()))
        notes.append(
            f"{len(failed)} pictures could not be read and count as empty: {name}: {error}"
        )
    if unknown:
        names = ", ".join(f"{name or '(no label)'} ({n}×)" for name, n in unknown.most_common(5))
        count = sum(unknown.values())
        plural = "" if count == 1 else "s"
        notes.append(f"{count} detection{plural} with unknown label left out: {names}")
    if cut:
        notes.append(f"answers about {cut} pictures were cut at the longest answer allowed")
    if dropped:
        notes.append(f"{dropped} malformed records in answers were left out")
    return notes
