"""Average precision of boxes and masks as COCO computes it.

The arithmetic is pycocotools' (or, equal and faster, faster-coco-eval's: extra `eval`). What is
done around it:

- the ground truth is numbered anew, since pycocotools takes annotation 0 for "no match";
- no results at all score 0 rather than raise;
- boxes are scored from `bbox` and masks from `segmentation`, whatever else a row has (pycocotools
  looks at the first row only, and takes a mask's area from its box);
- "-1", which means that there was nothing to find, becomes None and is never averaged.
"""

import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vlmtasks.boxes import SizeWH
from vlmtasks.choices import check_choice
from vlmtasks.datasets.coco import CocoDataset, ImageId, annotation_rle
from vlmtasks.errors import DatasetError, InputError, MissingExtraError
from vlmtasks.rle import RLE, pack_runs, rle_area

Kind = Literal["bbox", "segm"]
Backend = Literal["pycocotools", "faster-coco-eval"]

STAT_NAMES = (
    "AP",
    "AP50",
    "AP75",
    "AP_small",
    "AP_medium",
    "AP_large",
    "AR_1",
    "AR_10",
    "AR_100",
    "AR_small",
    "AR_medium",
    "AR_large",
)
IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)


@dataclass(frozen=True)
class ClassScore:
    """One category: AP over all IoU thresholds and at 0.5, recall, and how many there are."""

    name: str
    ap: float | None
    ap50: float | None
    ar100: float | None
    truths: int
    detections: int


@dataclass(frozen=True, eq=False)
class CocoScores:
    """COCO's twelve figures by name (see STAT_NAMES), 0..1, None where nothing was to be found.

    classes: by category id. precision: (10 IoU thresholds, 101 recalls, classes) in the order of
    `classes`, all sizes, 100 detections a picture; NaN for classes without ground truth.
    """

    kind: Kind
    stats: dict[str, float | None]
    classes: dict[int, ClassScore]
    precision: NDArray[np.float64]

    def table(self) -> str:
        """The figures for a terminal, one a line, "n/a" for None."""
        lines = [
            f"{name:<10} {'n/a' if value is None else f'{value:.4f}'}"
            for name, value in self.stats.items()
        ]
        return "\n".join([f"COCO {self.kind}", *lines])


def coco_scores(
    dataset: CocoDataset,
    results: Sequence[Mapping[str, Any]],
    kind: Kind,
    *,
    image_ids: Iterable[ImageId] | None = None,
    backend: Backend = "pycocotools",
) -> CocoScores:
    """Score results against a data set.

    results: rows as `read_results` returns them; only those with a `bbox` (kind "bbox") or a
        `segmentation` (kind "segm") count.
    image_ids: score these pictures only.

    InputError: an unknown kind or backend. DatasetError: masks asked of a ground truth without any.
    MissingExtraError: faster-coco-eval is not installed.
    """
    check_choice(kind, ("bbox", "segm"), "kind")
    if image_ids is not None:
        dataset = dataset.subset(image_ids)
    coco_class, evaluator_class = _load_backend(backend)
    numbers = {image_id: number for number, image_id in enumerate(dataset.images, start=1)}
    truths = _truths(dataset, numbers, kind)
    rows = _rows(results, dataset, numbers, kind)
    with contextlib.redirect_stdout(io.StringIO()):
        evaluator = evaluator_class(
            _index(coco_class, dataset, truths), _index(coco_class, dataset, rows), kind
        )
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return _collect(evaluator, dataset, truths, rows, kind)


def _load_backend(backend: Backend) -> tuple[Any, Any]:
    if backend == "pycocotools":
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        return COCO, COCOeval
    if backend == "faster-coco-eval":
        try:
            from faster_coco_eval import COCO, COCOeval_faster
        except ImportError:
            raise MissingExtraError("faster-coco-eval", "eval") from None
        return COCO, COCOeval_faster
    raise InputError(f"backend is {backend!r}; it must be 'pycocotools' or 'faster-coco-eval'")


