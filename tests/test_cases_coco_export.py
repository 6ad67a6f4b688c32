"""The reported problems of COCO export (C…, P26, P29), from an answer to the entries."""

import json
import math

import numpy as np
import pytest

from vlmtasks.categories import CocoCategories
from vlmtasks.errors import InputError
from vlmtasks.generation import Generation
from vlmtasks.results import Detections
from vlmtasks.rle import decode_rle
from vlmtasks.tasks import DETECT, SEGMENT

CAT = "<loc0256><loc0128><loc0768><loc0512>"
DOG = "<loc0100><loc0200><loc0300><loc0400>"
SEG = "".join(f"<seg{code:03d}>" for code in range(16))
PETS = {"cat": 3, "dog": 7}


class Codec:
    """Stands for the mask codec: every mask has the same value everywhere."""

    def __init__(self, value=1.0):
        self.value = value

    def decode(self, codes):
        return np.full((len(codes), 64, 64), self.value, np.float32)


def detected(text, size=(640, 480)):
    return DETECT.parse(Generation(text, (), (), "stop"), image_size=size)


def segmented(text, size=(640, 480), value=1.0):
    return SEGMENT.parse(Generation(text, (), (), "stop"), image_size=size, codec=Codec(value))


def test_c13_box_is_x_y_width_height():
    found = Detections(np.array([(10, 20, 40, 60)]), ("cat",), np.array([0.5]), (100, 80))
    assert found.to_coco(7, PETS) == [
        {"image_id": 7, "category_id": 3, "bbox": [10.0, 20.0, 30.0, 40.0], "score": 0.5}
    ]


def test_c05_c07_counts_are_str_and_size_is_height_width():
    mask = np.zeros((1, 4, 6), bool)
    mask[0, 1:3, 2:5] = True
    from vlmtasks.masks import Masks

    found = Detections(
        np.array([(2, 1, 5, 3)]), ("cat",), np.array([1]), (6, 4), Masks.from_dense(mask, (6, 4))
    )
    [entry] = json.loads(json.dumps(found.to_coco("a", PETS)))
    assert entry["segmentation"] == {"size": [4, 6], "counts": "9220003"}
    assert entry["area"] == 6
    assert entry["image_id"] == "a"
    assert (decode_rle(entry["segmentation"]) == mask[0]).all()


def test_c18_unknown_labels_are_left_out_and_counted(caplog):
    [entry] = detected(f"{CAT} catt ; {DOG} dog").to_coco(1, PETS)
    assert entry["category_id"] == 7
    assert [record.getMessage() for record in caplog.records] == [
        "1 detection with unknown label: catt"
    ]


def test_c18_several_unknown_labels(caplog):
    text = f"{CAT} catt ; {DOG} catt ; {DOG}"
    assert detected(text).to_coco(1, PETS) == []
    assert caplog.records[0].getMessage() == (
        "3 detections with unknown label: catt (2×), (no label)"
    )


def test_c18_unknown_labels_may_become_categories(caplog):
    categories = CocoCategories(PETS)
    entries = detected(f"{CAT} catt ; {DOG} dog").to_coco(1, categories, keep_unknown=True)
    assert [entry["category_id"] for entry in entries] == [8, 7]
    assert categories.to_list()[-1] == {"id": 8, "name": "catt"}
    assert not caplog.records
    with pytest.raises(InputError, match="keep_unknown needs"):
        detected("").to_coco(1, PETS, keep_unknown=True)


def test_c11_ids_with_gaps():
    categories = [
        {"id": 90, "name": "toothbrush"},
        {"id": 13, "name": "stop sign"},
        {"id": 1, "name": "person"},
    ]
    [entry] = detected(f"{CAT} stop sign").to_coco(1, categories)
    assert entry["category_id"] == 13


def test_p29_case_and_blanks_do_not_matter():
    found = detected(f"{CAT} stop  sign")
    assert found.labels == ("stop  sign",)
    categories = CocoCategories([{"id": 13, "name": "Stop Sign"}])
    [entry] = found.to_coco(1, categories)
    assert categories.name(entry["category_id"]) == "Stop Sign"


def test_p29_two_categories_that_differ_only_in_case():
    with pytest.raises(InputError, match=r"'Stop Sign' \(id 1\) and 'stop sign' \(id 2\)"):
        detected("").to_coco(1, [{"id": 1, "name": "Stop Sign"}, {"id": 2, "name": "stop sign"}])


@pytest.mark.parametrize("text", ["", " \n", "no", "cat", "the quick brown fox"], ids=repr)
def test_p26_nothing_found(text):
    found = detected(text)
    assert found.boxes_xyxy.shape == (0, 4)
    assert found.to_coco(1, PETS) == []
    assert json.dumps(found.to_coco(1, PETS)) == "[]"
    assert segmented(text).masks.dense().shape == (0, 480, 640)


