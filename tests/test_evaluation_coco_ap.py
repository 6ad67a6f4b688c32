"""COCO AP: pycocotools' own figures, the same from the second implementation, and the traps."""

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlmtasks.datasets.coco import CocoDataset, annotation_rle
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.datasets.coco_results import write_results
from vlmtasks.errors import DatasetError, InputError
from vlmtasks.evaluation.coco_ap import STAT_NAMES, coco_scores
from vlmtasks.rle import decode_rle, encode_rle


@pytest.fixture(scope="module")
def dataset(shared_data: Path) -> CocoDataset:
    path = shared_data / "coco-tiny" / "annotations" / "instances_val2017.json"
    whole = read_coco(path)
    return whole.subset(list(whole.images)[:40])


@pytest.fixture(scope="module")
def results(dataset: CocoDataset) -> list[dict[str, Any]]:
    """The ground truth, shaken: boxes moved, some left out, classes mistaken, scores drawn."""
    rng = np.random.default_rng(0)
    keys = list(dataset.categories)
    rows = []
    for annotation in dataset.annotations:
        rle = annotation_rle(annotation, dataset.images[annotation.image_id])
        if rng.random() < 0.2 or rle is None or annotation.bbox_xywh is None:
            continue
        shift = np.array(annotation.bbox_xywh) * rng.normal(0, 0.06, 4)
        mask = np.roll(decode_rle(rle), int(rng.integers(-6, 7)), 1)
        rows.append(
            {
                "image_id": annotation.image_id,
                "category_id": annotation.category_id
                if rng.random() < 0.9
                else int(rng.choice(keys)),
                "bbox": np.maximum(np.array(annotation.bbox_xywh) + shift, 0.1).tolist(),
                "segmentation": encode_rle(mask),
                "score": float(rng.random()),
            }
        )
    return rows


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_figures_are_those_of_pycocotools_read_from_files(
    shared_data: Path, tmp_path: Path, dataset: CocoDataset, results: Any, kind: Any
) -> None:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    field = "bbox" if kind == "bbox" else "segmentation"
    keep = ("image_id", "category_id", "score", field)
    write_results(tmp_path / "results.json", [{key: row[key] for key in keep} for row in results])
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(shared_data / "coco-tiny" / "annotations" / "instances_val2017.json"))
        evaluator = COCOeval(truth, truth.loadRes(str(tmp_path / "results.json")), kind)
        evaluator.params.imgIds = list(dataset.images)
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    ours = coco_scores(dataset, results, kind).stats
    assert [ours[name] for name in STAT_NAMES] == pytest.approx(evaluator.stats.tolist(), abs=1e-12)


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_both_backends_agree_to_six_digits(dataset: CocoDataset, results: Any, kind: Any) -> None:
    pytest.importorskip("faster_coco_eval", reason="pip install 'vlmtasks[eval]'")
    slow = coco_scores(dataset, results, kind)
    fast = coco_scores(dataset, results, kind, backend="faster-coco-eval")
    assert 0.1 < (slow.stats["AP"] or 0) < 0.9
    assert fast.stats == pytest.approx(slow.stats, abs=1e-6)
    np.testing.assert_allclose(fast.precision, slow.precision, atol=1e-6)
    for key, entry in slow.classes.items():
        assert fast.classes[key].ap == pytest.approx(entry.ap, abs=1e-6)


def test_mean_of_the_classes_is_the_figure(dataset: CocoDataset, results: Any) -> None:
    scores = coco_scores(dataset, results, "bbox")
    known = [entry.ap for entry in scores.classes.values() if entry.ap is not None]
    assert scores.stats["AP"] == pytest.approx(np.mean(known))
    assert np.nanmean(scores.precision) == pytest.approx(scores.stats["AP"])


def test_some_pictures_only(dataset: CocoDataset, results: Any) -> None:
    ids = list(dataset.images)[:10]
    assert (
        coco_scores(dataset, results, "bbox", image_ids=ids).stats
        == coco_scores(dataset.subset(ids), results, "bbox").stats
    )


def test_masks_need_masks_in_the_ground_truth() -> None:
    value = {
        "images": [{"id": 1, "file_name": "a", "width": 9, "height": 9}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 5, 5], "area": 25}
            | {"iscrowd": 0}
        ],
    }
    with pytest.raises(DatasetError, match="no annotation has a segmentation"):
        coco_scores(read_coco(value), [], "segm")
    with pytest.raises(InputError, match="kind"):
        coco_scores(read_coco(value), [], "box")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="backend"):
        coco_scores(read_coco(value), [], "bbox", backend="x")  # type: ignore[arg-type]


def test_area_of_a_mask_is_not_that_of_its_box() -> None:
    """A thin diagonal has a large box; pycocotools' reader would take the box's area."""
    mask = np.eye(80, 100, dtype=bool)
    rle = encode_rle(mask)
    value = {
        "images": [{"id": 1, "file_name": "a", "width": 100, "height": 80}],
        "categories": [{"id": 1, "name": "line"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 80, 80], "area": 80}
            | {"iscrowd": 0, "segmentation": rle}
        ],
    }
    row = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 80, 80], "score": 1.0}
    stats = coco_scores(read_coco(value), [row | {"segmentation": rle}], "segm").stats
    assert stats["AP_small"] == pytest.approx(1.0)
    assert stats["AP_medium"] is None
