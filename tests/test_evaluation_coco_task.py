"""A COCO run from pictures to scores, with a stub for the model."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from stub_vlm import StubVLM

from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.errors import DatasetError
from vlmtasks.evaluation.coco_task import ask, plan, score

CAT = "<loc0256><loc0128><loc0768><loc0512>"  # (8, 16, 32, 48) in 64×64
DOG = "<loc0000><loc0000><loc0512><loc0512>"


def make(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """Two pictures of 64×64 and 32×64 pixels, with a cat in the first."""
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    Image.new("RGB", (32, 64)).save(tmp_path / "b.png")
    return {
        "images": [
            {"id": 1, "file_name": "a.png", "width": 64, "height": 64},
            {"id": 2, "file_name": "b.png", "width": 32, "height": 64},
        ],
        "categories": [{"id": 3, "name": "cat"}, {"id": 7, "name": "Dog"}],
        "annotations": [
            {
                "id": 1,
                "image_id": 1,
                "category_id": 3,
                "bbox": [8, 16, 24, 32],
                "area": 768,
                "iscrowd": 0,
                "segmentation": [[8, 16, 32, 16, 32, 48, 8, 48]],
            }
        ],
    } | changes


def test_all_classes_are_asked_one_by_one(tmp_path: Path) -> None:
    dataset = read_coco(make(tmp_path))
    vlm: Any = StubVLM(tmp_path, {(64, 64): {"cat": [f"{CAT} cat"]}})
    records = ask(vlm, plan(dataset, tmp_path, "all"), "detect", "each")
    asked = [((64, 64), ("cat",)), ((32, 64), ("cat",)), ((64, 64), ("Dog",)), ((32, 64), ("Dog",))]
    assert vlm.asked == asked
    outcome = score(dataset, [{"id": n, **r} for n, r in enumerate(records, 1)], "detect")
    assert outcome.scores[0].stats["AP"] == pytest.approx(1.0)
    assert outcome.results == [
        {"image_id": 1, "category_id": 3, "bbox": [8.0, 16.0, 24.0, 32.0], "score": 1.0}
    ]
    assert outcome.notes == []


def test_present_classes_only(tmp_path: Path) -> None:
    dataset = read_coco(make(tmp_path))
    vlm: Any = StubVLM(tmp_path)
    records = ask(vlm, plan(dataset, tmp_path, "present"), "detect", "each")
    assert vlm.asked == [((64, 64), ("cat",))]
    assert records[1] == {"file_name": "b.png", "image_size": [32, 64], "answers": []}
    outcome = score(dataset, [{"id": n, **r} for n, r in enumerate(records, 1)], "detect")
    assert outcome.scores[0].stats["AP"] == 0.0


def test_classes_joined_in_one_prompt(tmp_path: Path) -> None:
    dataset = read_coco(make(tmp_path))
    vlm: Any = StubVLM(tmp_path)
    ask(vlm, plan(dataset, tmp_path, "all"), "detect", "joined")
    assert vlm.asked == [((64, 64), ("cat", "Dog")), ((32, 64), ("cat", "Dog"))]


def test_C18_unknown_labels_are_left_out_and_counted(tmp_path: Path) -> None:
    dataset = read_coco(make(tmp_path))
    vlm: Any = StubVLM(tmp_path, {(64, 64): {"cat": [f"{CAT} catt", f"{DOG} dog"]}})
    records = ask(vlm, plan(dataset, tmp_path, "all", limit=1), "detect", "each")
    outcome = score(dataset, [{"id": 1, **records[0]}], "detect")
    assert [row["category_id"] for row in outcome.results] == [7]
    assert outcome.notes == ["1 detection with unknown label left out: catt (1×)"]


def test_P18_repetitions_are_dropped_unless_kept(tmp_path: Path) -> None:
    dataset = read_coco(make(tmp_path))
    vlm: Any = StubVLM(tmp_path, {(64, 64): {"cat": [f"{CAT} cat"] * 5, "Dog": [f"{CAT} cat"]}})
    (record,) = ask(vlm, plan(dataset, tmp_path, "all", limit=1), "detect", "each")
    assert len(score(dataset, [{"id": 1, **record}], "detect").results) == 1
    kept = score(dataset, [{"id": 1, **record}], "detect", deduplicate=False)
    assert len(kept.results) == 6


def test_unreadable_picture_is_told_and_the_others_count(tmp_path: Path) -> None:
    dataset = read_coco(make(tmp_path))
    (tmp_path / "b.png").write_bytes(b"no picture")
    vlm: Any = StubVLM(tmp_path, {(64, 64): {"cat": [f"{CAT} cat"]}})
    records = ask(vlm, plan(dataset, tmp_path, "all"), "detect", "each")
    outcome = score(dataset, [{"id": n, **r} for n, r in enumerate(records, 1)], "detect")
    assert list(outcome.failed) == ["b.png"]
    assert "1 pictures could not be read" in outcome.notes[0]
    assert outcome.scores[0].stats["AP"] == pytest.approx(1.0)


def test_picture_of_another_size_than_annotated_is_told(tmp_path: Path) -> None:
    dataset = read_coco(make(tmp_path))
    Image.new("RGB", (65, 64)).save(tmp_path / "a.png")
    vlm: Any = StubVLM(tmp_path)
    records = ask(vlm, plan(dataset, tmp_path, "all", limit=1), "detect", "each")
    assert records[0]["error"] == (
        "has (65, 64) pixels (width, height), but is annotated as (64, 64)"
    )


@pytest.mark.parametrize("annotated", [(32, 64), (64, 32)], ids=["as-stored", "upright"])
def test_orientation_is_the_one_that_was_annotated(
    tmp_path: Path, annotated: tuple[int, int]
) -> None:
    value = make(tmp_path)
    value["images"][0] |= {"width": annotated[0], "height": annotated[1]}
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.new("RGB", (32, 64)).save(tmp_path / "a.png", exif=exif)
    vlm: Any = StubVLM(tmp_path)
    value["annotations"][0]["segmentation"] = None
    ask(vlm, plan(read_coco(value), tmp_path, "present", limit=1), "detect", "each")
    assert vlm.asked == [(annotated, ("cat",))]


def test_masks_are_scored_beside_boxes(tmp_path: Path) -> None:
    dataset = read_coco(make(tmp_path))
    whole = "".join("<seg000>" for _ in range(16))
    half = "<seg001>" + "<seg000>" * 15
    for codes, ap50 in ((whole, 1.0), (half, 1.0)):
        vlm: Any = StubVLM(tmp_path, {(64, 64): {"cat": [f"{CAT}{codes} cat"]}})
        (record,) = ask(vlm, plan(dataset, tmp_path, "all", limit=1), "segment", "each")
        saved = json.loads(json.dumps({"id": 1, **record}))
        boxes, masks = score(dataset, [saved], "segment").scores
        assert boxes.stats["AP"] == pytest.approx(1.0)
        assert masks.stats["AP50"] == pytest.approx(ap50)
        assert masks.stats["AP"] == pytest.approx(1.0 if codes is whole else 0.1)


def test_missing_pictures_and_empty_data_sets_are_refused(tmp_path: Path) -> None:
    value = make(tmp_path)
    (tmp_path / "b.png").unlink()
    with pytest.raises(DatasetError, match=r"1 of 2 pictures.*'b.png'"):
        plan(read_coco(value), tmp_path, "all")
    with pytest.raises(DatasetError, match="no categories"):
        plan(read_coco(value | {"categories": [], "annotations": []}), tmp_path, "all")
    with pytest.raises(DatasetError, match="no pictures"):
        plan(read_coco(value | {"images": [], "annotations": []}), tmp_path, "all")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        pytest.param({"id": 9, "answers": []}, "picture 9", id="unknown-picture"),
        pytest.param({"id": 1, "text": "a cat"}, "no detections", id="captions"),
        pytest.param({"id": 1, "answers": [{"objects": [{}]}]}, "no detections", id="broken"),
    ],
)
def test_records_of_another_run_are_refused(tmp_path: Path, record: Any, words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        score(read_coco(make(tmp_path)), [record], "detect")
