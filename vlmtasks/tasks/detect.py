"""Find the objects of some classes: boxes, labels and scores."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from vlmtasks import prompts
from vlmtasks.boxes import SizeWH
from vlmtasks.categories import normalize_name
from vlmtasks.generation import Generation
from vlmtasks.results import Detections
from vlmtasks.tasks.expected_boxes import expected_bins
from vlmtasks.tasks.reading import Reading
from vlmtasks.tokens import (
    BOX_SCALE,
    TRUNCATED,
    ParsedObject,
    TokenVocabulary,
    bins_to_pixels,
    parse_objects,
)


@dataclass(frozen=True)
class Detect:
    """`detect cat ; dog`."""

    name: str = "detect"
    max_new_tokens: int = 512  # an object takes about 8, so some sixty objects

    def prompt(self, labels: str | Iterable[str]) -> str:
        return prompts.detect(labels)

    def parse(
        self,
        generation: Generation,
        *,
        image_size: SizeWH,
        labels: str | Iterable[str] | None = None,
        vocabulary: TokenVocabulary | None = None,
        scale: int = BOX_SCALE,
        reading: Reading | None = None,
    ) -> Detections:
        """Read the answer to `prompt(labels)`.

        image_size: (width, height) of the picture that was asked about.
        vocabulary: reads the token ids and not the text. Without it every score is 1.0.
        reading: what scores and boxes are made of, otherwise of what `Reading` says.

        When a single class was asked, objects without label get its name. Of a cut answer
        (finish_reason "length") the last object is dropped as "truncated" unless its label is one
        that was asked: its label, or its mask, may be half.
        """
        reading = reading or Reading()
        records = read_answer(generation, image_size, labels, vocabulary, scale, reading)
        return to_detections(generation, records, image_size, vocabulary, reading)


DETECT = Detect()


def read_answer(
    generation: Generation,
    image_size: SizeWH,
    labels: str | Iterable[str] | None,
    vocabulary: TokenVocabulary | None,
    scale: int,
    reading: Reading,
) -> list[ParsedObject]:
    """Every record of an answer, with the label of a single class filled in and cut ones marked."""
    asked = () if labels is None else prompts.class_names(labels)
    answer = generation.text if vocabulary is None else generation.token_ids
    records = parse_objects(answer, image_size, scale=scale, vocabulary=vocabulary)
    if records and generation.finish_reason == "length":
        records[-1] = _marked_if_cut(records[-1], generation, asked, vocabulary)
    if len(asked) == 1:
        records = [_with_label(record, asked[0]) for record in records]
    if vocabulary is None or reading.boxes == "top":
        return records
    return [_between_bins(r, generation, image_size, vocabulary, scale) for r in records]


def to_detections(
    generation: Generation,
    records: list[ParsedObject],
    image_size: SizeWH,
    vocabulary: TokenVocabulary | None,
    reading: Reading,
) -> Detections:
    """The good records as Detections without masks, the others as `dropped`."""
    good = [record for record in records if record.problem is None]
    scores = [1.0] * len(good)
    if vocabulary is not None:
        scores = reading.scores(generation, records, vocabulary)
    return Detections(
        boxes_xyxy=np.array([record.box_xyxy for record in good], np.float32).reshape(-1, 4),
        labels=tuple(record.label for record in good),
        scores=np.array(scores, np.float32),
        image_size=image_size,
        text=generation.text,
        finish_reason=generation.finish_reason,
        dropped=tuple(record for record in records if record.problem is not None),
    )


def _with_label(record: ParsedObject, label: str) -> ParsedObject:
    return record if record.label or record.problem else replace(record, label=label)


def _between_bins(
    record: ParsedObject,
    generation: Generation,
    image_size: SizeWH,
    vocabulary: TokenVocabulary,
    scale: int,
) -> ParsedObject:
    if record.problem is not None:
        return record
    bins = expected_bins(generation, record, vocabulary)
    return replace(record, box_xyxy=bins_to_pixels(bins, image_size, scale))


def _marked_if_cut(
    last: ParsedObject,
    generation: Generation,
    asked: tuple[str, ...],
    vocabulary: TokenVocabulary | None,
) -> ParsedObject:
    stop = last.span[1]
    if vocabulary is None:
        behind = generation.text[stop:]
    else:
        rest = generation.token_ids[stop:]
        behind = vocabulary.decode([one for one in rest if 0 <= one < vocabulary.size])
    is_asked = normalize_name(last.label) in map(normalize_name, asked)
    if last.problem is not None or behind.strip() or is_asked:
        return last
    return replace(last, problem=TRUNCATED)
