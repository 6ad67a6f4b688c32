"""The reported problems of masks (M…), and inputs of the same kinds, one line each."""

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from vlmtasks.errors import InputError
from vlmtasks.masks import Masks, paste_mask
from vlmtasks.rle import decode_rle, encode_rle
from vlmtasks.tokens import parse_objects
from vqvae import CodecError, MaskCodec

FULL = np.ones((64, 64), np.float32)
CAT = "<loc0256><loc0128><loc0768><loc0512>"
TINY = "<loc0500><loc0500><loc0501><loc0501>"

# id, box tokens, (width, height), values, foreground pixels, their bounding box (x, y, w, h)
CASES = [
    ("M01-1024x512", CAT, (1024, 512), FULL, 98304, [128, 128, 384, 256]),
    ("M01-640x480", CAT, (640, 480), FULL, 57600, [80, 120, 240, 240]),
    ("M03", CAT, (640, 480), -FULL, 0, [0, 0, 0, 0]),
    ("M03-zero-is-background", CAT, (640, 480), 0 * FULL, 0, [0, 0, 0, 0]),
    ("M05-640x480", TINY, (640, 480), FULL, 1, [312, 234, 1, 1]),
    ("M05-100x80", TINY, (100, 80), FULL, 0, [0, 0, 0, 0]),
    ("M10", "<loc0000><loc0512><loc1023><loc0513>", (2000, 10), FULL, 20, [1000, 0, 2, 10]),
    ("M10-row", "<loc0512><loc0000><loc0513><loc1023>", (10, 2000), FULL, 20, [0, 1000, 10, 2]),
    (
        "corner-first",
        "<loc0000><loc0000><loc0512><loc0512>",
        (100, 80),
        FULL,
        2000,
        [0, 0, 50, 40],
    ),
    (
        "corner-last",
        "<loc0512><loc0512><loc1023><loc1023>",
        (100, 80),
        FULL,
        2000,
        [50, 40, 50, 40],
    ),
    ("whole", "<loc0000><loc0000><loc1023><loc1023>", (100, 80), FULL, 8000, [0, 0, 100, 80]),
    ("one-pixel-picture", "<loc0000><loc0000><loc1023><loc1023>", (1, 1), FULL, 1, [0, 0, 1, 1]),
    ("rounded-edges", "<loc0001><loc0001><loc0019><loc0019>", (100, 100), FULL, 4, [0, 0, 2, 2]),
]


@pytest.mark.parametrize(
    ("tokens", "size", "values", "area", "box_xywh"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_case(tokens, size, values, area, box_xywh):
    [found] = parse_objects(f"{tokens} cat", size)
    masks = Masks([values], [found.box_xyxy], size)
    width, height = size
    assert masks[0].shape == (height, width)
    assert masks[0].dtype == np.bool_
    assert masks[0].sum() == masks.area(0) == area
    rle = masks.rle(0)
    assert rle["size"] == [height, width]
    assert coco_mask.toBbox(rle).tolist() == box_xywh
    assert (decode_rle(rle) == masks[0]).all()


def test_m03_counts_are_one_run():
    assert Masks([-FULL], [(0, 0, 6, 4)], (6, 4)).rle(0) == {"size": [4, 6], "counts": "h0"}


def test_m05_object_and_float_box_are_kept():
    [found] = parse_objects(f"{TINY} cat", (640, 480))
    assert found.problem is None
    assert found.box_xyxy == (312.5, 234.375, 313.125, 234.84375)


def test_p24_masks_stay_with_their_objects():
    masks = Masks([FULL, None], [(0, 0, 4, 4), (4, 4, 8, 8)], (8, 8))
    assert len(masks) == 2
    assert [mask.sum() for mask in masks] == [16, 0]
    assert [masks.has_mask(i) for i in range(2)] == [True, False]
    assert masks.dense().shape == (2, 8, 8)


def test_values_not_pixels_are_resized():
    """Four foreground cells: thresholding first and nearest pixels would give a square."""
    values = np.full((64, 64), -1, np.float32)
    values[31:33, 31:33] = 1
    along = (np.arange(640) + 0.5) / 10  # in cells, whose centres are at 31.5 and 32.5
    weight = np.clip(1.5 - abs(along - 32), 0, 1)
    expected = 2 * np.outer(weight, weight) - 1 > 0
    assert (paste_mask(values, (0, 0, 640, 640), (640, 640)) == expected).all()


BEYOND = [
    pytest.param((-10, -10, 10, 10), 100, id="left-top"),
    pytest.param((90, 70, 200, 200), 100, id="right-bottom"),
    pytest.param((-50, -50, 150, 130), 8000, id="around"),
    pytest.param((-1e9, -1e9, 1e9, 1e9), 8000, id="around-far"),
    pytest.param((-1e15, 0, 1e15, 80), 8000, id="around-very-far"),
    pytest.param((0, 0, 1e300, 1e300), 8000, id="endless"),
    pytest.param((100, 0, 200, 80), 0, id="right-of-it"),
    pytest.param((-20, 0, -10, 80), 0, id="left-of-it"),
    pytest.param((10, 10, 10, 20), 0, id="no-width"),
    pytest.param((10.2, 10, 10.4, 20), 0, id="within-a-pixel"),
    pytest.param((20, 20, 10, 10), 0, id="reversed"),
    pytest.param((10.2, 10, 10.9, 20), 10, id="rounds-to-a-pixel"),
    pytest.param((-0.5, -0.5, 1.5, 1.5), 4, id="half-pixels"),
]


@pytest.mark.parametrize(("box", "area"), BEYOND)
def test_boxes_beyond_the_picture_are_cut(box, area):
    mask = paste_mask(FULL, box, (100, 80))
    assert mask.shape == (80, 100)
    assert mask.sum() == area
    assert Masks([FULL], [box], (100, 80)).area(0) == area


def test_a_cut_box_shows_the_same_pixels():
    values = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    whole = paste_mask(values, (100, 100, 300, 260), (400, 400))
    cut = paste_mask(values, (-50, -40, 150, 120), (100, 80))
    assert (cut == whole[140:220, 150:250]).mean() > 0.999


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(
            lambda: Masks([None], [(0, 0, 1, 1)], (70000, 70000)).rle(0), "2³¹", id="huge"
        ),
        pytest.param(
            lambda: Masks([FULL], [(0, 0, 9, 9)], (2**20, 2**20)).area(0), "2³¹", id="2^40"
        ),
        pytest.param(
            lambda: Masks.from_dense([[[1], [1, 0]]], (2, 2)), "unequal sizes", id="ragged-dense"
        ),
        pytest.param(lambda: encode_rle([[1], [1, 0]]), "unequal length", id="ragged"),
    ],
)
def test_masks_that_have_no_run_lengths(call, message):
    with pytest.raises(InputError, match=message):
        call()


