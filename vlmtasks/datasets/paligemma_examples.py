"""COCO annotations as the prefix and suffix that PaliGemma learns from.

    detect cat ; dog   →  <loc0256><loc0128><loc0768><loc0512> cat ; <loc…> dog
    segment cat        →  <loc0256><loc0128><loc0768><loc0512><seg008>…<seg070> cat

Rules: boxes go through `tokens.encode_box` (y first, half to even, clamped to 0..1023, 1024 bins a
side unless `scale=1023`); a box is cut at the border of its picture, and one outside of it is no
target; a box thinner than a bin is made one bin wide, so that it can be read back; for "segment"
the bins are those that just hold the mask (mask_crops.py); crowds are no targets; objects stand in
the order of the file.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vlmtasks.boxes import SizeWH
from vlmtasks.choices import check_choice
from vlmtasks.datasets.coco import CocoAnnotation, CocoDataset, CocoImage, annotation_rle
from vlmtasks.datasets.folder import picture_size
from vlmtasks.datasets.jsonl import TrainingExample
from vlmtasks.datasets.mask_crops import crop_mask, mask_bins
from vlmtasks.datasets.paths import find_pictures
from vlmtasks.datasets.problems import Problems
from vlmtasks.errors import DatasetError, InputError
from vlmtasks.prompts import class_names, detect, segment
from vlmtasks.rle import decode_rle, rle_area
from vlmtasks.tokens import (
    BOX_SCALE,
    LOC_BINS,
    BoxXYXY,
    check_label,
    encode_box,
    format_object,
    format_objects,
)


class MaskEncoder(Protocol):
    """Turns (N, 64, 64) masks of 0..1 into (N, 16) codes; `vqvae.MaskCodec` is one."""

    def encode(self, masks: NDArray[np.float32], /) -> NDArray[np.int64]:
        """The codes of the masks."""
        ...


@dataclass(frozen=True)
class Conversion:
    """The examples, and what was left out and why.

    counts: "images", "images without annotations", "objects", "crowds left out", "objects without
    mask left out", "objects outside of their picture left out".
    """

    examples: list[TrainingExample]
    counts: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        """A line for people, such as "1 of 2 images without annotations; 1 crowd left out"."""
        counts = self.counts
        parts = [
            f"{len(self.examples)} examples with {counts['objects']} objects",
            f"{counts['images without annotations']} of {counts['images']} images without "
            "annotations",
        ]
        parts += [f"{counts[key]} {key}" for key in _LEFT_OUT if counts[key]]
        return "; ".join(parts)


_LEFT_OUT = (
    "crowds left out",
    "objects without mask left out",
    "objects outside of their picture left out",
)


def coco_examples(
    dataset: CocoDataset,
    task: Literal["detect", "segment"],
    *,
    images: str | os.PathLike[str] | None = None,
    codec: MaskEncoder | None = None,
    one_class_each: bool = False,
    empty_images: Literal["skip", "keep"] = "skip",
    keep_crowds: bool = False,
    scale: int = BOX_SCALE,
) -> Conversion:
    """Turn every picture of a data set into training examples.

    images: the folder of pictures; when given, all are looked for before anything else is done.
    codec: encodes masks; needed for "segment".
    one_class_each: an example for each class in a picture rather than one for all of its classes.
    empty_images: "skip" pictures without objects (they are counted), or "keep" them: asked for all
        classes, with the suffix "", so that only <eos> is learnt.

    DatasetError: missing pictures, pictures of unknown or another size, class names that no label
        can be.
    InputError: an unknown task or value of `empty_images`, or "segment" without a codec.
    """
    check_choice(task, ("detect", "segment"), "task")
    check_choice(empty_images, ("skip", "keep"), "empty_images")
    if task == "segment" and codec is None:
        raise InputError("task is 'segment', which needs a codec, such as vqvae.MaskCodec.load()")
    _check_names(dataset)
    names = [image.file_name for image in dataset.images.values()]
    paths = {} if images is None else find_pictures(images, names)
    sizes = _check_sizes(dataset, paths)
    converter = _Converter(dataset, task, codec, scale, keep_crowds)
    examples: list[TrainingExample] = []
    for image_id, annotations in dataset.by_image().items():
        image = dataset.images[image_id]
        size_wh = image.size_wh or sizes.get(image.file_name)
        if size_wh is None:
            raise DatasetError(
                f"{dataset.name}: image {image_id!r} ({image.file_name}) has no width and height; "
                "add them, or give the folder of the pictures"
            )
        image = CocoImage(image.id, image.file_name, size_wh)
        examples += converter.convert(image, annotations, one_class_each, empty_images == "keep")
    return Conversion(examples, converter.counts)


def encode_object_box(
    box_xyxy: Sequence[float], image_size: SizeWH, scale: int = BOX_SCALE
) -> tuple[int, int, int, int]:
    """As `tokens.encode_box`, but at least one bin wide and high, so that it is a box when read."""
    y_min, x_min, y_max, x_max = encode_box(box_xyxy, image_size, scale)
    y_min, y_max = _widen(y_min, y_max)
    x_min, x_max = _widen(x_min, x_max)
    return y_min, x_min, y_max, x_max


class _Converter:
    def __init__(
        self,
        dataset: CocoDataset,
        task: str,
        codec: MaskEncoder | None,
        scale: int,
        keep_crowds: bool,
    ) -> None:
        self.counts: Counter[str] = Counter()
        # as the prompt has them, or prefix and suffix would name a class in two ways
        self._names = {key: class_names([name])[0] for key, name in dataset.categories.items()}
        self._codec = codec if task == "segment" else None
        self._prompt = detect if task == "detect" else segment
        self._scale = scale
        self._keep_crowds = keep_crowds

    def convert(
        self,
        image: CocoImage,
        annotations: list[CocoAnnotation],
        one_class_each: bool,
        keep_empty: bool,
    ) -> Iterator[TrainingExample]:
        self.counts["images"] += 1
        self.counts["images without annotations"] += not annotations
        records = list(self._records(image, annotations))
        self.counts["objects"] += len(records)
        classes = list(dict.fromkeys(label for label, _ in records))
        if not records:
            if keep_empty and self._names:
                names = list(self._names.values())
                yield TrainingExample(image.file_name, self._prompt(names), "")
            return
        groups = [[name] for name in classes] if one_class_each else [classes]
        for names in groups:
            suffix = format_objects(text for label, text in records if label in names)
            yield TrainingExample(image.file_name, self._prompt(names), suffix)

    def _records(
        self, image: CocoImage, annotations: list[CocoAnnotation]
    ) -> Iterator[tuple[str, str]]:
        for annotation in annotations:
            if annotation.bbox_xywh is None or annotation.category_id is None:
                continue  # a caption
            if annotation.is_crowd and not self._keep_crowds:
                self.counts["crowds left out"] += 1
                continue
            label = self._names[annotation.category_id]
            if self._codec is None:
                x, y, width, height = annotation.bbox_xywh
                corners = x, y, x + width, y + height
                assert image.size_wh is not None
                if _is_outside(corners, image.size_wh):
                    self.counts["objects outside of their picture left out"] += 1
                    continue
                loc_yxyx = encode_object_box(corners, image.size_wh, self._scale)
                yield label, format_object(loc_yxyx, label)
                continue
            rle = annotation_rle(annotation, image)
            if rle is None or not rle_area(rle):
                self.counts["objects without mask left out"] += 1
                continue
            mask = decode_rle(rle)
            loc_yxyx = mask_bins(mask, self._scale)
            codes = self._codec.encode(crop_mask(mask, loc_yxyx, self._scale)[None])[0]
            yield label, format_object(loc_yxyx, label, codes.tolist())


def _is_outside(box_xyxy: BoxXYXY, size_wh: SizeWH) -> bool:
    """Nothing of the box lies in the picture; a line or point at its border does."""
    x0, y0, x1, y1 = box_xyxy
    return any(
        high < 0 or low > side or (low < high and (high == 0 or low == side))
        for low, high, side in ((x0, x1, size_wh[0]), (y0, y1, size_wh[1]))
    )


def _widen(low: int, high: int) -> tuple[int, int]:
    if low < high:
        return low, high
    return (low, low + 1) if low < LOC_BINS - 1 else (low - 1, low)


def _check_sizes(dataset: CocoDataset, paths: Mapping[str, Path]) -> dict[str, SizeWH]:
    """The sizes of the pictures that are there, by file name.

    DatasetError: one cannot be read, or is seen in another size or turned: boxes would be learnt in
    wrong places.
    """
    problems = Problems()
    sizes: dict[str, SizeWH] = {}
    for image in dataset.images.values():
        path = paths.get(image.file_name)
        if path is None:
            continue
        place = f"{dataset.name}, image {image.id!r} ({image.file_name})"
        try:
            seen = sizes[image.file_name] = picture_size(path)
        except DatasetError as error:
            problems.add(place, str(error))
            continue
        if image.size_wh not in (None, seen):
            problems.add(
                place,
                f"is annotated as {image.size_wh} (width, height), but seen as {seen}; "
                "annotations belong to the upright picture",
            )
    problems.raise_if_any()
    return sizes


def _check_names(dataset: CocoDataset) -> None:
    dataset.check_names()
    for key, name in dataset.categories.items():
        try:
            check_label(name)
        except InputError as error:
            raise DatasetError(f"{dataset.name}, category {key}: {error}") from None
