import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from pycocotools import mask as coco_mask

from vlmtasks.errors import InputError
from vlmtasks.rle import check_rle, decode_rle, encode_rle, rle_area, rle_counts

MASK = np.zeros((4, 6), np.uint8)
MASK[1:3, 2:5] = 1
PACKED = {"size": [4, 6], "counts": "9220003"}


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(MASK, id="C07-uint8"),
        pytest.param(MASK.astype(bool), id="C07-bool"),
        pytest.param(MASK.astype(np.float64), id="C07-float64"),
        pytest.param(MASK.astype(np.int64), id="int64"),
        pytest.param(MASK * 255, id="255"),
        pytest.param(np.where(MASK, 0.3, -0.7), id="values-around-0"),
        pytest.param(np.asfortranarray(MASK), id="fortran"),
        pytest.param(np.repeat(MASK, 2, axis=1)[:, ::2], id="strided"),
        pytest.param(MASK.tolist(), id="list"),
    ],
)
def test_encode(mask):
    rle = encode_rle(mask)
    assert rle == PACKED
    assert rle_counts(rle) == [9, 2, 2, 2, 2, 2, 5]
    assert rle_area(rle) == 6
    assert coco_mask.toBbox(rle).tolist() == [2, 1, 3, 2]


def test_c05_json_round_trip():
    written = json.dumps(encode_rle(MASK))
    assert (decode_rle(json.loads(written)) == MASK.astype(bool)).all()


@pytest.mark.parametrize(
    "counts",
    ["9220003", b"9220003", [9, 2, 2, 2, 2, 2, 5], np.array([9, 2, 2, 2, 2, 2, 5]),
     [9, 2, 2, 2, 2, 2, 5, 0], [4, 0, 5, 2, 2, 2, 2, 2, 5]],
    ids=["str", "bytes", "list", "array", "empty-run-last", "empty-run-inside"],
)  # fmt: skip
def test_every_form_of_counts_is_read(counts):
    rle = {"size": [4, 6], "counts": counts}
    assert (decode_rle(rle) == MASK.astype(bool)).all()
    assert isinstance(check_rle(rle)["counts"], str)


def test_no_foreground_and_nothing_else():
    assert encode_rle(np.zeros((4, 6))) == {"size": [4, 6], "counts": "h0"}
    assert rle_counts(encode_rle(np.ones((4, 6)))) == [0, 24]


@given(st_numpy.arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 12))))
def test_same_as_pycocotools(mask):
    packed = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    rle = encode_rle(mask)
    assert rle == {"size": packed["size"], "counts": packed["counts"].decode()}
    assert (decode_rle(rle) == mask).all()
    assert rle_area(rle) == mask.sum()


@pytest.mark.parametrize(
    ("rle", "message"),
    [
        ({"size": [4, 6], "counts": "9220002"}, "must add up to 24"),
        ({"size": [4, 6], "counts": [24, 1]}, "must add up to 24"),
        ({"size": [4, 6], "counts": []}, "must add up to 24"),
        ({"size": [4, 6], "counts": [25, -1]}, "a run of -1 pixels"),
        ({"size": [0, 6], "counts": []}, "sides are 1 or more"),
        ({"size": [1 << 20, 1 << 20], "counts": [1 << 40]}, "less than 2³¹ pixels"),
        ({"size": [4, 6], "counts": "92~"}, "no COCO run lengths"),
        ({"size": [4, 6], "counts": "9\x10"}, "no COCO run lengths"),
        ({"size": [4, 6], "counts": "oooooooooooo0"}, "no COCO run lengths"),
        ({"size": [4, 6], "counts": "92o"}, "cut off"),
        ({"size": [4, 6], "counts": "猫"}, "no COCO run lengths"),
        ({"size": [4, 6], "counts": b"\xff"}, "must be COCO run lengths"),
        ({"size": [4, 6], "counts": None}, "must be COCO run lengths"),
        ({"size": [4, 6], "counts": [1.5]}, "must be COCO run lengths"),
        ({"size": [4], "counts": "9"}, "must be COCO run lengths"),
        ({"counts": "9"}, "must be COCO run lengths"),
        ([[1, 2, 3, 4, 5, 6]], "must be COCO run lengths"),
        (None, "must be COCO run lengths"),
    ],
    ids=repr,
)
def test_run_lengths_that_pycocotools_would_trust(rle, message):
    with pytest.raises(InputError, match=message):
        decode_rle(rle)


@given(st.text(max_size=20) | st.text("".join(map(chr, range(48, 112))), max_size=20))
def test_any_counts_are_decoded_or_refused(counts):
    try:
        mask = decode_rle({"size": [4, 6], "counts": counts})
    except InputError:
        return
    assert mask.shape == (4, 6)


@pytest.mark.parametrize(
    "mask",
    [np.zeros((0, 3)), np.zeros(3), np.zeros((2, 2, 2)), np.full((2, 2), "a")],
    ids=["empty", "flat", "stack", "words"],
)
def test_no_mask(mask):
    with pytest.raises(InputError, match=r"must be numbers of shape \(H, W\)"):
        encode_rle(mask)