THREE_BY_TWO = np.zeros((4, 6), bool)
THREE_BY_TWO[1:3, 2:5] = True


@pytest.mark.parametrize(
    "rle",
    [
        pytest.param({"size": [4, 6], "counts": [9, 2, 2, 2, 2, 2, 5, 0]}, id="zero-at-the-end"),
        pytest.param({"size": [4, 6], "counts": [9, 2, 2, 1, 0, 1, 2, 2, 5]}, id="zero-inside"),
        pytest.param({"size": [4, 6], "counts": [0, 0, 9, 2, 2, 2, 2, 2, 5]}, id="zeros-first"),
        pytest.param({"size": (4, 6), "counts": (9, 2, 2, 2, 2, 2, 5)}, id="tuples"),
        pytest.param(
            {"size": np.array([4, 6]), "counts": np.array([9, 2, 2, 2, 2, 2, 5])}, id="arrays"
        ),
    ],
)
def test_run_lengths_as_other_tools_write_them(rle):
    assert (decode_rle(rle) == THREE_BY_TWO).all()
    assert Masks.from_rles([rle], (6, 4)).rle(0)["counts"] == "9220003"


@pytest.mark.parametrize(
    ("masks", "area"),
    [
        pytest.param(THREE_BY_TWO[None].astype(np.uint8) * 255, 6, id="255"),
        pytest.param(THREE_BY_TWO[None].astype(float), 6, id="float"),
        pytest.param(THREE_BY_TWO[None] * 2 - 1, 6, id="minus-one-and-one"),
        pytest.param([THREE_BY_TWO.tolist()], 6, id="lists"),
    ],
)
def test_pixels_as_other_tools_give_them(masks, area):
    assert Masks.from_dense(masks, (6, 4)).area(0) == area


@pytest.mark.parametrize(
    "masks",
    [
        pytest.param(THREE_BY_TWO, id="one-mask-without-axis"),
        pytest.param(THREE_BY_TWO.T[None], id="width-first"),
        pytest.param(THREE_BY_TWO[None, None], id="channel-axis"),
    ],
)
def test_pixels_of_another_shape(masks):
    with pytest.raises(InputError, match=r"must be \(N, 4, 6\)"):
        Masks.from_dense(masks, (6, 4))


def test_maps_that_hold_nan():
    with pytest.raises(InputError, match="NaN"):
        Masks([np.full((64, 64), np.nan)], [(0, 0, 1, 1)], (4, 4))


# --- arrays of other libraries, and those that are none ------------------------------------------


def learning(*shape):
    """A tensor in the middle of a training."""
    import torch

    return torch.ones(*shape, requires_grad=True)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: encode_rle(learning(4, 6)), id="run-lengths"),
        pytest.param(lambda: Masks.from_dense(learning(1, 4, 6), (6, 4)), id="pixels"),
        pytest.param(lambda: paste_mask(learning(64, 64), (0, 0, 4, 4), (4, 4)), id="map"),
        pytest.param(lambda: MaskCodec.load().encode(learning(1, 64, 64)), id="encode"),
        pytest.param(lambda: MaskCodec.load().decode(learning(1, 16)), id="decode"),
    ],
)
def test_tensors_with_gradients_are_told_to_detach(call):
    with pytest.raises((InputError, CodecError), match="detach"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: paste_mask([[1], [1, 2]], (0, 0, 4, 4), (4, 4)), id="map"),
        pytest.param(lambda: MaskCodec.load().encode([[1], [1, 2]]), id="encode"),
        pytest.param(lambda: encode_rle(np.full((4, 6), np.nan)), id="nan-pixels"),
        pytest.param(lambda: Masks.from_rles(None, (4, 4)), id="no-run-lengths"),
        pytest.param(lambda: Masks(None, [(0, 0, 1, 1)], (4, 4)), id="no-maps"),
    ],
)
def test_what_is_no_mask(call):
    with pytest.raises((InputError, CodecError), match="mask"):
        call()


def test_counts_may_be_a_bytearray():
    rle = {"size": [4, 6], "counts": bytearray(b"9220003")}
    assert (decode_rle(rle) == THREE_BY_TWO).all()
