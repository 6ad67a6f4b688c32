"""Known problems with COCO export and evaluation (C01 … C20), by their ids.

C01: ids are numbered anew for scoring, so a file with the id 0 scores as any other.
C09: missing fields are filled in with one DatasetWarning for the file.
P29: of two categories that differ only in case one may be unused, because Roboflow writes such
files; two in use are an error before anything is asked.
C18: detections with an unknown label are left out of the results and counted.
C20: both forms of a results file are accepted.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlmtasks.datasets.coco import to_coco_dict, write_coco
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.datasets.coco_results import read_results, write_results
from vlmtasks.datasets.folder import read_folder
from vlmtasks.datasets.paligemma_examples import coco_examples
from vlmtasks.datasets.problems import DatasetWarning
from vlmtasks.errors import DatasetError
from vlmtasks.evaluation.coco_ap import CocoScores, coco_scores
from vlmtasks.evaluation.coco_task import plan
from vlmtasks.rle import check_rle, decode_rle, encode_rle

BACKENDS = ["pycocotools", pytest.param("faster-coco-eval", id="faster-coco-eval")]


def truth(**annotation: Any) -> dict[str, Any]:
    """The ground truth of the cases: one cat; a field given as None is left out."""
    entry = {
        "id": 1,
        "image_id": 7,
        "category_id": 3,
        "bbox": [10, 20, 30, 40],
        "area": 1200,
        "iscrowd": 0,
    } | annotation
    return {
        "info": {},
        "images": [{"id": 7, "width": 100, "height": 80, "file_name": "a.png"}],
        "categories": [{"id": 3, "name": "cat"}],
        "annotations": [{key: value for key, value in entry.items() if value is not None}],
    }


def result(**fields: Any) -> dict[str, Any]:
    return {"image_id": 7, "category_id": 3, "bbox": [10, 20, 30, 40], "score": 0.9} | fields


def score(value: dict[str, Any], results: Any, backend: Any = "pycocotools") -> CocoScores:
    if backend == "faster-coco-eval":
        pytest.importorskip("faster_coco_eval", reason="pip install 'vlmtasks[eval]'")
    dataset = read_coco(value)
    return coco_scores(dataset, read_results(results, dataset), "bbox", backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_C01_annotation_id_zero(backend: str) -> None:
    assert score(truth(id=0), [result()], backend).stats["AP"] == pytest.approx(1.0)


def test_C01_written_ids_start_at_one(tmp_path: Path) -> None:
    write_coco(tmp_path / "out.json", read_coco(truth(id=0)))
    assert json.loads((tmp_path / "out.json").read_text())["annotations"][0]["id"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_C02_no_detections(backend: str) -> None:
    stats = score(truth(), [], backend).stats
    assert [stats[name] for name in ("AP", "AP50", "AP_medium", "AR_100")] == [0.0] * 4
    assert stats["AP_small"] is stats["AR_large"] is None


def test_C02_empty_results_file_is_valid(tmp_path: Path) -> None:
    write_results(tmp_path / "results.json", [])
    assert json.loads((tmp_path / "results.json").read_text()) == []
    assert read_results(tmp_path / "results.json", read_coco(truth())) == []


MASK = np.zeros((4, 6), np.uint8)
MASK[1:3, 2:5] = 1


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(MASK, id="C05-uint8"),
        pytest.param(MASK.astype(bool), id="C07-bool"),
        pytest.param(MASK.astype(np.float64), id="C07-float64"),
        pytest.param(MASK.astype(np.int64), id="C07-int64"),
        pytest.param(np.asfortranarray(MASK), id="C07-fortran"),
        pytest.param(np.ascontiguousarray(MASK[:, ::-1])[:, ::-1], id="C07-negative-strides"),
    ],
)
def test_run_lengths_are_ascii_text_and_go_down_columns(mask: np.ndarray, tmp_path: Path) -> None:
    rle = encode_rle(mask)
    assert rle == {"size": [4, 6], "counts": "9220003"}
    write_results(tmp_path / "results.json", [result(segmentation=rle)])
    (read,) = json.loads((tmp_path / "results.json").read_text())
    assert (decode_rle(check_rle(read["segmentation"])) == MASK).all()


def test_C05_bytes_from_pycocotools_are_accepted() -> None:
    assert check_rle({"size": [4, 6], "counts": b"9220003"})["counts"] == "9220003"


def test_C07_uncompressed_counts() -> None:
    column_major = check_rle({"size": [4, 6], "counts": [9, 2, 2, 2, 2, 2, 5]})
    assert (decode_rle(column_major) == MASK).all()
    row_major = decode_rle(check_rle({"size": [4, 6], "counts": [8, 3, 3, 3, 7]}))
    assert (row_major & (MASK > 0)).sum() / (row_major | (MASK > 0)).sum() == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param({"area": None}, id="C09-area"),
        pytest.param({"iscrowd": None}, id="C09-iscrowd"),
        pytest.param({"area": None, "iscrowd": None}, id="C09-both"),
    ],
)
def test_missing_fields_are_filled_in_with_one_warning(missing: dict[str, None]) -> None:
    with pytest.warns(DatasetWarning) as caught:
        scores = score(truth(**missing), [result()])
    assert scores.stats["AP"] == pytest.approx(1.0)
    assert len(caught) == 1
    assert all(f"1 annotations without {name}" in str(caught[0].message) for name in missing)
    assert scores.stats["AP_medium"] == pytest.approx(1.0)  # area 30 × 40


def test_C09_area_comes_from_the_mask_where_there_is_one() -> None:
    rle = encode_rle(np.ones((80, 100)))
    with pytest.warns(DatasetWarning, match="taken from the mask"):
        dataset = read_coco(truth(area=None, segmentation=rle))
    assert dataset.annotations[0].area == 8000


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]], ids=str)
def test_C11_names_map_to_ids_with_gaps(order: list[int]) -> None:
    names = [(1, "person"), (13, "stop sign"), (90, "toothbrush")]
    categories = [{"id": names[n][0], "name": names[n][1]} for n in order]
    dataset = read_coco({"images": [], "categories": categories, "annotations": []})
    assert dataset.category_id("stop sign") == 13
    assert dataset.category_id(" Stop Sign ") == 13
    assert dataset.category_id("stopsign") is None


@pytest.mark.parametrize(
    ("bbox", "ap"),
    [
        pytest.param([10, 20, 30, 40], 1.0, id="C13-right"),
        pytest.param([10, 20, 40, 60], 0.1, id="C13-corners"),
        pytest.param([20, 10, 40, 30], 0.0, id="C13-swapped"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bbox_order(bbox: list[int], ap: float, backend: str) -> None:
    assert score(truth(), [result(bbox=bbox)], backend).stats["AP"] == pytest.approx(ap)


def test_C15_nothing_to_find_is_no_figure() -> None:
    scores = score(truth(), [result()])
    for name, value in scores.stats.items():
        expected = None if name.endswith(("small", "large")) else pytest.approx(1.0)
        assert value == expected, name
    assert "AP_small   n/a" in scores.table()
    assert json.loads(json.dumps(scores.stats))["AP_small"] is None


def test_C15_class_without_truth_does_not_enter_the_mean() -> None:
    value = truth()
    value["categories"].append({"id": 9, "name": "dog"})
    scores = score(value, [result(), result(category_id=9)])
    assert scores.stats["AP"] == pytest.approx(1.0)
    assert scores.classes[9].ap is None
    assert (scores.classes[9].truths, scores.classes[9].detections) == (0, 1)


def test_C18_unknown_category_id_in_results_warns() -> None:
    dataset = read_coco(truth())
    with pytest.warns(DatasetWarning, match=r"99 \(2×\)"):
        rows = read_results([result(), result(category_id=99), result(category_id=99)], dataset)
    assert len(rows) == 1


@pytest.mark.parametrize("with_score", [True, False], ids=["C20-score", "C20-no-score"])
def test_C20_whole_coco_object_as_results(with_score: bool) -> None:
    row = result(id=1) if with_score else {k: v for k, v in result(id=1).items() if k != "score"}
    dataset = read_coco(truth())
    (read,) = read_results({"annotations": [row]}, dataset)
    assert read["score"] == (0.9 if with_score else 1.0)
    assert score(truth(), {"annotations": [row]}).stats["AP"] == pytest.approx(1.0)


def test_C20_exchanged_arguments_are_named() -> None:
    with pytest.raises(DatasetError, match="exchanged"):
        read_coco([result()])  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match="results must be a list"):
        read_results(truth() | {"annotations": None}, read_coco(truth()))


def test_C20_list_rows_without_score_are_refused() -> None:
    with pytest.raises(DatasetError, match="entry 1: score is None"):
        read_results([result(), result(score=None)], read_coco(truth()))


def test_I01_images_entry_is_that_of_the_upright_picture(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(tmp_path / "o6.jpg", exif=exif)
    write_coco(tmp_path / "out.json", read_folder(tmp_path))
    (image,) = json.loads((tmp_path / "out.json").read_text())["images"]
    assert (image["file_name"], image["width"], image["height"]) == ("o6.jpg", 20, 40)


def test_P26_picture_without_objects_keeps_its_entry() -> None:
    value = to_coco_dict(read_coco(truth() | {"annotations": []}))
    assert [image["id"] for image in value["images"]] == [7]
    assert value["annotations"] == []


@pytest.mark.parametrize("in_use", [[3], [3, 9]], ids=["P29-one-in-use", "P29-both-in-use"])
def test_categories_that_differ_only_in_case(tmp_path: Path, in_use: list[int]) -> None:
    Image.new("RGB", (100, 80)).save(tmp_path / "a.png")
    value = truth()
    value["categories"].append({"id": 9, "name": "CAT "})
    value["annotations"] = [
        value["annotations"][0] | {"id": n, "category_id": key} for n, key in enumerate(in_use, 1)
    ]
    dataset = read_coco(value)
    if in_use == [3]:
        assert [item.labels for item in plan(dataset, tmp_path, "all")] == [("cat",)]
        assert coco_examples(dataset, "detect").examples[0].prefix == "detect cat"
        return
    for call in (lambda: plan(dataset, tmp_path, "all"), lambda: coco_examples(dataset, "detect")):
        with pytest.raises(DatasetError, match=r"'cat' \(id 3\) and 'CAT' \(id 9\) differ at most"):
            call()


def test_image_ids_of_64_bits() -> None:
    value = truth(image_id=2**60)
    value["images"][0]["id"] = 2**60
    assert score(value, [result(image_id=2**60)]).stats["AP"] == pytest.approx(1.0)


def test_nothing_to_find_at_all() -> None:
    for value in (truth() | {"annotations": []}, truth(iscrowd=1)):
        assert set(score(value, [result()]).stats.values()) <= {None, 0.0}
        assert score(value, []).stats["AP"] is None


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        pytest.param("image_id", "7", "image_id is '7', and no picture", id="image-id-in-words"),
        pytest.param("image_id", 7.5, "image_id is 7.5", id="half-an-image-id"),
        pytest.param("image_id", 2**63, "it must be a whole number", id="image-id-of-65-bits"),
        pytest.param("category_id", "3", "category_id is '3'", id="category-in-words"),
        pytest.param("bbox", [0.1, 0.2, 0.3], "must be .x, y, width", id="three-numbers"),
        pytest.param("bbox", "10,20,30,40", "must be .x, y, width", id="box-in-words"),
        pytest.param("segmentation", [10, 5, 40, 5, 40, 45], "a flat list", id="flat-polygon"),
        pytest.param("segmentation", [[10, 5, 40]], "a polygon is", id="odd-polygon"),
    ],
)
def test_annotations_with_a_mistake(field: str, value: Any, words: str) -> None:
    with pytest.raises(DatasetError, match=rf"annotations\[0\].*{words}"):
        read_coco(truth(**{field: value}))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"\x1f\x8b\x08\0", "is compressed", id="gzip"),
        pytest.param(b"", "line 1, column 1", id="empty"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull", id="lfs"),
        pytest.param(b"<html>404</html>", "line 1, column 1", id="html"),
        pytest.param(b'{"images": []} {"images": []}', "Extra data", id="two-objects"),
        pytest.param('{"images": []}'.encode("utf-16"), "0xff is not UTF-8", id="utf-16"),
    ],
)
def test_files_that_are_no_json(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "instances.json").write_bytes(content)
    with pytest.raises(DatasetError, match=rf"instances\.json.*{words}"):
        read_coco(tmp_path / "instances.json")


@pytest.mark.parametrize("size", [(100.0, 80.0), (100, 80)], ids=["floats", "integers"])
def test_sizes_may_be_floats(size: tuple[float, float]) -> None:
    value = truth()
    value["images"][0] |= {"width": size[0], "height": size[1]}
    assert read_coco(value).images[7].size_wh == (100, 80)