def test_p16_no_negative_sides():
    found = detected("<loc0768><loc0128><loc0256><loc0512> cat")
    assert found.to_coco(1, PETS) == []
    assert [record.problem for record in found.dropped] == ["reversed box"]


def test_p18_repetitions_are_removed_on_request():
    found = detected(" ; ".join([f"{CAT} cat"] * 3 + [f"{DOG} cat"]))
    assert len(found) == 4
    assert len(found.deduplicated()) == 2
    assert found.deduplicated().boxes_xyxy.tolist() == [
        [80, 120, 320, 360],
        [125, 46.875, 250, 140.625],
    ]


def test_p24_mask_belongs_to_its_object():
    found = segmented(f"{CAT}{SEG} cat ; {DOG} dog")
    with_mask, without = found.to_coco(1, PETS)
    assert with_mask["area"] == 57600
    assert "segmentation" not in without
    assert found.masks.dense().shape == (2, 480, 640)


def test_m03_all_background():
    [entry] = segmented(f"{CAT}{SEG} cat", (6, 4), value=-1.0).to_coco(1, PETS)
    assert entry["segmentation"] == {"size": [4, 6], "counts": "h0"}
    assert entry["area"] == 0
    assert entry["bbox"] == [0.75, 1.0, 2.25, 2.0]


@pytest.mark.parametrize("text", [f"{CAT}{SEG} cat ; {DOG} dog", f"{CAT} cat", ""], ids=len)
def test_there_and_back(text):
    found = segmented(text)
    entries = json.loads(json.dumps(found.to_coco(5, PETS)))
    others = [{"image_id": 6, "category_id": 99, "bbox": [0, 0, 1, 1], "score": 1}]
    back = Detections.from_coco(entries + others, (640, 480), PETS, image_id=5)
    assert back.to_coco(5, PETS) == entries
    assert back.labels == found.labels
    assert (back.boxes_xyxy == found.boxes_xyxy).all()
    if back.masks is not None:
        assert (back.masks.dense() == found.masks.dense()).all()


def test_labels_come_back_as_the_data_set_spells_them():
    entries = detected(f"{CAT} stop  sign").to_coco(1, {"Stop Sign": 13})
    assert Detections.from_coco(entries, (640, 480), {"Stop Sign": 13}).labels == ("Stop Sign",)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"image_id": 1, "category_id": 99, "bbox": [0, 0, 1, 1]}], "category id 99"),
        ([{"image_id": 1, "category_id": 3}], "entry 0 has no bbox"),
        ([{"bbox": [0, 0, 1, 1]}], "entry 0 has no category_id; it holds .'bbox'"),
        ([{"category_id": 3, "bbox": [0, 0, 1]}], r"entry 0: bbox is .*\[x, y, width, height"),
        ([{"category_id": 3, "bbox": [1] * 8}], r"entry 0: bbox is .*\[x, y, width, height"),
        ([{"category_id": 3, "bbox": None}], r"bbox is None; it must be \[x, y, width, height"),
        ([{"category_id": 3, "bbox": [0, 0, -1, 1]}], "sides of at least 0"),
        ([{"category_id": 3, "bbox": [0, 0, float("nan"), 1]}], "nan, 1.*finite numbers"),
        ([{"category_id": 3, "bbox": [0, 0, 1, 1], "score": "high"}], "score is 'high'; it must"),
        ([{"category_id": 3, "bbox": [0, 0, 1, 1], "score": None}], "score is None; it must be"),
        ([{"category_id": 3, "bbox": [0, 0, 1, 1], "score": True}], "score is True; it must be"),
        ([{"category_id": 3, "bbox": [0, 0, 1, 1], "score": math.nan}], "score is nan; it must"),
        ([{"category_id": 3, "bbox": [0, 0, 1, 1], "score": 10**400}], "score is 1000.*finite"),
        (
            [{"category_id": "cat", "bbox": [0, 0, 1, 1]}],
            "category_id is 'cat'; it must be a whole",
        ),
        ([{"category_id": [3], "bbox": [0, 0, 1, 1]}], r"category_id is \[3\]; it must be a whole"),
        (
            [{"category_id": 3, "bbox": [0, 0, 1, 1], "segmentation": [[0, 0, 1, 1, 1, 0]]}],
            "run lengths",
        ),
        ([{"category_id": 3, "bbox": [0, 0, 1, 1], "score": 1e39}], "1e39"),
        ([{"category_id": 3, "bbox": [1e308, 0, 1e308, 1]}], "infinity"),
        ([{"category_id": 3, "bbox": [0, 0, 1, 10**400]}], "finite numbers"),
        ([3], "entry 0 is 3; it must be an object"),
        (3, "entries are 3; they must be a list of COCO results"),
        (None, "entries are None; they must be a list of COCO results"),
        ("[]", r"entries are '\[\]'; they must be a list of COCO results"),
        ({"category_id": 3, "bbox": [0, 0, 1, 1]}, "entries are {.*; they must be a list of COCO"),
    ],
    ids=lambda value: repr(value)[:80],
)
def test_entries_that_are_no_results(entries, message):
    with pytest.raises(InputError, match=message):
        Detections.from_coco(entries, (640, 480), PETS)


