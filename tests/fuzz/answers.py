"""Answers of a model, as text and as token ids, through parsing and every export."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.cases import Target
from tests.fuzz.mutations import NUMBERS, TEXTS
from tests.stub_engine import LetterVocabulary
from vlmtasks.generation import Generation
from vlmtasks.results import Detections
from vlmtasks.tasks import DETECT, SEGMENT
from vlmtasks.tokens import parse_objects

VOCABULARY = LetterVocabulary()
_SIGNS = (
    " ", " ; ", ";", "\n", "\r\n", "<", ">", "<loc", "<seg", "<eos>", "<pad>", "<loc1024>",
    "<seg128>", "<loc12>", "<LOC0001>", "<loc٠٢٥٦>", "a", "cat", "dog", "\u2028", "\x00",
    "\x1c",
)  # fmt: skip
_SIZES = ((640, 480), (1, 1), (20000, 100), (2**31 - 1, 2**31 - 1), (37, 53))


class Codec:
    def decode(self, codes: Any) -> Any:
        maps = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
        return np.stack([np.roll(maps, int(row.sum())) for row in codes])


def _locs(random: Random) -> str:
    count = random.choice((4, 4, 4, 4, 3, 5, 8, 1, 40))
    bins = [random.randrange(1024) for _ in range(count)]
    if count == 4 and random.random() < 0.8:
        (bins[0], bins[2]), (bins[1], bins[3]) = sorted(bins[0::2]), sorted(bins[1::2])
    return "".join(f"<loc{value:04d}>" for value in bins)


def _segs(random: Random) -> str:
    count = random.choice((16, 16, 16, 15, 17, 1, 32))
    return "".join(f"<seg{random.randrange(128):03d}>" for _ in range(count))


def _text(random: Random) -> str:
    makers = (_locs, _locs, _segs, lambda r: r.choice(_SIGNS), lambda r: r.choice(TEXTS))
    text = "".join(random.choice(makers)(random) for _ in range(random.choice((0, 1, 3, 8, 30))))
    if random.random() < 0.3:
        text = text[: random.randrange(len(text) + 1)]
    return text * random.choice((1, 1, 1, 1, 1, 30))


def _ids(random: Random, text: str) -> list[int]:
    ids = VOCABULARY.encode(text)
    for _ in range(random.choice((0, 0, 1, 5))):
        strange = random.choice((-1, 0, 1, 3, 1027, 1155, VOCABULARY.size, 2**63, 10**30))
        ids.insert(random.randrange(len(ids) + 1), strange)
    return ids


def make(random: Random) -> dict[str, Any]:
    text = _text(random)
    size: Any = random.choice(_SIZES)
    if random.random() < 0.05:
        size = random.choice((size[0], (random.choice(NUMBERS), 7), "640x480", None, {640, 480}))
    return {
        "text": text,
        "ids": _ids(random, text) if random.random() < 0.5 else None,
        "image_size": size,
        "labels": random.choice((None, "cat", ["cat", "dog"])),
        "scale": random.choice((1024,) * 20 + (1023, random.choice(NUMBERS))),
        "finish_reason": random.choice(("stop", "length")),
    }


def feed(value: dict[str, Any], _: Path) -> None:
    text, ids, size = value["text"], value["ids"], value["image_size"]
    vocabulary = None if ids is None else VOCABULARY
    given = text if ids is None else ids
    found = parse_objects(given, size, scale=value["scale"], vocabulary=vocabulary)
    stop = 0
    for record in found:
        assert stop <= record.span[0] < record.span[1] <= len(given), "spans out of order"
        stop = record.span[1]
    known = tuple(ids or ())
    generation = Generation(text, known, (-0.5,) * len(known), value["finish_reason"])
    options = {"image_size": size, "labels": value["labels"], "vocabulary": vocabulary}
    options["scale"] = value["scale"]
    detected = DETECT.parse(generation, **options)
    segmented = SEGMENT.parse(generation, codec=Codec(), **options)
    assert len(detected) + len(detected.dropped) == len(found), "records got lost"
    _check_files(detected)
    if size[0] * size[1] < 1e7:
        _check_files(segmented)


def _check_files(found: Detections) -> None:
    saved = json.loads(found.to_json())
    assert Detections.from_dict(saved).to_dict() == saved, "JSON changes the result"
    rows = found.deduplicated().to_coco(1, {"cat": 1, "dog": 2})
    assert all(min(row["bbox"][2:]) >= 0 for row in rows), "a negative side"
    back = Detections.from_coco(
        json.loads(json.dumps(rows)), found.image_size, {"cat": 1, "dog": 2}
    )
    assert len(back) == len(rows)


TARGETS = (Target("answer", make, feed, 120),)
