import numpy as np
import pytest
import torch
from PIL import Image

from vlmtasks import boxes
from vlmtasks.errors import InputError

# bad sizes are in test_tokens.py (S05)


def test_image_size_is_two_plain_integers():
    size = boxes.check_image_size((np.int32(7), np.uint8(5)))
    assert size == (7, 5)
    assert [type(side) for side in size] == [int, int]
    assert boxes.check_image_size(Image.new("L", (7, 5))) == (7, 5)


def test_xywh_and_back():
    assert boxes.xyxy_to_xywh([(10, 20, 40, 60)]).tolist() == [[10, 20, 30, 40]]
    assert boxes.xywh_to_xyxy([(10, 20, 30, 40)]).tolist() == [[10, 20, 40, 60]]


def test_fractions_and_back():
    assert boxes.pixels_to_norm([(160, 120, 320, 480)], (640, 480)).tolist() == [
        [0.25, 0.25, 0.5, 1]
    ]
    assert boxes.norm_to_pixels([(0.25, 0.25, 0.5, 1)], (640, 480)).tolist() == [
        [160, 120, 320, 480]
    ]


def test_clip():
    assert boxes.clip_boxes([(-5, 2, 700, 500)], (640, 480)).tolist() == [[0, 2, 640, 480]]


def test_areas_of_reversed_boxes_are_zero():
    assert boxes.box_areas([(0, 0, 2, 3), (5, 5, 4, 4), (1, 1, 1, 9)]).tolist() == [6, 0, 0]


def test_iou_of_every_pair():
    iou = boxes.box_iou([(0, 0, 2, 2), (0, 0, 0, 0)], [(0, 0, 2, 2), (1, 0, 3, 2), (5, 5, 6, 6)])
    np.testing.assert_allclose(iou, [[1, 1 / 3, 0], [0, 0, 0]])


def test_the_given_array_stays_as_it_is():
    given = np.array([(10.0, 20.0, 30.0, 40.0)])
    boxes.xywh_to_xyxy(given)
    assert given.tolist() == [[10, 20, 30, 40]]


@pytest.mark.parametrize("empty", [[], np.zeros((0, 4)), np.zeros(0)], ids=["list", "0x4", "0"])
def test_no_boxes_have_the_shape_0_4(empty):
    assert boxes.check_boxes(empty).shape == (0, 4)
    assert boxes.xyxy_to_xywh(empty).shape == (0, 4)
    assert boxes.box_iou(empty, [(0, 0, 1, 1)]).shape == (0, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2, 3, 4], r"shape \(4,\)"),
        ([(1, 2, 3)], r"shape \(1, 3\)"),
        ([()], r"shape \(1, 0\)"),
        ([(1, 2, 3, "a")], "numbers of shape"),
        ([(1, 2, 3), (1, 2)], "numbers of shape"),
        ([(1, 2, 3, float("nan"))], "NaN or infinity"),
        ([(1, 2, 3, float("inf"))], "NaN or infinity"),
        ([("1", "2", "3", "4")], "numbers of shape"),
        ([(1j, 2, 3, 4)], "numbers of shape"),
        (torch.zeros(1, 4, requires_grad=True), "numbers of shape"),
        pytest.param([(1, 2, 3, 10**400)], "numbers of shape", id="10**400"),
        pytest.param([(1, 2, 3, 10**5000)], "numbers of shape", id="10**5000"),
    ],
    ids=repr,
)
def test_boxes_must_be_numbers_in_rows_of_four(given, message):
    with pytest.raises(InputError, match=message):
        boxes.check_boxes(given)


def test_sides_that_are_no_float_any_more():
    with pytest.raises(InputError, match="NaN or infinity"):
        boxes.xywh_to_xyxy([(1e308, 0, 1e308, 1)])
    huge = [(0, 0, 1e300, 1e300)]
    assert boxes.box_areas(huge).tolist() == [np.inf]
    assert boxes.box_iou(huge, [*huge, (0, 0, 1, 1)]).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    "size",
    [{640, 480}, {640: 1, 480: 2}, b"ab", (10**400, 1), (2**31, 1), (-(10**5000), 1)],
    ids=["set", "dict", "bytes", "10**400", "2**31", "-10**5000"],
)
def test_sizes_that_are_no_pair_of_sides(size):
    with pytest.raises(InputError, match="image_size is"):
        boxes.check_image_size(size)
