"""COCO files: what is read, what is repaired, what is refused, and that others read ours."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vlmtasks.datasets.coco import CocoDataset, annotation_rle, to_coco_dict, write_coco
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.datasets.coco_results import read_results, write_results
from vlmtasks.datasets.problems import DatasetWarning
from vlmtasks.errors import DatasetError, InputError, VlmtasksError
from vlmtasks.rle import check_rle, decode_rle, encode_rle, rle_area

SQUARE = [10.0, 10.0, 50.0, 10.0, 50.0, 40.0, 10.0, 40.0]


def instances(**annotation: Any) -> dict[str, Any]:
    entry = {"id": 5, "image_id": 1, "category_id": 2, "bbox": [10, 10, 40, 30], "area": 1200}
    entry |= {"iscrowd": 0, "segmentation": [SQUARE]} | annotation
    return {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 100, "height": 60}],
        "categories": [{"id": 2, "name": "cat"}],
        "annotations": [entry],
    }


def test_reads_polygons_run_lengths_and_crowds() -> None:
    runs = {"size": [60, 100], "counts": [600, 1200, 4200]}
    value = instances()
    value["annotations"].append(
        value["annotations"][0] | {"id": 6, "iscrowd": 1, "segmentation": runs}
    )
    dataset = read_coco(value)
    square, crowd = dataset.annotations
    image = dataset.images[1]
    assert (square.is_crowd, crowd.is_crowd) == (False, True)
    assert rle_area(annotation_rle(square, image) or {}) == 1200
    assert isinstance(crowd.segmentation, dict)
    assert decode_rle(crowd.segmentation)[:, 10:30].all()
    assert rle_area(crowd.segmentation) == 1200


def test_reads_captions() -> None:
    value = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [{"id": 1, "image_id": 1, "caption": "A cat."}],
    }
    (annotation,) = read_coco(value).annotations
    assert (annotation.caption, annotation.category_id) == ("A cat.", None)


@pytest.mark.parametrize(
    ("changes", "repair"),
    [
        pytest.param({"bbox": None}, "without bbox", id="bbox"),
        pytest.param({"area": None}, "without area", id="area"),
        pytest.param({"iscrowd": None}, "without iscrowd", id="iscrowd"),
        pytest.param({"id": None}, "without id", id="id"),
        pytest.param({"segmentation": [SQUARE, [1, 2, 3, 4]]}, "fewer than three", id="short"),
    ],
)
def test_harmless_gaps_are_filled_and_told(changes: dict[str, Any], repair: str) -> None:
    value = instances(**changes)
    value["annotations"] = [{k: v for k, v in value["annotations"][0].items() if v is not None}]
    with pytest.warns(DatasetWarning, match=repair):
        dataset = read_coco(value)
    (annotation,) = dataset.annotations
    assert annotation.bbox_xywh == (10.0, 10.0, 40.0, 30.0)
    assert annotation.area == 1200
    assert annotation.segmentation == [SQUARE]
    assert repair in dataset.repairs[0]


@pytest.mark.parametrize("empty", [None, []], ids=["null", "list"])
def test_empty_segmentation_is_none(empty: Any) -> None:
    assert read_coco(instances(segmentation=empty)).annotations[0].segmentation is None


def test_doubled_annotation_ids_are_numbered_anew() -> None:
    value = instances()
    value["annotations"] *= 2
    with pytest.warns(DatasetWarning, match="id of another"):
        dataset = read_coco(value)
    assert [annotation.id for annotation in dataset.annotations] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"image_id": 9}, "no picture has this id", id="unknown-picture"),
        pytest.param({"category_id": 9}, "no category has this id", id="unknown-category"),
        pytest.param({"category_id": None}, "category_id is None", id="no-category"),
        pytest.param({"bbox": [1, 2, 3]}, r"\[x, y, width, height\]", id="three-numbers"),
        pytest.param({"bbox": [1, 2, -3, 4]}, "at least 0", id="negative-width"),
        pytest.param({"bbox": [1, 2, "3", 4]}, "finite", id="text-in-box"),
        pytest.param({"bbox": [1, 2, 10**400, 4]}, "finite", id="huge"),
        pytest.param({"bbox": [1, 2, 1e308, 4]}, "must be pixels", id="beyond-any-picture"),
        pytest.param({"bbox": [1, 2, float("nan"), 4]}, "finite", id="nan"),
        pytest.param({"bbox": None, "segmentation": None}, "neither bbox", id="nothing"),
        pytest.param({"area": -1}, "area is -1", id="area"),
        pytest.param({"iscrowd": 2}, "iscrowd is 2", id="crowd"),
        pytest.param({"id": "x"}, "id is 'x'", id="annotation-id"),
        pytest.param({"segmentation": [[1, 2, 3]]}, "a polygon is", id="odd-polygon"),
        pytest.param({"segmentation": "x"}, "polygons or run lengths", id="text"),
        pytest.param(
            {"segmentation": {"size": [100, 60], "counts": [6000]}}, r"\(100, 60\)", id="size-swap"
        ),
        pytest.param(
            {"segmentation": {"size": [60, 100], "counts": [5]}}, "5 pixels in total", id="sum"
        ),
        pytest.param(
            {"segmentation": {"size": [60, 100], "counts": "\x00"}},
            "no COCO run lengths",
            id="bytes",
        ),
    ],
)
def test_harmful_mistakes_are_refused_with_their_entry(changes: Any, words: str) -> None:
    with pytest.raises(DatasetError, match=rf"annotations\[0\].*{words}"):
        read_coco(instances(**changes))


def test_every_mistake_is_listed_with_its_line(tmp_path: Path) -> None:
    value = instances()
    good = value["annotations"][0]
    value["annotations"] = [good, good | {"id": 6, "bbox": [1]}, good | {"id": 7, "image_id": 4}]
    value["images"].append({"id": 1, "file_name": "b.jpg"})
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(value, indent=1))
    lines = path.read_text().split("\n")
    starts = [n for n, line in enumerate(lines, 1) if line.startswith("  {")]
    with pytest.raises(DatasetError) as caught:
        read_coco(path)
    message = str(caught.value)
    assert message.startswith("3 mistakes")
    assert f"instances.json, line {starts[1]}, images[1]: id 1 is used" in message
    assert f"instances.json, line {starts[4]}, annotations[1]: bbox is [1]" in message
    assert f"instances.json, line {starts[5]}, annotations[2]: image_id is 4" in message


def test_only_ten_of_many_mistakes_are_shown() -> None:
    value = instances()
    value["annotations"] = [value["annotations"][0] | {"bbox": [1]}] * 500
    with pytest.raises(DatasetError, match="500 mistakes") as caught:
        read_coco(value)
    assert str(caught.value).endswith("… and 490 more")
    assert str(caught.value).count("bbox is") == 10


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "line 1, column 1", id="empty"),
        pytest.param(b'{"images": [\n  {]}', "line 2, column 4", id="syntax"),
        pytest.param(b'{"a": "\xff"}', "not UTF-8", id="encoding"),
        pytest.param(b"{}", '"images"', id="no-images"),
        pytest.param(b'{"images": {}}', '"images"', id="images-object"),
        pytest.param(b'{"images": [], "annotations": 3}', '"annotations" is 3', id="no-list"),
        pytest.param(b'{"images": [NaN]}', "NaN", id="nan"),
        pytest.param(b"[" * 200_000, "nested too deeply", id="deep"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "instances.json"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"instances\.json") as caught:
        read_coco(path)
    assert words in str(caught.value)


def test_missing_file() -> None:
    with pytest.raises(DatasetError, match="cannot be read: No such file"):
        read_coco("no/such/instances.json")


def test_same_name_twice_takes_the_category_in_use() -> None:
    value = instances()
    value["categories"].insert(0, {"id": 0, "name": "cat"})  # Roboflow's group
    value["categories"].append({"id": 8, "name": "Cat"})
    assert read_coco(value).category_id("cat") == 2
    assert read_coco(value).category_id("Cat") == 8
    assert read_coco(value).category_id("CAT") == 2


def test_subset_keeps_the_order_of_the_file() -> None:
    value = instances()
    value["images"] = [value["images"][0] | {"id": n, "file_name": f"{n}.jpg"} for n in (3, 1, 2)]
    assert list(read_coco(value).subset([2, 3]).images) == [3, 2]
    assert read_coco(value).subset([2, 3]).annotations == ()


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(path, [])
    with pytest.raises(InputError, match="JSON"):
        write_results(path, [{"score": float("nan")}])
    assert json.loads(path.read_text()) == []
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("wrapped", [False, True], ids=["list", "object"])
def test_wrong_results_name_file_line_and_entry(tmp_path: Path, wrapped: bool) -> None:
    row = {"image_id": 1, "category_id": 2, "bbox": [1, 2, 3, 4], "score": 0.5}
    rows: Any = [row, row | {"bbox": [1]}, row | {"image_id": 3}]
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"annotations": rows} if wrapped else rows, indent=1))
    with pytest.raises(DatasetError) as caught:
        read_results(path, read_coco(instances()))
    line = path.read_text().split("\n").index("  {" if wrapped else " {") + 1
    starts = [n for n, text in enumerate(path.read_text().split("\n"), 1) if text.strip() == "{"]
    starts = [n for n in starts if n >= line]
    assert f"results.json, line {starts[1]}, entry 1: bbox is [1]" in str(caught.value)
    assert f"results.json, line {starts[2]}, entry 2: image_id is 3" in str(caught.value)


def real_val(shared_data: Path) -> CocoDataset:
    return read_coco(shared_data / "coco-tiny" / "annotations" / "instances_val2017.json")


def test_real_file_survives_a_round_trip_through_pycocotools(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pycocotools.coco import COCO

    dataset = real_val(shared_data)
    write_coco(tmp_path / "out.json", dataset)
    again = read_coco(tmp_path / "out.json")
    assert again.images == dataset.images
    assert again.categories == dataset.categories
    ours = [(a.image_id, a.category_id, a.bbox_xywh, a.area, a.is_crowd) for a in again.annotations]
    source = shared_data / "coco-tiny" / "annotations" / "instances_val2017.json"
    theirs = COCO(str(source)).dataset["annotations"]
    assert ours == [
        (a["image_id"], a["category_id"], tuple(a["bbox"]), a["area"], bool(a["iscrowd"]))
        for a in theirs
    ]
    read_back = COCO(str(tmp_path / "out.json"))
    for number, annotation in enumerate(dataset.annotations, 1):
        rle = annotation_rle(annotation, dataset.images[annotation.image_id])
        assert rle is not None
        counts = read_back.annToRLE(read_back.anns[number])["counts"]
        assert (counts if isinstance(counts, str) else counts.decode()) == rle["counts"]
    capsys.readouterr()


def test_real_results_survive_a_round_trip(shared_data: Path, tmp_path: Path) -> None:
    dataset = real_val(shared_data)
    rows = [
        {
            "image_id": a.image_id,
            "category_id": a.category_id,
            "bbox": list(a.bbox_xywh or ()),
            "segmentation": annotation_rle(a, dataset.images[a.image_id]),
            "score": 0.5,
        }
        for a in dataset.annotations
    ]
    write_results(tmp_path / "results.json", rows)
    assert read_results(tmp_path / "results.json", dataset) == rows


def test_data_set_is_read_by_supervision(shared_data: Path, tmp_path: Path) -> None:
    supervision = pytest.importorskip("supervision", reason="pip install 'vlmtasks[supervision]'")
    dataset = real_val(shared_data).subset([*real_val(shared_data).images][:6])
    write_coco(tmp_path / "out.json", dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # supervision's own deprecations
        read = supervision.DetectionDataset.from_coco(
            str(shared_data / "coco-tiny" / "val2017"),
            str(tmp_path / "out.json"),
            force_masks=False,
        )
    names = list(dataset.categories.values())
    assert read.classes == names
    by_name = {image.file_name: key for key, image in dataset.images.items()}
    for path, _, detections in read:
        annotations = dataset.by_image()[by_name[Path(path).name]]
        boxes = [a.bbox_xywh for a in annotations]
        assert [names[n] for n in detections.class_id] == [
            dataset.categories[a.category_id or 0] for a in annotations
        ]
        for (x, y, w, h), xyxy in zip(boxes, detections.xyxy, strict=True):  # type: ignore[misc]
            np.testing.assert_allclose(xyxy, (x, y, x + w, y + h), atol=1e-3)


@given(st.integers(1, 12), st.integers(1, 12), st.randoms())
def test_run_lengths_round_trip(height: int, width: int, random: Any) -> None:
    mask = np.array([[random.random() < 0.5 for _ in range(width)] for _ in range(height)])
    rle = encode_rle(mask)
    assert check_rle(rle) == rle
    assert (decode_rle(rle) == mask).all()
    assert rle_area(rle) == mask.sum()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1", "cat", "a.jpg", [10, 10, 40, 30], {"size": [60, 100], "counts": "1"}]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
PLACES = st.sampled_from(
    [(key, field) for key in ("images", "categories", "annotations") for field in
     ("id", "file_name", "width", "height", "name", "image_id", "category_id", "bbox", "area",
      "iscrowd", "segmentation", "caption")]
)  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(PLACES, JSON), min_size=1, max_size=3))
def test_any_value_anywhere_raises_only_our_errors(changes: list[Any]) -> None:
    value = instances()
    for (key, field), new in changes:
        value[key][0][field] = new
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DatasetWarning)
        try:
            json.dumps(to_coco_dict(read_coco(value)), allow_nan=False)
        except VlmtasksError:
            pass


@settings(max_examples=200)
@given(JSON)
def test_any_results_raise_only_our_errors(value: Any) -> None:
    dataset = read_coco(instances())
    row = {"image_id": 1, "category_id": 2, "bbox": [1, 2, 3, 4], "score": 0.5}
    for rows in (value, [value], [row | {"segmentation": value}], [row | {"score": value}]):
        try:
            read_results(rows, dataset)
        except VlmtasksError:
            pass
