import dataclasses
import json
import math
import sys

import numpy as np
import pytest
from PIL import Image

from vlmtasks.errors import InputError, MissingExtraError
from vlmtasks.masks import Masks
from vlmtasks.results import Detection, Detections
from vlmtasks.tokens import ParsedObject

ONES = np.ones((64, 64), np.float32)
BOXES = [(80, 120, 320, 360), (125, 46.875, 250, 140.625), (0, 0, 1, 1)]
DROPPED = ParsedObject("cow", (1, 2, 3), None, None, "bad box count", (9, 40))


@pytest.fixture
def found():
    return Detections(
        boxes_xyxy=np.array(BOXES),
        labels=("cat", "dog", "cat"),
        scores=np.array([0.5, 0.25, 1]),
        image_size=(640, 480),
        masks=Masks([ONES, None, -ONES], BOXES, (640, 480)),
        text="an answer",
        finish_reason="length",
        dropped=(DROPPED,),
    )


def nothing():
    return Detections(np.zeros((0, 4)), (), np.zeros(0), (640, 480))


def test_parts(found):
    assert found.boxes_xyxy.dtype == found.scores.dtype == np.float32
    assert found.boxes_xyxy.tolist() == [list(map(float, box)) for box in BOXES]
    assert found.boxes_xywh.tolist() == [
        [80, 120, 240, 240],
        [125, 46.875, 125, 93.75],
        [0, 0, 1, 1],
    ]
    assert found.boxes_norm[0].tolist() == [0.125, 0.25, 0.5, 0.75]
    assert len(found) == 3
    assert repr(found) == "Detections(2 'cat', 1 'dog' in 640×480 pixels, 1 dropped, cut)"


def test_nothing():
    assert nothing().boxes_xyxy.shape == nothing().boxes_xywh.shape == (0, 4)
    assert len(nothing()) == 0
    assert list(nothing()) == []
    assert not nothing()
    assert repr(nothing()) == "Detections(nothing in 640×480 pixels)"
    assert len(nothing()[:]) == len(nothing()[[]]) == len(nothing().deduplicated()) == 0
    assert Detections([], [], [], (640, 480)).boxes_xyxy.shape == (0, 4)


def test_one_by_one(found):
    cat, dog, last = found
    assert (cat.label, cat.score, cat.box_xyxy) == ("cat", 0.5, (80.0, 120.0, 320.0, 360.0))
    assert cat.mask.sum() == 57600
    assert dog.mask is None
    assert last.mask.sum() == 0
    assert isinstance(found[-1], Detection)
    assert found[-1].box_xyxy == last.box_xyxy
    with pytest.raises(IndexError):
        found[3]


@pytest.mark.parametrize(
    ("index", "labels"),
    [
        (slice(1, None), ("dog", "cat")),
        ([1], ("dog",)),
        (np.array([True, False, True]), ("cat", "cat")),
        (np.array([2, 0]), ("cat", "cat")),
        ([], ()),
    ],
    ids=["slice", "list", "bool-array", "int-array", "none"],
)
def test_some_of_them(found, index, labels):
    some = found[index]
    assert some.labels == labels
    assert len(some.boxes_xyxy) == len(some.scores) == len(some.masks) == len(labels)
    assert (some.text, some.finish_reason, some.dropped) == ("an answer", "length", (DROPPED,))


def test_by_score(found):
    assert found[found.scores >= 0.5].boxes_xyxy[:, 0].tolist() == [80, 0]


