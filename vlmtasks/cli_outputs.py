"""Where results of the command line go: lines of JSON, one COCO list, pictures with overlays.

JSON is written in ASCII, so that every console and every file can hold it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from vlmtasks import prompts
from vlmtasks.cli_inputs import Input
from vlmtasks.errors import InputError
from vlmtasks.generation import Generation
from vlmtasks.images import open_image
from vlmtasks.picture_names import is_picture_name
from vlmtasks.results import Detections

Answer = Detections | Generation
_READABLE_PIXELS = 640  # smaller pictures are enlarged before anything is drawn on them


class Stream(Protocol):
    """What results are printed to."""

    def write(self, text: str, /) -> int: ...
    def flush(self) -> None: ...


class Output(Protocol):
    """Takes results in order; `place` counts the pictures of the command line from 0."""

    def add(self, place: int, answer: Answer) -> None: ...
    def add_error(self, place: int, error: str) -> None: ...
    def close(self) -> None: ...


class JsonLines:
    """One line for each picture, written at once: the result, or {"image": …, "error": …}."""

    def __init__(self, stream: Stream, inputs: Sequence[Input]) -> None:
        self._stream = stream
        self._inputs = inputs

    def add(self, place: int, answer: Answer) -> None:
        if isinstance(answer, Detections):
            self._write(place, answer.to_dict())
        else:
            text = answer.text.strip()
            self._write(place, {"text": text, "finish_reason": answer.finish_reason})

    def add_error(self, place: int, error: str) -> None:
        self._write(place, {"error": error})

    def close(self) -> None:
        """Everything is written already."""

    def _write(self, place: int, content: dict[str, Any]) -> None:
        line = json.dumps({"image": self._inputs[place].name, **content}, allow_nan=False)
        print(line, file=self._stream, flush=True)


class CocoList:
    """One list of COCO results, written at the end; pictures that failed are not in it.

    image_id: the number in the file name where every picture has one of its own, as COCO's have
        ("000000397133.jpg"); otherwise 1, 2, 3 … in the order of the pictures.
    category_id: 1, 2, 3 … in the order in which the classes were asked for.
    """

    def __init__(self, stream: Stream, inputs: Sequence[Input], labels: str | None) -> None:
        self._stream = stream
        self._image_ids = image_ids(inputs)
        self._categories = None if labels is None else prompts.class_names(labels)
        self._rows: list[dict[str, Any]] = []
        self._is_begun = False

    def add(self, place: int, answer: Answer) -> None:
        self._is_begun = True
        image_id = self._image_ids[place]
        if isinstance(answer, Detections):
            self._rows += answer.to_coco(image_id, self._categories)
        else:
            self._rows.append({"image_id": image_id, "caption": answer.text.strip()})

    def add_error(self, place: int, error: str) -> None:
        self._is_begun = True  # the error itself is told on stderr: COCO has no place for it

    def close(self) -> None:
        if not self._is_begun:  # nothing was asked, so there is no list, not even an empty one
            return
        rows = ",\n".join(json.dumps(row, allow_nan=False) for row in self._rows)
        print(f"[{rows}]", file=self._stream, flush=True)


def image_ids(inputs: Sequence[Input]) -> list[int]:
    """The COCO image ids of the pictures, see `CocoList`; 0 for what names no picture."""
    numbers = {
        place: _number(Path(picture.name).stem)
        for place, picture in enumerate(inputs)
        if picture.error is None
    }
    if None not in numbers.values() and len(set(numbers.values())) == len(numbers):
        return [numbers.get(place) or 0 for place in range(len(inputs))]
    return list(range(1, len(inputs) + 1))


def _number(stem: str) -> int | None:
    """Of a file named by a number; Python itself reads none of thousands of digits."""
    return int(stem) if stem.isascii() and stem.isdigit() and len(stem) < 20 else None


class OutputFile:
    """A UTF-8 file that is made when the first result comes, so that a mistake costs no old file.

    InputError when it could not be made, or is one of the pictures.
    """

    def __init__(self, path: Path, inputs: Sequence[Input]) -> None:
        if _files(path) & _files_of(inputs):
            raise InputError(f"--output {path} is one of the pictures; choose another name")
        if path.is_dir() or not path.parent.is_dir():
            raise InputError(f"--output {path} must be a file in a folder that exists")
        if is_picture_name(path) and path.exists():
            raise InputError(f"--output {path} is a picture; results are text: choose another name")
        _check_writable(path)
        self._path = path
        self._file: TextIO | None = None

    def write(self, text: str) -> int:
        if self._file is None:
            self._file = open(self._path, "w", encoding="utf-8", newline="\n")
        return self._file.write(text)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Overlays:
    """Pictures with what was found drawn on them.

    target: a folder, which is made if need be; or for one picture a file; None draws nothing.
    In a folder x.jpg becomes x_detect.png, and a second x.jpg of another folder x_detect-2.png.
    Pictures of the command line are never written over, nor is `results`, the file of --output.
    Small pictures are enlarged.
    """

    def __init__(
        self, target: Path | None, inputs: Sequence[Input], task: str, results: Path | None = None
    ) -> None:
        self._target = target
        self._inputs = inputs
        self._task = task
        pictures = _files_of(inputs)
        self._taken = pictures | (set() if results is None else _files(results))
        self._is_file = target is not None and not target.is_dir() and is_picture_name(target)
        if self._is_file and target is not None:
            if len(inputs) != 1:
                raise InputError(
                    f"--save {target} is one file for {len(inputs)} pictures; name a folder"
                )
            if not target.parent.is_dir():
                raise InputError(f"--save {target} must be a file in a folder that exists")
            if _files(target) & self._taken:
                same = "picture itself" if _files(target) & pictures else "file of --output"
                raise InputError(f"--save {target} is the {same}; choose another name")
        elif target is not None:
            target.mkdir(parents=True, exist_ok=True)

    def draw(self, place: int, answer: Answer) -> Path | None:
        """Draw one result; the file that was written."""
        if self._target is None or not isinstance(answer, Detections):
            return None
        picture = self._inputs[place].name
        path = self._target if self._is_file else self._free_name(Path(picture).stem)
        longest = max(answer.image_size)
        answer.save(path, open_image(picture), zoom=max(1, _READABLE_PIXELS // longest))
        return path

    def _free_name(self, stem: str) -> Path:
        assert self._target is not None
        number = 1
        while True:
            suffix = "" if number == 1 else f"-{number}"
            path = self._target / f"{stem}_{self._task}{suffix}.png"
            if not _files(path) & self._taken:
                self._taken |= _files(path)
                return path
            number += 1


def _check_writable(path: Path) -> None:
    """InputError where a file cannot be written, told before an hour of answers is lost."""
    is_new = not path.exists()
    if not is_new and not path.is_file():
        return  # opening a pipe or a device may do something already
    try:
        open(path, "a", encoding="utf-8").close()
        if is_new:
            path.unlink()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--output {path} cannot be written: {reason}; choose another") from error


def _files(path: Path) -> set[Any]:
    """What tells a file from others: its path without links and, where it exists, its number."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return {path.resolve()}
    return {path.resolve(), (status.st_dev, status.st_ino)}


def _files_of(inputs: Sequence[Input]) -> set[Any]:
    return set().union(*(_files(Path(picture.name)) for picture in inputs))
