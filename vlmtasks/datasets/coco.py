"""The data set that every reader gives, and COCO instances files written from it.

A box is [x, y, width, height] in pixels in the files and here (`bbox_xywh`).
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from vlmtasks.boxes import SizeWH
from vlmtasks.categories import normalize_name
from vlmtasks.datasets.json_files import write_json
from vlmtasks.errors import DatasetError
from vlmtasks.rle import RLE, coco_mask

ImageId = int | str
BoxXYWH = tuple[float, float, float, float]
Segmentation = list[list[float]] | RLE  # polygons, or run lengths


@dataclass(frozen=True, slots=True)
class CocoImage:
    """A picture: its name relative to the folder of pictures, and (width, height) if known."""

    id: ImageId
    file_name: str
    size_wh: SizeWH | None


@dataclass(frozen=True, slots=True)
class CocoAnnotation:
    """An object (bbox_xywh and category_id) or a caption of a picture."""

    id: int
    image_id: ImageId
    category_id: int | None = None
    bbox_xywh: BoxXYWH | None = None
    area: float = 0.0
    is_crowd: bool = False
    segmentation: Segmentation | None = None
    caption: str | None = None


@dataclass(frozen=True)
class CocoDataset:
    """Pictures, annotations in the order of the file, and category names by id.

    `name` is the file it came from, for messages. `repairs` says what was filled in or left out.
    """

    images: dict[ImageId, CocoImage]
    annotations: tuple[CocoAnnotation, ...] = ()
    categories: dict[int, str] = field(default_factory=dict)
    name: str = "data set"
    repairs: tuple[str, ...] = ()

    def by_image(self) -> dict[ImageId, list[CocoAnnotation]]:
        """The annotations of every picture, an empty list for one without any."""
        grouped: dict[ImageId, list[CocoAnnotation]] = {key: [] for key in self.images}
        for annotation in self.annotations:
            grouped[annotation.image_id].append(annotation)
        return grouped

    def category_id(self, name: str) -> int | None:
        """The id of a category by its name, case and blanks aside; None for no such name.

        The same spelling is preferred where names differ by case only. Of categories with the same
        name (some tools add one for the group) the one with the most annotations is taken; see
        `check_names`.
        """
        exact = self._exact_ids.get(name)
        return self._ids.get(normalize_name(name)) if exact is None else exact

    def names(self) -> list[str]:
        """The category names in the order of the file, each once, case and blanks aside."""
        return [n for key, n in self.categories.items() if self._ids[normalize_name(n)] == key]

    def check_names(self) -> None:
        """DatasetError: two categories in use whose names a model does not tell apart.

        A second one without annotations does no harm: Roboflow adds one for the group.
        """
        in_use: dict[str, int] = {}
        for key in dict.fromkeys(annotation.category_id for annotation in self.annotations):
            if key is None:
                continue  # a caption
            other = in_use.setdefault(normalize_name(self.categories[key]), key)
            if other != key:
                raise DatasetError(
                    f"{self.name}: categories {self.categories[other]!r} (id {other}) and "
                    f"{self.categories[key]!r} (id {key}) differ at most in case and blanks, and "
                    "both have annotations; rename or merge them"
                )

    @cached_property
    def _exact_ids(self) -> dict[str, int]:
        return {self.categories[key]: key for key in self._rarest_first}

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {normalize_name(self.categories[key]): key for key in self._rarest_first}

    @cached_property
    def _rarest_first(self) -> list[int]:
        uses = Counter(annotation.category_id for annotation in self.annotations)
        return sorted(self.categories, key=uses.__getitem__)

    def subset(self, image_ids: Iterable[ImageId]) -> "CocoDataset":
        """The same data set with only these pictures, in the order of the file."""
        wanted = set(image_ids)
        return replace(
            self,
            images={key: image for key, image in self.images.items() if key in wanted},
            annotations=tuple(entry for entry in self.annotations if entry.image_id in wanted),
        )


def write_coco(path: str | os.PathLike[str], dataset: CocoDataset) -> None:
    """Write a data set as an instances file that pycocotools and labelling tools read.

    Annotation ids are numbered from 1, because pycocotools takes the id 0 for "no match".
    """
    write_json(path, to_coco_dict(dataset))


def to_coco_dict(dataset: CocoDataset) -> dict[str, Any]:
    """The dict of an instances file; see `write_coco`."""
    images = []
    for image in dataset.images.values():
        entry: dict[str, Any] = {"id": image.id, "file_name": image.file_name}
        if image.size_wh:
            entry["width"], entry["height"] = image.size_wh
        images.append(entry)
    return {
        "info": {},
        "images": images,
        "annotations": [
            _annotation_dict(number, entry) for number, entry in enumerate(dataset.annotations, 1)
        ],
        "categories": [{"id": key, "name": name} for key, name in dataset.categories.items()],
    }


def annotation_rle(annotation: CocoAnnotation, image: CocoImage) -> RLE | None:
    """Run lengths of an annotation's mask; None when it has none. DatasetError: unknown size."""
    if annotation.segmentation is None:
        return None
    if isinstance(annotation.segmentation, dict):
        return annotation.segmentation
    if image.size_wh is None:
        raise DatasetError(
            f"image {image.id!r} ({image.file_name}) has no width and height, which its polygons "
            "need; add them to the file"
        )
    return polygons_to_rle(annotation.segmentation, image.size_wh)


def polygons_to_rle(polygons: list[list[float]], size_wh: SizeWH) -> RLE:
    """Run lengths of polygons [x0, y0, x1, y1, …] as pycocotools draws them."""
    width, height = size_wh
    rle = coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))
    return {"size": [height, width], "counts": rle["counts"].decode("ascii")}


def _annotation_dict(number: int, annotation: CocoAnnotation) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": number, "image_id": annotation.image_id}
    if annotation.caption is not None:
        return entry | {"caption": annotation.caption}
    entry["category_id"] = annotation.category_id
    entry["bbox"] = list(annotation.bbox_xywh or (0.0, 0.0, 0.0, 0.0))
    entry["area"] = annotation.area
    entry["iscrowd"] = int(annotation.is_crowd)
    if annotation.segmentation is not None:
        entry["segmentation"] = annotation.segmentation
    return entry
