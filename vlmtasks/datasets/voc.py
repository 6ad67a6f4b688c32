"""PASCAL VOC: one XML file a picture.

    <annotation><filename>a.jpg</filename><size><width>…</width><height>…</height></size>
      <object><name>cat</name><difficult>0</difficult>
        <bndbox><xmin>…</xmin><ymin>…</ymin><xmax>…</xmax><ymax>…</ymax></bndbox></object>
    </annotation>

In PASCAL's own files pixels count from 1 and xmax, ymax are the last pixel inside, so the box in
edges is (xmin - 1, ymin - 1, xmax, ymax). Most labelling tools write edges that count from 0.
"""

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from vlmtasks.datasets.class_list import check_class_list
from vlmtasks.datasets.coco import CocoAnnotation, CocoDataset, CocoImage, ImageId
from vlmtasks.datasets.json_files import read_bytes
from vlmtasks.datasets.problems import DatasetWarning, Problems
from vlmtasks.errors import DatasetError
from vlmtasks.plain_numbers import number_from_text
from vlmtasks.rle import MAX_PIXELS
from vlmtasks.shorten import shorten


def read_voc(
    folder: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    pixels_from_one: bool = True,
    skip_bad: bool = False,
) -> CocoDataset:
    """Read every .xml file of a folder that is not hidden, in the order of their names.

    names: the class names in the order of their ids, each once, case aside; otherwise all names
        found, sorted.
    pixels_from_one: True for PASCAL's own files; False for tools that write edges from 0.
    skip_bad: leave out objects and files with mistakes, told in `repairs`, rather than raise.
    DatasetWarning: a box begins at pixel 0 although pixels count from 1, or ends outside of the
        picture; two files name the same picture. All is left as it is.
    Objects marked `difficult` become crowds, which cost nothing to miss, as PASCAL scores them.
    DatasetError lists every mistake with its file and line.
    """
    if names is not None:
        names = check_class_list(names, same=str.casefold)
    files = sorted(
        path
        for path in Path(folder).glob("*")
        if path.suffix.lower() == ".xml" and not path.name.startswith(".")
    )
    if not files:
        raise DatasetError(
            f"{os.fspath(folder)!r} holds no .xml file; give VOC's Annotations folder"
        )
    problems = Problems()
    pages = []
    for path in files:
        try:
            pages.append(_read_page(path, pixels_from_one, problems))
        except ValueError as error:
            problems.add(path.name, str(error))
    found = {thing.name for page in pages for thing in page.things}
    categories = dict(enumerate(names if names is not None else sorted(found), start=1))
    annotations = _annotations(pages, categories, problems, fold_case=names is not None)
    if not skip_bad:
        problems.raise_if_any()
    if pixels_from_one:
        _warn_of_zeros(pages, Path(folder).name)
    _warn_of_overhang(pages, Path(folder).name)
    _warn_of_doubles(pages, Path(folder).name)
    images: dict[ImageId, CocoImage] = {
        number: CocoImage(number, page.file_name, page.size_wh)
        for number, page in enumerate(pages, start=1)
    }
    repairs = tuple(problems.messages())
    return CocoDataset(images, annotations, categories, Path(folder).name, repairs)


@dataclass
class _Node:
    """An XML element with the line it starts on."""

    tag: str
    line: int
    text: str = ""
    children: list["_Node"] = field(default_factory=list)

    def child(self, tag: str) -> "_Node | None":
        return next((node for node in self.children if node.tag == tag), None)

    def word(self, tag: str) -> str | None:
        node = self.child(tag)
        return node.text.strip() if node else None


@dataclass(frozen=True)
class _Thing:
    name: str
    box_xyxy: tuple[float, float, float, float]
    is_difficult: bool
    place: str


@dataclass(frozen=True)
class _Page:
    file_name: str
    size_wh: tuple[int, int] | None
    things: list[_Thing]


def _read_page(path: Path, from_one: bool, problems: Problems) -> _Page:
    root = _parse(read_bytes(path))
    if root.tag != "annotation":
        raise ValueError(f"the outer element is <{root.tag}>; it must be <annotation>")
    file_name = root.word("filename")
    if not file_name:
        raise ValueError("has no <filename>")
    things = []
    for node in root.children:
        if node.tag != "object":
            continue
        place = f"{path.name}, line {node.line}"
        try:
            things.append(_read_thing(node, from_one, place))
        except ValueError as error:
            problems.add(place, str(error))
    return _Page(file_name, _read_size(root), things)


