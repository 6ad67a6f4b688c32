import numpy as np
import pytest

from vlmtasks.categories import CocoCategories, normalize_name
from vlmtasks.errors import InputError

FORMS = {
    "name-to-id": {"person": 1, "stop sign": 13, "toothbrush": 90},
    "id-to-name": {1: "person", 13: "stop sign", 90: "toothbrush"},
    "coco-list": [
        {"id": 90, "name": "toothbrush", "supercategory": "indoor"},
        {"id": 1, "name": "person"},
        {"id": 13, "name": "stop sign"},
    ],
    "coco-object": {
        "images": [],
        "categories": [
            {"id": 13, "name": "stop sign"},
            {"id": 90, "name": "toothbrush"},
            {"id": 1, "name": "person"},
        ],
    },
    "numpy-ids": {"person": np.int64(1), "stop sign": np.int32(13), "toothbrush": np.uint8(90)},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_c11_ids_come_from_the_file_whatever_the_order(form):
    categories = CocoCategories(form)
    assert [categories.id(name) for name in ("person", "stop sign", "toothbrush")] == [1, 13, 90]
    assert categories.name(13) == "stop sign"
    assert len(categories) == 3
    assert categories.to_list() == [
        {"id": 1, "name": "person"},
        {"id": 13, "name": "stop sign"},
        {"id": 90, "name": "toothbrush"},
    ]
    assert CocoCategories(categories).to_list() == categories.to_list()


def test_a_list_of_names_is_numbered_from_one():
    assert CocoCategories(["cat", "dog"]).to_list() == [
        {"id": 1, "name": "cat"},
        {"id": 2, "name": "dog"},
    ]


def test_an_id_may_be_zero():
    assert CocoCategories({"cat": 0}).id("cat") == 0


@pytest.mark.parametrize(
    "label", ["stop  sign", "STOP SIGN", " Stop\tSign ", "stop\u00a0sign"], ids=repr
)
def test_p29_spelling_does_not_matter(label):
    categories = CocoCategories([{"id": 13, "name": "Stop Sign"}])
    assert categories.id(label) == 13
    assert categories.name(13) == "Stop Sign"


def test_names_of_other_scripts():
    assert normalize_name("STRASSE") == normalize_name("straße")
    assert normalize_name("a\u0308pfel") == normalize_name("Äpfel")
    assert CocoCategories({"猫": 5}).id("猫") == 5
    assert CocoCategories({"\ufeffcat": 5}).id("cat\u200b") == 5


@pytest.mark.parametrize("label", ["", "stopsign", "stop-sign", "catt", "1"], ids=repr)
def test_no_category(label):
    assert CocoCategories({"stop sign": 1, "cat": 2}).id(label) is None


def test_new_labels_get_the_next_id():
    categories = CocoCategories({"cat": 7})
    assert [categories.add(label) for label in ("dog", "CAT", "Dog", "cow")] == [8, 7, 8, 9]
    assert categories.name(8) == "dog"
    assert CocoCategories([]).add("cat") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"Stop Sign": 1, "stop sign": 2}, r"'Stop Sign' \(id 1\) and 'stop sign' \(id 2\)"),
        ([{"id": 1, "name": "cat"}, {"id": 2, "name": "cat "}], "at most in case and blanks"),
        ([{"id": 1, "name": "cat"}, {"id": 1, "name": "dog"}], "the same id 1"),
        ({"cat": -1}, "ids are 0 or more"),
        ({"cat": None}, "must be an integer"),
        ({"cat": True}, "must be an integer"),
        ({"cat": 1.0}, "must be an integer"),
        ({"cat": "1"}, "must be an integer"),
        ({" ": 1}, "with letters"),
        ([{"id": 1, "name": None}], "with letters"),
        ([{"id": 1}], "'id' and 'name'"),
        ([3], "'id' and 'name'"),
        ("cat", "must be"),
        (None, "must be"),
    ],
    ids=repr,
)
def test_refused(given, message):
    with pytest.raises(InputError, match=message):
        CocoCategories(given)


def test_name_of_an_unknown_id():
    with pytest.raises(InputError, match=r"category id 99 is not one of \[1\]"):
        CocoCategories({"cat": 1}).name(99)
