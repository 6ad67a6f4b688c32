"""YOLO text files: one file a picture, one object a line, fractions of width and height.

    class x_center y_center width height            a box
    class x0 y0 x1 y1 x2 y2 …                       the outline of a mask, three points or more

`class` counts from 0 in the list of names; category ids are class + 1.
"""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

from vlmtasks.datasets.class_list import check_class_list
from vlmtasks.datasets.coco import CocoAnnotation, CocoDataset, CocoImage
from vlmtasks.datasets.folder import read_folder
from vlmtasks.datasets.json_files import read_text
from vlmtasks.datasets.problems import Problems
from vlmtasks.errors import DatasetError
from vlmtasks.plain_numbers import number_from_text
from vlmtasks.shorten import shorten

_LINE_END = re.compile(r"\r\n|[\r\n]")  # str.splitlines also ends lines at U+2028 and form feeds


def read_yolo(
    images: str | os.PathLike[str],
    labels: str | os.PathLike[str],
    names: Sequence[str] | str | os.PathLike[str],
    *,
    skip_bad: bool = False,
) -> CocoDataset:
    """Read a YOLO data set.

    images: the folder of pictures. labels: the folder of text files with the same names, in the
    same sub-folders; a picture without one has no objects.
    names: the class names, or a file with one name a line (classes.txt).
    skip_bad: leave out lines with mistakes, told in `repairs`, rather than raise.
    DatasetError lists every mistake with its file and line; or no such folder; or no label file for
        any picture.
    """
    class_names = _read_names(names)
    if not Path(labels).is_dir():
        raise DatasetError(f"{os.fspath(labels)!r} is no folder; give the folder of the labels")
    pictures = read_folder(images, skip_unreadable=skip_bad)
    problems = Problems()
    annotations: list[CocoAnnotation] = []
    files = _label_files(Path(labels))
    wanted = {image.id: _label_name(image) for image in pictures.images.values()}
    if not files.keys() & set(wanted.values()):
        raise DatasetError(
            f"none of the {len(wanted)} pictures has a label file in {os.fspath(labels)!r}; it has "
            "the picture's name and ends in .txt"
        )
    for image in pictures.images.values():
        for place, line in _lines(files.get(wanted[image.id]), Path(labels), problems):
            try:
                annotations.append(_read_line(line, image, len(class_names), len(annotations) + 1))
            except ValueError as error:
                problems.add(place, str(error))
    if not skip_bad:
        problems.raise_if_any()
    return CocoDataset(
        pictures.images,
        tuple(annotations),
        dict(enumerate(class_names, start=1)),
        Path(labels).name,
        (*pictures.repairs, *problems.messages()),
    )


def _read_names(names: Sequence[str] | str | os.PathLike[str]) -> list[str]:
    if isinstance(names, (str, os.PathLike)):
        if Path(names).suffix.lower() in (".yaml", ".yml"):
            raise DatasetError(
                f"{os.fspath(names)!r} is a file of settings; write its names into a text file "
                "with one name a line, or pass them as a list"
            )
        lines = [line.strip() for line in _LINE_END.split(read_text(names))]
        while lines and not lines[-1]:
            lines.pop()
        if not lines or not all(lines):
            line = lines.index("") + 1 if lines else 1
            raise DatasetError(
                f"{os.fspath(names)}, line {line}: is empty; there must be one class name a line"
            )
        names = lines
    return check_class_list(names)


def _label_files(labels: Path) -> dict[str, Path]:
    """Label files by their path within the folder without its ending, which may be in capitals."""
    return {
        path.relative_to(labels).with_suffix("").as_posix(): path
        for path in labels.rglob("*")
        if path.suffix.lower() == ".txt" and not path.name.startswith(".")
    }


def _label_name(image: CocoImage) -> str:
    return Path(image.file_name).with_suffix("").as_posix()


def _lines(path: Path | None, labels: Path, problems: Problems) -> list[tuple[str, str]]:
    """(place, text) of every line of a label file; none for a picture without one."""
    if path is None:
        return []
    name = path.relative_to(labels).as_posix()
    try:
        text = read_text(path)
    except DatasetError as error:
        problems.add(name, str(error))
        return []
    lines = enumerate(_LINE_END.split(text), start=1)
    return [(f"{name}, line {number}", line) for number, line in lines if line.strip()]


def _read_line(line: str, image: CocoImage, classes: int, number: int) -> CocoAnnotation:
    word, *words = line.split()
    category_id = _class_number(word, classes) + 1
    values = _fractions(line, words)
    width, height = image.size_wh or (1, 1)
    if len(values) == 4:
        x, y, w, h = values
        if w < 0 or h < 0:
            raise ValueError(f"is {shorten(line)}; width and height must be at least 0")
        box = (x - w / 2) * width, (y - h / 2) * height, w * width, h * height
        return CocoAnnotation(number, image.id, category_id, box, box[2] * box[3])
    outline = [value * (width, height)[place % 2] for place, value in enumerate(values)]
    left, top = min(outline[0::2]), min(outline[1::2])
    box = left, top, max(outline[0::2]) - left, max(outline[1::2]) - top
    return CocoAnnotation(
        number, image.id, category_id, box, _area(outline), segmentation=[outline]
    )


def _fractions(line: str, words: list[str]) -> list[float]:
    try:
        values = [number_from_text(word) for word in words]
    except ValueError:
        raise ValueError(f"is {shorten(line)}; behind the class there must be numbers") from None
    if not all(-1.0 <= value <= 2.0 for value in values):
        raise ValueError(
            f"is {shorten(line)}; values are fractions of width and height, 0 to 1, not pixels"
        )
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise ValueError(
            f"is {shorten(line)}; a line is a class and 4 numbers, or a class and the x and y of "
            f"three points or more; it has {len(values)} numbers"
        )
    return values


def _class_number(word: str, classes: int) -> int:
    try:
        number = number_from_text(word)  # some tools write 0.0
    except ValueError:
        number = math.nan
    if not number.is_integer() or not 0 <= number < classes:
        raise ValueError(f"the class is {word!r}; it must be 0 to {classes - 1}")
    return int(number)


def _area(outline: list[float]) -> float:
    """Area of a polygon [x0, y0, x1, y1, …] (shoelace formula)."""
    xs, ys = outline[0::2], outline[1::2]
    following = zip(xs, ys, xs[1:] + xs[:1], ys[1:] + ys[:1], strict=True)
    return abs(sum(x * next_y - next_x * y for x, y, next_x, next_y in following)) / 2
