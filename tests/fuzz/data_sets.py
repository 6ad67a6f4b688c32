"""COCO files, saved predictions, training data in four formats, and the files of the benchmarks."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from tests.fuzz.cases import Target
from tests.fuzz.mutations import (
    TEXTS,
    Raw,
    clear,
    dump_json,
    json_bytes,
    mutate_bytes,
    mutate_json,
    put,
)
from vlmtasks.datasets.coco import CocoDataset, to_coco_dict
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.datasets.coco_results import read_results
from vlmtasks.datasets.jsonl import read_examples, read_jsonl
from vlmtasks.datasets.paligemma_examples import coco_examples
from vlmtasks.datasets.paths import find_picture
from vlmtasks.datasets.voc import read_voc
from vlmtasks.datasets.yolo import read_yolo
from vlmtasks.evaluation import coco_task, text_items
from vlmtasks.evaluation.coco_ap import coco_scores
from vlmtasks.evaluation.run import read_predictions, run_predictions
from vlmtasks.results import Detections

_RLE = {"size": [60, 100], "counts": [10, 90, 5900]}
INSTANCES: dict[str, Any] = {
    "images": [
        {"id": 1, "file_name": "a.png", "width": 100, "height": 60},
        {"id": 7, "file_name": "sub/b.png", "width": 100, "height": 60},
    ],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 3, "bbox": [10, 5, 30, 40], "area": 1200,
         "iscrowd": 0, "segmentation": [[10, 5, 40, 5, 40, 45, 10, 45]]},
        {"id": 2, "image_id": 7, "category_id": 9, "bbox": [0, 0, 100, 60], "area": 90,
         "iscrowd": 1, "segmentation": _RLE},
        {"id": 3, "image_id": 7, "category_id": 3, "bbox": [1, 2, 3, 4]},
        {"id": 4, "image_id": 7, "caption": "a cat"},
    ],
    "categories": [{"id": 3, "name": "cat"}, {"id": 9, "name": "stop sign"}],
}  # fmt: skip
RESULTS: list[Any] = [
    {"image_id": 1, "category_id": 3, "bbox": [11, 5, 30, 40], "score": 0.9},
    {"image_id": 7, "category_id": 9, "bbox": [0, 0, 90, 50], "score": 0.5, "segmentation": _RLE},
    {"image_id": 7, "category_id": 3, "score": 1,
     "segmentation": {"size": [60, 100], "counts": "T3b1jf5"}},
]  # fmt: skip


class Encoder:
    def encode(self, masks: Any) -> Any:
        return np.arange(len(masks) * 16).reshape(-1, 16) % 128


# --- COCO ----------------------------------------------------------------------------------------


def make_coco(random: Random) -> tuple[bytes, bytes, Random]:
    truths, results = INSTANCES, RESULTS
    if random.random() < 0.5:
        truths = mutate_json(random, INSTANCES, most=2)
    if random.random() < 0.5:
        results = mutate_json(random, RESULTS)
    root: Any = random.choice((truths,) * 20 + (results, [], Raw("[" * 99_999)))
    rows: Any = random.choice((results, results, results, {"annotations": results}, truths))
    return json_bytes(random, root), json_bytes(random, rows), random


def feed_coco(value: tuple[bytes, bytes, Random], folder: Path) -> None:
    truths, results, random = value
    put(random, folder / "instances.json", truths)
    put(random, folder / "results.json", results)
    dataset = read_coco(folder / "instances.json")
    again = read_coco(json.loads(json.dumps(to_coco_dict(dataset))))
    assert len(again.annotations) == len(dataset.annotations)
    _as_examples(dataset)
    coco_scores(dataset, [], "bbox")
    rows = read_results(folder / "results.json", dataset)
    for kind in ("bbox", "segm"):
        coco_scores(dataset, rows, kind)


def _as_examples(dataset: CocoDataset) -> None:
    coco_examples(dataset, "detect", one_class_each=True, empty_images="keep")
    sides = [image.size_wh for image in dataset.images.values()]
    if all(size is None or size[0] * size[1] < 10**6 for size in sides):
        coco_examples(dataset, "segment", codec=Encoder())


# --- predictions ---------------------------------------------------------------------------------

_SAVED: dict[str, Any] = {
    "image_size": [100, 60],
    "objects": [{"label": "cat", "score": 0.5, "box_xyxy": [1, 2, 30, 40],
                 "mask": {"size": [60, 100], "counts": "T3b1jf5"}}],
    "text": "<loc0001> cat",
    "finish_reason": "stop",
    "dropped": [{"problem": "truncated", "label": "", "loc_yxyx": [1], "span": [0, 9]}],
}  # fmt: skip
_HEAD = {"a": 1, "batch_size": 1, "note": {}}
_PREDICTIONS: list[Any] = [
    {"run": _HEAD},
    {"id": 1, "file_name": "a.png", "image_size": [100, 60],
     "answers": [{"labels": ["cat"], **_SAVED}]},
    {"id": 7, "file_name": "b.png", "error": "is truncated"},
]  # fmt: skip


def make_predictions(random: Random) -> tuple[bytes, Any, Random]:
    lines = mutate_json(random, _PREDICTIONS)
    data = "".join(dump_json(line) + "\n" for line in lines).encode()
    if random.random() < 0.3:
        data = mutate_bytes(random, data)
    saved = json_bytes(random, mutate_json(random, _SAVED))
    return data, saved, random


def feed_predictions(value: tuple[bytes, bytes, Random], folder: Path) -> None:
    data, saved, random = value
    path = folder / "predictions.jsonl"
    steps = (_feed_saved, _feed_run, _feed_scores)
    clear(path)
    path.write_bytes(data)
    random.choice(steps)(path, saved)


def _feed_saved(_: Path, saved: bytes) -> None:
    try:
        value = json.loads(saved)
    except (ValueError, RecursionError):
        return  # the caller's own error
    found = Detections.from_dict(value)
    assert Detections.from_dict(json.loads(found.to_json())).to_dict() == found.to_dict()
    Detections.from_coco(value, (100, 60), {"cat": 3})


def _feed_run(path: Path, _: bytes) -> None:
    _, records = run_predictions(
        path, [1, 7], lambda batch: [{} for _ in batch], item_id=int, head={"a": 1}, batch_size=1
    )
    assert [record["id"] for record in records] == [1, 7]


def _feed_scores(path: Path, _: bytes) -> None:
    dataset = read_coco(INSTANCES)
    _, records = read_predictions(path)
    coco_task.score(dataset, records, "segment")


# --- training data -------------------------------------------------------------------------------

_EXAMPLE = {
    "image": "a.png",
    "prefix": "detect cat",
    "suffix": "<loc0001><loc0002><loc0300><loc0400> cat",
}
_VOC = """<?xml version="1.0" encoding="utf-8"?>
<annotation><folder>x</folder><filename>a.png</filename>
<size><width>100</width><height>60</height><depth>3</depth></size>
<object><name>cat</name><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox></object>
<object><name>dog</name><bndbox><xmin>5.5</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox>
</object></annotation>
"""
_XML = (
    "<", ">", "</object>", "<object>", "<a b='c'>", "<!-- -->", "<![CDATA[", "]]>", "&lt;",
    "&x;", "&#0;", "&#x110000;", '<!DOCTYPE a [<!ENTITY x "y">]>', "\n" * 9999, "<a>" * 99,
    "nan", "-1", "1e9", "9" * 400, "utf-16", "latin-1", "klingon", "<?x y?>", "",
)  # fmt: skip
_YOLO = "0 0.5 0.5 0.2 0.2\n1 0.1 0.1 0.5 0.1 0.5 0.6\n"
_YOLO_WORDS = (
    "0", "1", "-1", "2", "0.5", "1e308", "nan", "inf", "x", "1_0", "٣", "", "\n", "0.0", "1.5",
    "9" * 400, "-0.5", "\u2028", "\0",
)  # fmt: skip


def make_training(random: Random) -> tuple[str, bytes, Random]:
    kind = random.choice(("jsonl", "voc", "yolo", "name"))
    if kind == "jsonl":
        count = random.choice((1, 2, 5))
        lines = [dump_json(mutate_json(random, [_EXAMPLE])[0:1] or [0])[1:-1] for _ in range(count)]
        data = random.choice(("\n", "\n", "\r\n", "\n\n \n", "\u2028")).join(lines).encode()
    elif kind == "voc":
        data = _replaced(random, _VOC, _XML)
    elif kind == "yolo":
        data = _replaced(random, _YOLO, _YOLO_WORDS)
    else:
        pieces = (*TEXTS, "a.png", "/", "\\", "..", ".", "sub", "%2f", "%00")
        data = "".join(random.choices(pieces, k=few_pieces(random))).encode(
            "utf-8", "surrogatepass"
        )
    if random.random() < 0.3 and kind != "name":
        data = mutate_bytes(random, data)
    return kind, data, random


def few_pieces(random: Random) -> int:
    return random.choice((1, 1, 2, 3, 6))


def _replaced(random: Random, text: str, pieces: tuple[str, ...]) -> bytes:
    """Some words or tags of a text replaced or put in."""
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        at = random.randrange(len(text) + 1)
        end = at + random.choice((0, 1, 3, 10))
        text = text[:at] + random.choice(pieces) + text[end:]
    return text.encode(random.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16")))


def feed_training(value: tuple[str, bytes, Random], folder: Path) -> None:
    kind, data, random = value
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    if not (pictures / "a.png").exists():
        Image.new("RGB", (100, 60)).save(pictures / "a.png")
    if kind == "jsonl":
        put(random, folder / "train.jsonl", data)
        read_examples(folder / "train.jsonl")
    elif kind == "voc":
        put(random, folder / "voc" / "a.xml", data)
        dataset = read_voc(folder / "voc", skip_bad=random.random() < 0.3)
        read_coco(json.loads(json.dumps(to_coco_dict(dataset))))
        _as_examples(dataset)
    elif kind == "yolo":
        put(random, folder / "labels" / "a.txt", data)
        put(random, folder / "names.txt", _replaced(random, "cat\ndog\n", _YOLO_WORDS))
        names = random.choice((["cat", "dog"], folder / "names.txt"))
        dataset = read_yolo(pictures, folder / "labels", names, skip_bad=random.random() < 0.3)
        _as_examples(dataset)
    else:
        path = find_picture(pictures, data.decode("utf-8", "surrogatepass"))
        assert path is None or path.resolve().is_relative_to(pictures.resolve()), "left the folder"


# --- benchmarks ----------------------------------------------------------------------------------

_LINES: dict[str, dict[str, Any]] = {
    "captions": {"image": "a.png", "captions": ["A cat."], "id": 1},
    "vqa": {"image": "a.png", "question": "how many?", "answers": ["2", "two"]},
    "ocr": {"image": "a.png", "text": "STOP"},
    "spotting": {"image": "a.png", "words": [{"text": "STOP", "box": [0, 0, 9, 9]}]},
    "referring": {"image": "a.png", "phrase": "left cat", "segmentation": [[0, 0, 9, 0, 9, 9]]},
}
_OFFICIAL: dict[str, Any] = {
    "questions": [{"question_id": 1, "image_id": 5, "question": "how many?"}],
    "annotations": [{"question_id": 1, "answers": [{"answer": "2"}]}],
}


def make_benchmark(random: Random) -> tuple[str, bytes, Random]:
    kind = random.choice((*_LINES, "official", "coco captions", "lines"))
    if kind == "official":
        data = json_bytes(random, mutate_json(random, _OFFICIAL))
    elif kind == "coco captions":
        data = json_bytes(random, mutate_json(random, INSTANCES))
    else:
        seed = _LINES[kind] if kind in _LINES else random.choice(list(_LINES.values()))
        lines = [dump_json(mutate_json(random, seed)) for _ in range(random.choice((1, 3)))]
        data = "\n".join(lines).encode()
        if random.random() < 0.2:
            data = mutate_bytes(random, data)
    return kind, data, random


def feed_benchmark(value: tuple[str, bytes, Random], folder: Path) -> None:
    kind, data, random = value
    if not (folder / "a.png").exists():
        Image.new("RGB", (100, 60)).save(folder / "a.png")
    path = folder / ("b.json" if kind in ("official", "coco captions") else "b.jsonl")
    put(random, path, data)
    if kind == "official":
        text_items.read_vqa_items(
            path, path, random.choice(("{:012d}.jpg", "{0.x}", "{1}", "{", "x"))
        )
    elif kind in ("captions", "coco captions"):
        text_items.read_caption_items(path)
    elif kind == "vqa":
        text_items.read_vqa_items(path)
    elif kind == "ocr":
        text_items.read_ocr_items(path)
    elif kind == "spotting":
        text_items.read_spotting_items(path)
    elif kind == "referring":
        text_items.read_referring_items(path, folder)
    else:
        list(read_jsonl(path))


TARGETS = (
    Target("coco", make_coco, feed_coco, 700),
    Target("predictions", make_predictions, feed_predictions, 1000),
    Target("training", make_training, feed_training, 1500),
    Target("benchmark", make_benchmark, feed_benchmark, 1500),
)