def _annotations(
    pages: list[_Page], categories: dict[int, str], problems: Problems, *, fold_case: bool
) -> tuple[CocoAnnotation, ...]:
    """fold_case: names that a user gives are found in whatever case; names that were found stay
    apart, or "cat" and "Cat" would be merged without a word."""
    fold = str.casefold if fold_case else str
    ids = {fold(name): key for key, name in categories.items()}
    annotations: list[CocoAnnotation] = []
    for image_id, page in enumerate(pages, start=1):
        for thing in page.things:
            category_id = ids.get(fold(thing.name))
            if category_id is None:
                problems.add(thing.place, f"{thing.name!r} is not in names")
                continue
            x0, y0, x1, y1 = thing.box_xyxy
            box = x0, y0, x1 - x0, y1 - y0
            number, area = len(annotations) + 1, box[2] * box[3]
            annotations.append(
                CocoAnnotation(number, image_id, category_id, box, area, thing.is_difficult)
            )
    return tuple(annotations)


def _warn_of_zeros(pages: list[_Page], name: str) -> None:
    zeros = sum(min(thing.box_xyxy[:2]) < 0 for page in pages for thing in page.things)
    if zeros:
        warnings.warn(
            f"{name}: {zeros} boxes begin at a pixel 0, but PASCAL's pixels count from 1; files of "
            "other tools want pixels_from_one=False",
            DatasetWarning,
            stacklevel=3,
        )


def _warn_of_overhang(pages: list[_Page], name: str) -> None:
    places = [
        thing.place
        for page in pages
        for thing in page.things
        if page.size_wh is not None
        and (thing.box_xyxy[2] > page.size_wh[0] or thing.box_xyxy[3] > page.size_wh[1])
    ]
    if places:
        warnings.warn(
            f"{name}: {len(places)} boxes end outside of the picture that <size> tells, the first "
            f"in {places[0]}; they are left as they are",
            DatasetWarning,
            stacklevel=3,
        )


def _warn_of_doubles(pages: list[_Page], name: str) -> None:
    times = Counter(page.file_name for page in pages)
    doubled = [file_name for file_name, count in times.items() if count > 1]
    if doubled:
        warnings.warn(
            f"{name}: {len(doubled)} pictures are named by several files, the first is "
            f"{shorten(doubled[0])}; have the pictures been renamed?",
            DatasetWarning,
            stacklevel=3,
        )


def _read_size(root: _Node) -> tuple[int, int] | None:
    size = root.child("size")
    if size is None:
        return None
    width, height = size.word("width"), size.word("height")
    if not (width and height and width.isdecimal() and height.isdecimal()):
        raise ValueError(f"line {size.line}: <size> must hold whole numbers as width and height")
    # by their digits first, because Python reads no number of more than 4300
    if max(len(width), len(height)) > 9 or int(width) * int(height) > MAX_PIXELS:
        raise ValueError(
            f"line {size.line}: <size> is {shorten(width)} × {shorten(height)}; it must be the "
            "width and height of a picture in pixels"
        )
    if not int(width) * int(height):
        return None  # some tools write 0 when they do not know
    return int(width), int(height)


def _read_thing(node: _Node, from_one: bool, place: str) -> _Thing:
    name, box = node.word("name"), node.child("bndbox")
    if not name:
        raise ValueError("<object> has no <name>")
    if box is None:
        raise ValueError(f"<object> {name!r} has no <bndbox>")
    edges = []
    for tag in ("xmin", "ymin", "xmax", "ymax"):
        word = box.word(tag)
        try:
            edges.append(number_from_text(word or ""))
        except ValueError:
            raise ValueError(f"<{tag}> of {name!r} is {word!r}; it must be a number") from None
    x0, y0, x1, y1 = edges
    if not (abs(x0) < 1e6 and abs(y0) < 1e6 and x0 <= x1 < 1e6 and y0 <= y1 < 1e6):
        raise ValueError(
            f"<bndbox> of {name!r} is {edges}; xmin <= xmax and ymin <= ymax must hold"
        )
    shift = 1.0 if from_one else 0.0
    return _Thing(name, (x0 - shift, y0 - shift, x1, y1), node.word("difficult") == "1", place)


def _parse(data: bytes) -> _Node:
    """The elements of an XML file. ValueError: not XML, or with entities, which no VOC file has."""
    parser = expat.ParserCreate()
    parser.buffer_text, parser.buffer_size = True, 1 << 20  # one call for a text of many lines
    top = _Node("", 0)
    stack = [top]

    def start(tag: str, attributes: dict[str, str]) -> None:
        node = _Node(tag, parser.CurrentLineNumber)
        stack[-1].children.append(node)
        stack.append(node)
        if len(stack) > 50:
            raise ValueError("is nested too deeply to be a VOC file")

    def refuse(*_: object) -> None:
        raise ValueError(f"line {parser.CurrentLineNumber}: defines entities, which is not allowed")

    def add_text(text: str) -> None:
        stack[-1].text += text

    def end(_: str) -> None:
        stack.pop()

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = add_text
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(
            f"line {error.lineno}: not XML: {expat.errors.messages[error.code]}"
        ) from None
    except (LookupError, ValueError) as error:
        if "encoding" not in str(error):  # what a handler refused
            raise
        raise ValueError(f"line 1: not XML: {error}; save the file as UTF-8") from None
    return top.children[0]