def _truths(
    dataset: CocoDataset, numbers: Mapping[ImageId, int], kind: Kind
) -> list[dict[str, Any]]:
    truths = []
    masks = 0
    for annotation in dataset.annotations:
        if annotation.bbox_xywh is None or annotation.category_id is None:
            continue  # a caption
        entry: dict[str, Any] = {
            "id": len(truths) + 1,
            "image_id": numbers[annotation.image_id],
            "category_id": annotation.category_id,
            "bbox": list(annotation.bbox_xywh),
            "area": annotation.area,
            "iscrowd": int(annotation.is_crowd),
        }
        if kind == "segm":
            image = dataset.images[annotation.image_id]
            rle = annotation_rle(annotation, image)
            masks += rle is not None
            entry["segmentation"] = rle or _empty_mask(image.size_wh)
        truths.append(entry)
    if kind == "segm" and truths and not masks:
        raise DatasetError(
            f"{dataset.name}: no annotation has a segmentation, so masks cannot be scored; "
            "score boxes, or give an instances file with masks"
        )
    return truths


def _empty_mask(size_wh: SizeWH | None) -> RLE:
    """An object without mask among others with one: nothing can match it."""
    width, height = size_wh or (1, 1)
    return pack_runs([height * width], height, width)


def _rows(
    results: Sequence[Mapping[str, Any]],
    dataset: CocoDataset,
    numbers: Mapping[ImageId, int],
    kind: Kind,
) -> list[dict[str, Any]]:
    field = "bbox" if kind == "bbox" else "segmentation"
    rows = []
    for result in results:
        value = result.get(field)
        if result["image_id"] not in numbers or value is None:
            continue
        if result["category_id"] not in dataset.categories:
            continue
        area = value[2] * value[3] if kind == "bbox" else float(rle_area(value))
        rows.append(
            {
                "id": len(rows) + 1,
                "image_id": numbers[result["image_id"]],
                "category_id": result["category_id"],
                "score": result["score"],
                "iscrowd": 0,
                "area": area,
                field: value,
            }
        )
    if kind == "segm" and results and not any(field in result for result in results):
        raise DatasetError(
            f"none of the {len(results)} results has a segmentation, so masks cannot be scored; "
            "score boxes, or give results with masks"
        )
    return rows


def _index(coco_class: Any, dataset: CocoDataset, annotations: list[dict[str, Any]]) -> Any:
    """The object that the evaluators read, without going through their file readers."""
    coco = coco_class()
    images = []
    for number, image in enumerate(dataset.images.values(), start=1):
        width, height = image.size_wh or (1, 1)
        images.append({"id": number, "width": width, "height": height})
    coco.dataset = {
        "info": {},
        "images": images,
        "annotations": annotations,
        "categories": [{"id": key, "name": name} for key, name in dataset.categories.items()],
    }
    coco.createIndex()
    return coco


def _collect(
    evaluator: Any,
    dataset: CocoDataset,
    truths: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    kind: Kind,
) -> CocoScores:
    figures = evaluator.stats[: len(STAT_NAMES)]  # faster-coco-eval appends others
    stats = {name: _known(value) for name, value in zip(STAT_NAMES, figures, strict=True)}
    keys = [int(key) for key in evaluator.params.catIds]
    precision = np.array(evaluator.eval["precision"], dtype=np.float64)  # (T, R, K, area, dets)
    precision = precision.reshape(len(IOU_THRESHOLDS), len(RECALLS), len(keys), 4, 3)[..., 0, -1]
    recall = np.array(evaluator.eval["recall"], dtype=np.float64)
    recall = recall.reshape(len(IOU_THRESHOLDS), len(keys), 4, 3)[..., 0, -1]
    wanted = [entry["category_id"] for entry in truths if not entry["iscrowd"]]
    found = [row["category_id"] for row in rows]
    classes = {
        key: ClassScore(
            dataset.categories[key],
            _known(precision[:, :, place].mean()),
            _known(precision[0, :, place].mean()),
            _known(recall[:, place].mean()),
            wanted.count(key),
            found.count(key),
        )
        for place, key in enumerate(keys)
    }
    return CocoScores(kind, stats, classes, np.where(precision < 0, np.nan, precision))


def _known(value: Any) -> float | None:
    """-1 means that there was nothing to find."""
    return None if value < 0 else float(value)
