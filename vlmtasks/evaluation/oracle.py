"""What the tokens themselves can reach: the ground truth, written as an answer and read back.

    annotation → bins and codes → text → parser → boxes and masks → COCO AP

No model takes part, so these figures are the ceiling of any model that speaks this language. Three
rows tell where the rest is lost: rounding boxes to bins, drawing masks on 64×64 cells, saying them
with 16 codes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vlmtasks.datasets.coco import CocoAnnotation, CocoDataset, CocoImage, annotation_rle
from vlmtasks.datasets.mask_crops import crop_mask, mask_bins
from vlmtasks.datasets.paligemma_examples import encode_object_box
from vlmtasks.errors import DatasetError
from vlmtasks.evaluation.coco_ap import Backend, CocoScores, coco_scores
from vlmtasks.generation import Generation
from vlmtasks.results import Detections
from vlmtasks.rle import decode_rle, rle_area
from vlmtasks.tasks import DETECT, SEGMENT
from vlmtasks.tokens import BOX_SCALE, MASK_CODES, SEG_CODES, format_object, format_objects

SMALL, LARGE = 32**2, 96**2  # COCO's sizes of objects, in pixels


class MaskCodec(Protocol):
    """Masks to codes and back; `vqvae.MaskCodec` is one."""

    def encode(self, masks: NDArray[np.float32], /) -> NDArray[np.int64]:
        """(N, 64, 64) masks of 0..1 → (N, 16) codes."""
        ...

    def decode(self, codes: NDArray[np.int64], /) -> NDArray[np.float32]:
        """(N, 16) codes → (N, 64, 64) values, foreground above 0."""
        ...


class UncompressedCodec:
    """Keeps the maps themselves; the codes only number them. For one picture after another."""

    def __init__(self) -> None:
        self._maps: list[NDArray[np.float32]] = []

    def encode(self, masks: NDArray[np.float32]) -> NDArray[np.int64]:
        """Store maps; the codes are their numbers in base 128."""
        numbers = range(len(self._maps), len(self._maps) + len(masks))
        self._maps += [2 * mask - 1 for mask in masks]
        return np.array(
            [
                [number // SEG_CODES**place % SEG_CODES for place in range(MASK_CODES)]
                for number in numbers
            ]
        )

    def decode(self, codes: NDArray[np.int64]) -> NDArray[np.float32]:
        """Look the maps up again."""
        numbers = (codes[:, :4] * SEG_CODES ** np.arange(4)).sum(axis=1)
        return np.stack([self._maps[number] for number in numbers])


@dataclass(frozen=True, eq=False)
class OracleRow:
    """One figure of the ceiling.

    mask_iou: mean overlap of every mask with its ground truth, None for boxes; mask_iou_by_size:
    for small, medium and large objects, None where there are none.
    """

    name: str
    scores: CocoScores
    mask_iou: float | None = None
    mask_iou_by_size: tuple[float | None, float | None, float | None] = (None, None, None)


def oracle_boxes(
    dataset: CocoDataset, *, scale: int = BOX_SCALE, backend: Backend = "pycocotools"
) -> OracleRow:
    """The ceiling of boxes: `detect` with the boxes of the ground truth."""
    rows: list[dict[str, Any]] = []
    for image, annotations in _objects(dataset):
        text = format_objects(
            format_object(_box_bins(entry, image, scale), _label(entry, dataset))
            for entry in annotations
        )
        found = DETECT.parse(_said(text), image_size=_size(image), scale=scale)
        rows += _to_rows(found, image, dataset)
    return OracleRow("boxes", coco_scores(dataset, rows, "bbox", backend=backend))


def oracle_masks(
    dataset: CocoDataset,
    codec: MaskCodec,
    name: str,
    *,
    scale: int = BOX_SCALE,
    backend: Backend = "pycocotools",
) -> OracleRow:
    """The ceiling of masks: `segment` with the masks of the ground truth, through a codec."""
    rows: list[dict[str, Any]] = []
    overlaps: list[tuple[float, float]] = []  # (area of the object, IoU)
    for image, annotations in _objects(dataset):
        masks = [_mask(entry, image) for entry in annotations]
        kept = [(e, mask) for e, mask in zip(annotations, masks, strict=True) if mask is not None]
        if not kept:
            continue
        bins = [mask_bins(mask, scale) for _, mask in kept]
        crops = [crop_mask(mask, loc, scale) for (_, mask), loc in zip(kept, bins, strict=True)]
        codes = codec.encode(np.stack(crops)).tolist()
        text = format_objects(
            format_object(loc, _label(entry, dataset), code)
            for (entry, _), loc, code in zip(kept, bins, codes, strict=True)
        )
        found = SEGMENT.parse(_said(text), image_size=_size(image), codec=codec, scale=scale)
        assert found.masks is not None
        assert len(found) == len(kept)
        overlaps += [
            (entry.area, _iou(drawn, mask))
            for (entry, mask), drawn in zip(kept, found.masks, strict=True)
        ]
        rows += _to_rows(found, image, dataset)
    scores = coco_scores(dataset, rows, "segm", backend=backend)
    sizes = (0, SMALL), (SMALL, LARGE), (LARGE, float("inf"))
    by_size = [_mean([iou for area, iou in overlaps if low <= area < high]) for low, high in sizes]
    mean = _mean([iou for _, iou in overlaps])
    return OracleRow(name, scores, mean, (by_size[0], by_size[1], by_size[2]))


def oracle_table(rows: Sequence[OracleRow]) -> str:
    """The rows as a Markdown table, by object size."""
    heads = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")
    lines = [
        "| what is kept | AP | AP50 | AP75 | AP small | AP medium | AP large | mask IoU | "
        "IoU small | IoU medium | IoU large |",
        "|---|" + "---|" * 10,
    ]
    for row in rows:
        values = [row.scores.stats[name] for name in heads]
        values += [row.mask_iou, *row.mask_iou_by_size]
        cells = ["–" if value is None else f"{value:.4f}" for value in values]
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _objects(dataset: CocoDataset) -> Iterator[tuple[CocoImage, list[CocoAnnotation]]]:
    for image_id, annotations in dataset.by_image().items():
        things = [
            entry
            for entry in annotations
            if not entry.is_crowd and entry.bbox_xywh is not None and entry.category_id is not None
        ]
        yield dataset.images[image_id], things


def _box_bins(
    annotation: CocoAnnotation, image: CocoImage, scale: int
) -> tuple[int, int, int, int]:
    assert annotation.bbox_xywh is not None
    x, y, width, height = annotation.bbox_xywh
    return encode_object_box((x, y, x + width, y + height), _size(image), scale)


def _mask(annotation: CocoAnnotation, image: CocoImage) -> NDArray[np.bool_] | None:
    rle = annotation_rle(annotation, image)
    return None if rle is None or not rle_area(rle) else decode_rle(rle)


def _label(annotation: CocoAnnotation, dataset: CocoDataset) -> str:
    assert annotation.category_id is not None
    return dataset.categories[annotation.category_id]


def _size(image: CocoImage) -> tuple[int, int]:
    if image.size_wh is None:
        raise DatasetError(f"image {image.id!r} ({image.file_name}) has no width and height")
    return image.size_wh


def _said(text: str) -> Generation:
    return Generation(text=text, token_ids=(), logprobs=(), finish_reason="stop")


def _to_rows(found: Detections, image: CocoImage, dataset: CocoDataset) -> list[dict[str, Any]]:
    return found.to_coco(image.id, {name: dataset.category_id(name) for name in dataset.names()})


def _iou(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> float:
    union = int((a | b).sum())
    return int((a & b).sum()) / union if union else 1.0


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
