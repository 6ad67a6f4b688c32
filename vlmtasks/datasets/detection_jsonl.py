"""Training examples of detection as a data set: what `paligemma_examples.py` writes, read back.

    {"image": "a.png", "prefix": "detect cat ; dog", "suffix": "<loc0256>…<loc0512> cat"}

Boxes are as exact as their bins. Codes of masks are left out: a ground truth that went through a
codec would flatter whoever uses that codec.
"""

import os
from pathlib import Path

from vlmtasks.boxes import SizeWH
from vlmtasks.categories import normalize_name
from vlmtasks.datasets.coco import CocoAnnotation, CocoDataset, CocoImage, ImageId
from vlmtasks.datasets.folder import picture_size
from vlmtasks.datasets.jsonl import read_jsonl, read_training_example
from vlmtasks.datasets.paths import find_picture
from vlmtasks.datasets.problems import Problems
from vlmtasks.errors import DatasetError, PromptError
from vlmtasks.prompts import free_text
from vlmtasks.shorten import shorten
from vlmtasks.tokens import BOX_SCALE, parse_objects


def read_detection_jsonl(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str],
    *,
    scale: int = BOX_SCALE,
    skip_bad: bool = False,
) -> CocoDataset:
    """Read examples of `detect` and `segment`; lines of other tasks are passed over.

    images: the folder of the pictures, whose sizes turn bins into pixels. Several lines about a
        picture are joined. Classes are numbered from 1 in the order of their first appearance,
        those that are asked for before those that are only found.
    skip_bad: leave out lines with mistakes, told in `repairs`, rather than raise.
    DatasetError lists every mistake with its file and line, missing pictures too; also when
        nothing is left.
    """
    problems = Problems()
    lines = []
    for number, record in read_jsonl(path):
        place = f"{os.fspath(path)}, line {number}"
        try:
            example = read_training_example(record)
        except ValueError as error:
            problems.add(place, str(error))
            continue
        try:
            task, _, asked = free_text(example.prefix).partition(" ")
        except PromptError as error:
            problems.add(place, str(error))
            continue
        if task in ("detect", "segment"):
            lines.append((place, example, asked))
    builder = _Builder(images, scale, problems)
    for place, example, asked in lines:
        builder.add(place, example.image, asked, example.suffix)
    if not skip_bad or not builder.images:
        problems.raise_if_any()
    if not lines:
        raise DatasetError(f"{os.fspath(path)}: holds no example of detect or segment")
    return CocoDataset(
        builder.images,
        tuple(builder.annotations),
        builder.categories(),
        Path(path).name,
        tuple(problems.messages()),
    )


class _Builder:
    def __init__(self, folder: str | os.PathLike[str], scale: int, problems: Problems) -> None:
        self.images: dict[ImageId, CocoImage] = {}
        self.annotations: list[CocoAnnotation] = []
        self._folder = folder
        self._scale = scale
        self._problems = problems
        self._image_ids: dict[Path, int] = {}
        self._paths: dict[str, Path | None] = {}
        self._names: dict[str, tuple[int, str]] = {}  # by what spellings have in common

    def categories(self) -> dict[int, str]:
        return dict(self._names.values())

    def add(self, place: str, name: str, asked: str, suffix: str) -> None:
        for label in asked.split(";"):
            if label.strip():
                self._category(label.strip())
        image = self._image(place, name)
        if image is None or image.size_wh is None:
            return
        for found in parse_objects(suffix, image.size_wh, scale=self._scale):
            if found.problem is not None or found.box_xyxy is None or not found.label:
                start, stop = found.span
                self._problems.add(
                    place,
                    f"suffix holds {shorten(suffix[start:stop])}, which is no object: "
                    f"{found.problem or 'no label'}",
                )
                continue
            x0, y0, x1, y1 = found.box_xyxy
            box = x0, y0, x1 - x0, y1 - y0
            number, category_id = len(self.annotations) + 1, self._category(found.label)
            self.annotations.append(
                CocoAnnotation(number, image.id, category_id, box, box[2] * box[3])
            )

    def _image(self, place: str, name: str) -> CocoImage | None:
        try:
            path = self._path(name)
            if path not in self._image_ids:  # one picture, however its path is spelled
                size_wh = self._size_wh(name, path)
                image_id = self._image_ids[path] = len(self._image_ids) + 1
                inner = path.relative_to(os.path.abspath(self._folder)).as_posix()
                self.images[image_id] = CocoImage(image_id, inner, size_wh)
        except DatasetError as error:
            self._problems.add(place, str(error))
            return None
        return self.images[self._image_ids[path]]

    def _path(self, name: str) -> Path:
        if name not in self._paths:
            self._paths[name] = find_picture(self._folder, name)
        path = self._paths[name]
        if path is None:
            folder = os.fspath(self._folder)
            raise DatasetError(f"{name!r} is not in {folder!r}; check the folder")
        return path

    def _size_wh(self, name: str, path: Path) -> SizeWH:
        try:
            return picture_size(path)
        except DatasetError as error:
            raise DatasetError(f"{name!r} {error}") from None

    def _category(self, label: str) -> int:
        key = normalize_name(label)
        return self._names.setdefault(key, (len(self._names) + 1, label))[0]
