"""Pictures with a question and its answers, read from the files of the text benchmarks.

JSON Lines, one example a line, is understood by all of them:

    captions   {"image": "a.jpg", "captions": ["A cat.", …]}
    vqa        {"image": "a.jpg", "question": "how many?", "answers": ["2", …]}   or "answer": "2"
    ocr        {"image": "a.jpg", "text": "STOP"}
    spotting   {"image": "a.jpg", "words": [{"text": "STOP", "box": [x0, y0, x1, y1]}, …]}
    refcoco    {"image": "a.jpg", "phrase": "left cat", "segmentation": polygons or run lengths}

An "id" of its own may be added to a line; the line's number is taken otherwise. Captions and
phrases come from COCO files too, and VQA v2 from its own two files.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmtasks.boxes import xyxy_to_xywh
from vlmtasks.datasets.coco import CocoDataset, annotation_rle, polygons_to_rle
from vlmtasks.datasets.coco_entries import check_segmentation
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.datasets.folder import picture_size
from vlmtasks.datasets.json_files import read_json
from vlmtasks.datasets.jsonl import read_jsonl
from vlmtasks.datasets.paths import find_pictures
from vlmtasks.datasets.problems import Problems
from vlmtasks.errors import DatasetError, InputError
from vlmtasks.evaluation.text_metrics import Word
from vlmtasks.rle import RLE, coco_mask
from vlmtasks.shorten import shorten


@dataclass(frozen=True)
class TextItem:
    """One thing to ask: about which picture, which words, and what is right.

    words: the question or phrase, "" where the task has none. truth: depends on the task.
    """

    id: int | str
    image: str
    words: str
    truth: Any


def read_caption_items(annotations: str | os.PathLike[str]) -> list[TextItem]:
    """Captions: truth is the list of reference captions. A COCO captions file or JSON Lines."""
    if _is_jsonl(annotations):
        return _read_lines(annotations, lambda record: ("", _texts(record, "captions", "caption")))
    dataset = read_coco(annotations)
    items = [
        TextItem(image_id, dataset.images[image_id].file_name, "", texts)
        for image_id, entries in dataset.by_image().items()
        if (texts := [entry.caption for entry in entries if entry.caption is not None])
    ]
    return _required(items, annotations, "captions")


def read_vqa_items(
    annotations: str | os.PathLike[str],
    questions: str | os.PathLike[str] | None = None,
    image_name: str = "COCO_val2014_{:012d}.jpg",
) -> list[TextItem]:
    """Questions: truth is the list of answers. JSON Lines, or VQA v2's two files.

    questions: VQA v2's file of questions, when `annotations` is its file of answers.
    image_name: how VQA v2's picture numbers become names of files, as `str.format` has it.

    DatasetError: lines or entries that are not so; a question that stands there twice, or that
        has no answer.
    InputError: an `image_name` that is no format for a number, or names two pictures alike.
    """
    if questions is None:
        return _read_lines(
            annotations, lambda record: (_text(record, "question"), _answers(record))
        )
    asked = {
        entry["question_id"]: entry for entry in _official(questions, "questions", "question_id")
    }
    items = []
    numbers: dict[str, int] = {}
    for entry in _official(annotations, "annotations", "question_id"):
        question = asked.get(entry["question_id"])
        if question is None:
            raise DatasetError(
                f"{os.fspath(questions)}: has no question {entry['question_id']!r}, which "
                f"{os.fspath(annotations)} answers; do the two files belong together?"
            )
        try:
            answers = [str(answer["answer"]) for answer in entry["answers"]]
            number, words = int(question["image_id"]), str(question["question"])
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DatasetError(
                f"{os.fspath(annotations)}, question {entry['question_id']!r}: is not as in VQA "
                f"v2: {error!r}"
            ) from None
        if not answers:
            raise DatasetError(
                f"{os.fspath(annotations)}, question {entry['question_id']!r}: answers is empty; "
                "it must hold at least one answer"
            )
        name = _picture_name(image_name, number)
        if numbers.setdefault(name, number) != number:
            raise InputError(
                f"image_name is {image_name!r}, which names the pictures {numbers[name]} and "
                f"{number} alike; put {{}} where the number belongs, such as {{:012d}}"
            )
        items.append(TextItem(entry["question_id"], name, words, answers))
    return _required(items, annotations, "answers")


def read_ocr_items(annotations: str | os.PathLike[str]) -> list[TextItem]:
    """Text in pictures: truth is that text. JSON Lines."""
    return _read_lines(annotations, lambda record: ("", _text(record, "text")))


def read_spotting_items(annotations: str | os.PathLike[str]) -> list[TextItem]:
    """Words in pictures: truth is a list of `Word`. JSON Lines."""
    return _read_lines(annotations, lambda record: ("", _words(record)))


def read_referring_items(
    annotations: str | os.PathLike[str], images: str | os.PathLike[str]
) -> list[TextItem]:
    """Phrases: truth is the run lengths of the mask and its box, (RLE, (x0, y0, x1, y1)).

    Of a COCO instances file, the phrases are the names of those classes that a picture holds once.
    """
    if not _is_jsonl(annotations):
        return _required(_single_objects(read_coco(annotations)), annotations, "single objects")
    folder = Path(images)
    return _read_lines(annotations, lambda record: _phrase(record, folder))


# --- one line ------------------------------------------------------------------------------------


def _read_lines(
    path: str | os.PathLike[str], read: Callable[[Mapping[str, Any]], tuple[str, Any]]
) -> list[TextItem]:
    items: list[TextItem] = []
    seen: set[int | str] = set()
    problems = Problems()
    for number, record in read_jsonl(path):
        try:
            item_id = record.get("id", number)
            if not _is_id(item_id) or item_id in seen:
                raise ValueError(f"id is {shorten(item_id)}; it must be a number or str of its own")
            items.append(TextItem(item_id, _text(record, "image"), *read(record)))
            seen.add(item_id)
        except ValueError as error:
            problems.add(f"{os.fspath(path)}, line {number}", str(error))
    problems.raise_if_any()
    return _required(items, path, "examples")


def _is_id(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or (not value and key != "text"):
        raise ValueError(f"{key} is {shorten(value)}; it must be a str")
    return value


def _texts(record: Mapping[str, Any], many: str, one: str) -> list[str]:
    value = record.get(many, [record[one]] if one in record else None)
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError(f"{many} is {shorten(value)}; it must be a list of str, or {one} a str")
    return value


def _answers(record: Mapping[str, Any]) -> list[str]:
    value = record.get("answer")
    if isinstance(value, int) and not isinstance(value, bool):
        return [str(value)]  # counts are numbers in many files
    return _texts(record, "answers", "answer")


def _words(record: Mapping[str, Any]) -> list[Word]:
    words = record.get("words")
    if not isinstance(words, list):
        raise ValueError(f"words is {shorten(words)}; it must be a list")
    found = []
    for word in words:
        if not isinstance(word, Mapping):
            raise ValueError(f"words holds {shorten(word)}; it must hold objects")
        x0, y0, x1, y1 = _box(word.get("box"))
        found.append(Word(_text(word, "text"), (x0, y0, x1, y1)))
    return found


def _box(value: Any) -> tuple[float, float, float, float]:
    try:
        x, y, width, height = xyxy_to_xywh([value])[0].tolist()
    except ValueError:
        raise ValueError(f"box is {shorten(value)}; it must be [x0, y0, x1, y1]") from None
    if width < 0 or height < 0:
        raise ValueError(f"box is {shorten(value)}; it needs x1 >= x0 and y1 >= y0")
    return x, y, x + width, y + height


def _phrase(record: Mapping[str, Any], folder: Path) -> tuple[str, Any]:
    phrase, name = _text(record, "phrase"), _text(record, "image")
    path = find_pictures(folder, [name])[name]
    size_wh = picture_size(path)
    segmentation, _ = check_segmentation(record.get("segmentation"), size_wh)
    if segmentation is None:
        raise ValueError("segmentation is missing; it must be polygons or run lengths")
    rle = segmentation if isinstance(segmentation, dict) else polygons_to_rle(segmentation, size_wh)
    return phrase, (rle, _box(record["box"]) if "box" in record else mask_box(rle))


def _picture_name(pattern: str, number: int) -> str:
    try:
        return pattern.format(number)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(
            f"image_name is {pattern!r}, which cannot be filled with {shorten(number)}: {error}; "
            "it must be like 'COCO_val2014_{:012d}.jpg', one {} for the number of the picture"
        ) from None


# --- whole files ---------------------------------------------------------------------------------


def mask_box(rle: RLE) -> tuple[float, float, float, float]:
    """The box (x0, y0, x1, y1) of a mask's pixels."""
    x, y, width, height = coco_mask.toBbox(rle).tolist()
    return x, y, x + width, y + height


