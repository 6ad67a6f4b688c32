"""JSON Lines: one JSON object a line.

A byte order mark, empty lines and Windows line ends do no harm. Lines end at "\\n" only, so that a
U+2028 inside a text does not cut it.

Training examples have the form that PaliGemma's tools share:
    {"image": "a.png", "prefix": "detect cat", "suffix": "<loc0256><loc0128><loc0768><loc0512> cat"}
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlmtasks.datasets.json_files import (
    decode_text,
    parse_json,
    read_bytes,
    read_text,
    to_json,
    write_text,
)
from vlmtasks.datasets.problems import Problems
from vlmtasks.errors import DatasetError
from vlmtasks.shorten import shorten


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """What a model shall answer (`suffix`) when asked `prefix` about a picture.

    image: the name of the picture, relative to the folder of pictures. suffix: "" for nothing.
    """

    image: str
    prefix: str
    suffix: str


def read_jsonl(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of every line that is not empty.

    DatasetError, with file and line: a line that is no JSON object, bytes that are not UTF-8.
    """
    place = os.fspath(path)
    for number, line in enumerate(read_bytes(path).split(b"\n"), start=1):
        text = decode_text(line, place, number).strip()
        if not text:
            continue
        try:
            value = parse_json(text, place, number)
        except DatasetError as error:
            raise DatasetError(_explain(path, number, str(error))) from None
        if not isinstance(value, dict):
            raise DatasetError(
                f"{place}, line {number}: holds {shorten(value)}; "
                "there must be one JSON object per line"
            )
        yield number, value


def read_examples(path: str | os.PathLike[str]) -> list[TrainingExample]:
    """Read training examples; other fields of a line are ignored.

    DatasetError lists every line whose image, prefix or suffix is not a str, with its number.
    """
    examples = []
    problems = Problems()
    for number, record in read_jsonl(path):
        try:
            examples.append(read_training_example(record))
        except ValueError as error:
            problems.add(f"{os.fspath(path)}, line {number}", str(error))
    problems.raise_if_any()
    return examples


def read_training_example(record: Mapping[str, Any]) -> TrainingExample:
    """Check one object. ValueError, without its place: image, prefix or suffix is no text."""
    wrong = [
        f"{key} is {shorten(record.get(key))}"
        for key in ("image", "prefix", "suffix")
        if not isinstance(record.get(key), str) or (key == "image" and not record[key])
    ]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}; all of image, prefix and suffix must be str")
    for key in ("image", "prefix", "suffix"):
        try:
            record[key].encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{key} holds half a letter (half a surrogate pair): {shorten(record[key])}"
            ) from None
    return TrainingExample(record["image"], record["prefix"], record["suffix"])


def write_examples(path: str | os.PathLike[str], examples: Iterable[TrainingExample]) -> None:
    """Write training examples, one a line, as UTF-8."""
    write_jsonl(
        path,
        (
            {"image": example.image, "prefix": example.prefix, "suffix": example.suffix}
            for example in examples
        ),
    )


def write_jsonl(path: str | os.PathLike[str], records: Iterable[Mapping[str, Any]]) -> None:
    """Write objects, one a line, as UTF-8; whole or not at all."""
    write_text(path, "".join(to_line(record) for record in records))


def to_line(record: Mapping[str, Any]) -> str:
    """One object as a line of JSON Lines, with its line end. InputError: NaN, foreign types."""
    return to_json(record) + "\n"


def _explain(path: str | os.PathLike[str], number: int, message: str) -> str:
    """Say what a line must be, and what the user most likely did: JSON over several lines."""
    message += "; there must be one JSON object per line"
    if number > 1:
        return message
    try:
        parse_json(read_text(path), "")
    except DatasetError:
        return message
    return f"{message}, but this file is one JSON value that was written over several lines"