@pytest.mark.parametrize("image_id", [None, 1.5, True, [1]], ids=repr)
def test_image_id(image_id):
    with pytest.raises(InputError, match="image_id"):
        detected("").to_coco(image_id, PETS)


# --- invented later ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("categories", "message"),
    [
        pytest.param({"cat", "dog"}, "a set has no order", id="set"),
        pytest.param(frozenset({"cat"}), "a set has no order", id="frozen-set"),
        pytest.param({"1": "cat"}, "an id must be an integer.*JSON makes keys str", id="json-keys"),
        pytest.param({"categories": None}, "categories are", id="coco-without"),
        pytest.param([{"id": 1}], "'id' and 'name'", id="no-name"),
    ],
)
def test_categories_that_would_be_a_guess(categories, message):
    with pytest.raises(InputError, match=message):
        detected(f"{CAT} cat").to_coco(1, categories)


PARTS = {"boxes_xyxy": [(0, 0, 1, 1)] * 3, "scores": [1, 1, 1], "image_size": (4, 4)}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        pytest.param({"labels": "cat"}, "labels must be 3 str", id="one-str-of-three-letters"),
        pytest.param({"labels": None}, "labels must be 3 str", id="no-labels"),
        pytest.param({"labels": 3}, "labels must be 3 str", id="number"),
        pytest.param(
            {"labels": ["a"] * 3, "masks": np.ones((3, 4, 4))}, r"Masks\.from_dense", id="pixels"
        ),
        pytest.param({"labels": ["a"] * 3, "dropped": None}, "dropped", id="dropped"),
    ],
)
def test_parts_that_do_not_make_detections(parts, message):
    with pytest.raises(InputError, match=message):
        Detections(**PARTS, **parts)


@pytest.mark.parametrize(
    "change",
    [{"label": 5}, {"score": "high"}, {"reason": 7}, {"box_xyxy": ["a", 1, 2, 3]}],
    ids=str,
)
def test_saved_removals_are_checked(change):
    removed = {"label": "cat", "score": 0.5, "box_xyxy": [0, 0, 1, 1], "reason": "overlap"}
    saved = detected("").to_dict()
    assert Detections.from_dict(saved | {"removed": [removed]}).removed[0].label == "cat"
    with pytest.raises(InputError, match=r"no saved detections|must be numbers"):
        Detections.from_dict(saved | {"removed": [removed | change]})


@pytest.mark.parametrize("iou", [np.float32(0.5), np.float64(0.5), 1, 0], ids=repr)
def test_overlap_may_be_a_number_of_numpy(iou):
    assert len(detected(f"{CAT} cat ; {DOG} cat").without_overlaps(iou)) >= 1


def test_entries_without_image_are_of_no_picture_in_particular():
    entry = {"category_id": 3, "bbox": [0, 0, 1, 1]}
    assert len(Detections.from_coco([entry], (640, 480), PETS)) == 1
    with pytest.raises(InputError, match="entry 0 has no image_id"):
        Detections.from_coco([entry], (640, 480), PETS, image_id=1)


@pytest.mark.parametrize("empty", [None, [], {}], ids=repr)
def test_entries_with_and_without_mask(empty):
    box = {"category_id": 3, "bbox": [0, 0, 2, 2]}
    rle = {"size": [4, 4], "counts": [0, 2, 14]}
    entries = [box | {"segmentation": rle}, box | {"segmentation": empty}]
    found = Detections.from_coco(entries, (4, 4), PETS)
    assert [one.mask is None for one in found] == [False, True]
    with pytest.raises(InputError, match="it must be COCO run lengths"):
        Detections.from_coco([box | {"segmentation": np.zeros((4, 4))}], (4, 4), PETS)


def test_entries_with_numbers_of_numpy():
    entry = {"category_id": np.int64(3), "bbox": [1, 2, 3, 4], "score": np.float32(0.5)}
    other = {"category_id": 3.0, "bbox": np.array([1, 2, 3, 4], np.float32), "score": 0.5}
    found = Detections.from_coco([entry, other], (100, 80), {"cat": 3})
    assert found.boxes_xyxy.tolist() == [[1, 2, 4, 6]] * 2
    assert (found.labels, found.scores.tolist()) == (("cat", "cat"), [0.5, 0.5])