def _single_objects(dataset: CocoDataset) -> list[TextItem]:
    items = []
    for image_id, entries in dataset.by_image().items():
        image = dataset.images[image_id]
        classes = [entry.category_id for entry in entries]
        for entry in entries:
            if entry.is_crowd or entry.category_id is None or classes.count(entry.category_id) > 1:
                continue
            rle = annotation_rle(entry, image)
            if rle is None or entry.bbox_xywh is None:
                continue
            x, y, width, height = entry.bbox_xywh
            box_xyxy = x, y, x + width, y + height
            name = dataset.categories[entry.category_id]
            items.append(TextItem(entry.id, image.file_name, name, (rle, box_xyxy)))
    return items


def _official(path: str | os.PathLike[str], key: str, id_key: str) -> list[Mapping[str, Any]]:
    value = read_json(path)
    entries = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(entries, list) or not all(
        isinstance(entry, Mapping) and _is_id(entry.get(id_key)) for entry in entries
    ):
        raise DatasetError(
            f'{os.fspath(path)}: must be an object with a list "{key}" of objects with "{id_key}", '
            "as VQA v2 has them"
        )
    uses = Counter(entry[id_key] for entry in entries)
    doubled = [found for found, count in uses.items() if count > 1]
    if doubled:
        raise DatasetError(
            f"{os.fspath(path)}: {id_key} {shorten(doubled[0])} stands there "
            f'{uses[doubled[0]]} times; every entry of "{key}" must have its own'
        )
    return entries


def _required(items: list[TextItem], path: str | os.PathLike[str], what: str) -> list[TextItem]:
    if not items:
        raise DatasetError(f"{os.fspath(path)}: holds no {what}")
    return items


def _is_jsonl(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() in (".jsonl", ".ndjson")