def test_nothing_can_be_changed(found):
    with pytest.raises(ValueError, match="read-only"):
        found.boxes_xyxy[0, 0] = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.text = "other"
    given = np.array(BOXES, np.float32)
    kept = Detections(given, ("a", "b", "c"), np.ones(3), (640, 480))
    given[:] = 0
    assert kept.boxes_xyxy[0, 0] == 80


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ("cat",)}, "labels must be 3 str"),
        ({"labels": ("cat", "dog", None)}, "labels must be 3 str"),
        ({"scores": np.ones(2)}, "scores must be 3 finite numbers"),
        ({"scores": np.array([1, 1, np.nan])}, "scores must be finite numbers"),
        ({"scores": ["a", "b", "c"]}, "scores is"),
        ({"boxes_xyxy": np.full((3, 4), 1e300)}, "boxes_xyxy must be finite"),
        ({"boxes_xyxy": np.zeros((3, 5))}, r"must be \(N, 4\)"),
        ({"boxes_xyxy": np.full((3, 4), np.inf)}, "infinity"),
        ({"boxes_xyxy": np.array([(5, 0, 1, 1)] * 3)}, "reversed box"),
        ({"masks": Masks([], [], (640, 480))}, "do not fit 3 boxes"),
        ({"image_size": (480, 640)}, "do not fit"),
        ({"image_size": (0, 640)}, "image_size"),
        ({"finish_reason": "eos"}, "finish_reason"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_parts_that_do_not_fit(found, change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(found, **change)


# --- repetitions ---------------------------------------------------------------------------------


def test_repetitions_of_label_box_and_mask():
    boxes = [(0, 0, 9, 9)] * 5 + [(0, 0, 9, 8)]
    labels = ("cat", "cat", "dog", "cat", "cat", "cat")
    masks = Masks([ONES, ONES, ONES, -ONES, None, ONES], boxes, (10, 10))
    found = Detections(np.array(boxes), labels, np.arange(6) / 10, (10, 10), masks)
    assert found.deduplicated().scores.tolist() == found.scores[[0, 2, 3, 4, 5]].tolist()


def test_repetitions_without_masks():
    found = Detections(np.array([(0, 0, 1, 1)] * 3), ("a", "a", "A"), np.ones(3), (4, 4))
    assert found.deduplicated().labels == ("a", "A")


# --- files ---------------------------------------------------------------------------------------


def test_dict_holds_everything_unrounded(found):
    saved = found.to_dict()
    assert saved["image_size"] == [640, 480]
    assert saved["objects"][1] == {
        "label": "dog",
        "score": 0.25,
        "box_xyxy": [125.0, 46.875, 250.0, 140.625],
        "mask": None,
    }
    assert saved["objects"][0]["mask"]["size"] == [480, 640]
    assert saved["finish_reason"] == "length"
    assert saved["dropped"] == [
        {"problem": "bad box count", "label": "cow", "loc_yxyx": [1, 2, 3], "span": [9, 40]}
    ]


def test_dict_without_masks(found):
    saved = dataclasses.replace(found, masks=None).to_dict()
    assert saved["objects"][0] == {
        "label": "cat",
        "score": 0.5,
        "box_xyxy": [80.0, 120.0, 320.0, 360.0],
    }


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_s01_json_there_and_back(found, ensure_ascii):
    named = dataclasses.replace(found, labels=("猫", "Hündin", ""))
    text = named.to_json(ensure_ascii=ensure_ascii)
    assert text.isascii() == ensure_ascii
    back = Detections.from_dict(json.loads(text))
    assert back.to_dict() == named.to_dict()
    assert (back.masks.dense() == named.masks.dense()).all()
    assert back.dropped == (dataclasses.replace(DROPPED, box_xyxy=None),)


def test_nothing_there_and_back():
    assert Detections.from_dict(nothing().to_dict()).to_dict() == nothing().to_dict()


@pytest.mark.parametrize(
    "saved",
    [{}, [], None, {"objects": 3, "image_size": [1, 1]}, {"objects": [{}], "image_size": [1, 1]},
     {"objects": [], "image_size": [0, 1]},
     {"objects": [{"label": "a", "score": "x", "box_xyxy": [0, 0, 1, 1]}], "image_size": [1, 1]},
     {"objects": [], "image_size": [1, 1], "dropped": [{}]},
     {"objects": [], "image_size": [1, 1],
      "dropped": [{"problem": "x", "label": "", "loc_yxyx": [], "span": [0, 1, 2]}]},
     {"objects": [], "image_size": [1, 1], "text": 5},
     {"objects": [], "image_size": [1, 1],
      "dropped": [{"problem": "x", "label": "", "loc_yxyx": [math.nan], "span": [0, 1]}]},
     {"objects": [], "image_size": [1, 1],
      "dropped": [{"problem": None, "label": "", "loc_yxyx": [], "span": [0, 1]}]},
     {"objects": [{"label": "a", "score": 10**400, "box_xyxy": [0, 0, 1, 1]}],
      "image_size": [1, 1]},
     {"objects": [{"label": "a", "score": 1, "box_xyxy": [0, 0, 1, 10**400]}],
      "image_size": [1, 1]}],
    ids=lambda saved: repr(saved)[:90],
)  # fmt: skip
def test_what_is_no_saved_detections(saved):
    with pytest.raises(InputError):
        Detections.from_dict(saved)


def test_save_json(found, tmp_path):
    path = tmp_path / "found.json"
    dataclasses.replace(found, labels=("猫", "\ud83d", "c")).save(path)
    assert "猫" in path.read_text(encoding="utf-8")
    assert Detections.from_dict(json.loads(path.read_bytes())).labels == ("猫", "\ud83d", "c")


@pytest.mark.parametrize("suffix", [".png", ".JPG", ".webp"])
def test_save_picture(found, tmp_path, suffix):
    path = tmp_path / f"found{suffix}"
    found.save(path, Image.new("RGB", (640, 480), (90, 90, 90)))
    with Image.open(path) as drawn:
        assert drawn.size == (640, 480)
        assert drawn.convert("RGB").getcolors(maxcolors=1 << 20) != [(640 * 480, (90, 90, 90))]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.txt", "must end in"),
        ("a.psd", "must end in"),
        ("a", "must end in"),
        ("a.png", "is needed"),
    ],
)
def test_save_what_cannot_be_saved(found, tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        found.save(tmp_path / name)


# --- other libraries -----------------------------------------------------------------------------


def test_torchvision(found):
    torch = pytest.importorskip("torch")
    result = found.to_torchvision()
    assert result["boxes"].dtype == torch.float32
    assert result["boxes"].tolist() == found.boxes_xyxy.tolist()
    assert result["labels"].tolist() == [1, 2, 1]
    assert result["scores"].tolist() == [0.5, 0.25, 1.0]
    assert result["masks"].shape == (3, 480, 640)
    assert result["masks"].dtype == torch.uint8
    assert result["masks"].sum((1, 2)).tolist() == [57600, 0, 0]
    assert found.to_torchvision({"Cat": 17, "dog": 18})["labels"].tolist() == [17, 18, 17]
    empty = nothing().to_torchvision()
    assert empty["boxes"].shape == (0, 4)
    assert empty["labels"].dtype == torch.int64
    assert "masks" not in empty


def test_torchvision_needs_known_labels(found):
    with pytest.raises(InputError, match="label 'dog' is not one of"):
        found.to_torchvision({"cat": 1})


def test_supervision(found):
    pytest.importorskip("supervision")
    result = found.to_supervision()
    assert result.xyxy.tolist() == found.boxes_xyxy.tolist()
    assert result.class_id.tolist() == [0, 1, 0]
    assert result.confidence.tolist() == [0.5, 0.25, 1.0]
    assert result.data["class_name"].tolist() == ["cat", "dog", "cat"]
    assert result.mask.sum() == 57600
    assert len(nothing().to_supervision()) == 0
    assert found.to_supervision({"cat": 5, "dog": 6}).class_id.tolist() == [5, 6, 5]


def test_supervision_is_not_installed(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vlmtasks\[supervision\]'"):
        found.to_supervision()
