import dataclasses

import numpy as np
import pytest
from PIL import Image

from vlmtasks.draw import PALETTE, draw_detections, label_colours
from vlmtasks.errors import InputError
from vlmtasks.masks import Masks
from vlmtasks.results import Detections

GREY = (90, 90, 90)


def detections(size=(200, 160), labels=("cat", "dog"), with_masks=True):
    width, height = size
    boxes = np.array([(0.1, 0.3, 0.4, 0.8), (0.5, 0.3, 0.9, 0.9)]) * [width, height, width, height]
    maps = [np.ones((64, 64)), None]
    masks = Masks(maps, boxes, size) if with_masks else None
    return Detections(boxes, labels, np.array([0.9, 0.5]), size, masks)


def picture(size=(200, 160)):
    return Image.new("RGB", size, GREY)


def drawn_pixels(image):
    return (np.asarray(image) != GREY).any(axis=2)


def test_a_new_picture_of_the_same_size():
    given = picture()
    drawn = draw_detections(given, detections())
    assert (drawn.mode, drawn.size) == ("RGB", given.size)
    assert given.getcolors() == [(200 * 160, GREY)]


def test_boxes_masks_and_labels_are_where_they_belong():
    found = detections()
    colours = label_colours(found.labels)
    drawn = draw_detections(picture(), found)
    assert drawn.getpixel((20, 100)) == colours["cat"]  # left edge of the cat's box
    assert drawn.getpixel((179, 100)) == colours["dog"]  # right edge of the dog's
    assert drawn.getpixel((21, 36)) == colours["cat"]  # the plate of its label
    inside_cat = np.array(drawn.getpixel((50, 90)))
    np.testing.assert_allclose(
        inside_cat, 0.58 * np.array(GREY) + 0.42 * np.array(colours["cat"]), atol=1
    )
    assert drawn.getpixel((140, 100)) == GREY  # the dog has no mask


@pytest.mark.parametrize("part", ["boxes", "masks", "labels"])
def test_parts_can_be_left_out(part):
    parts = {"boxes": False, "masks": False, "labels": False}
    assert not drawn_pixels(draw_detections(picture(), detections(), **parts)).any()
    assert drawn_pixels(draw_detections(picture(), detections(), **{**parts, part: True})).any()


def test_scores_make_labels_longer():
    only = {"boxes": False, "masks": False}
    with_scores = drawn_pixels(draw_detections(picture(), detections(), **only)).sum()
    without = drawn_pixels(draw_detections(picture(), detections(), scores=False, **only)).sum()
    assert without < with_scores


def test_zoom_draws_on_a_larger_picture():
    drawn = draw_detections(picture(), detections(), zoom=3)
    assert drawn.size == (600, 480)
    assert drawn.getpixel((60, 300)) == label_colours(["cat"])["cat"]


@pytest.mark.parametrize("size", [(1, 1), (3, 400), (400, 3), (160, 160), (2000, 1500)])
def test_any_size(size):
    assert draw_detections(picture(size), detections(size)).size == size


def test_lines_grow_with_the_picture():
    small = drawn_pixels(
        draw_detections(picture((160, 160)), detections((160, 160)), labels=False, masks=False)
    )
    large = drawn_pixels(
        draw_detections(picture((3200, 3200)), detections((3200, 3200)), labels=False, masks=False)
    )
    assert 3 < large.sum() / small.sum() / 20 < 30  # lines 20 times as long and several as wide


@pytest.mark.parametrize(
    "label",
    ["", " ", "猫", "größe", "🐱", "a\nb\tc", "x" * 500, "\ud83d", "\x00", "שלום", "a\u0301"],
    ids=ascii,
)
def test_any_label(label):
    drawn = draw_detections(picture(), detections(labels=(label, "dog")))
    assert drawn_pixels(drawn).any()


def test_boxes_beyond_the_picture():
    found = dataclasses.replace(
        detections(with_masks=False),
        boxes_xyxy=np.array([(-50, -50, 900, 900), (300, 300, 400, 400)]),
    )
    assert drawn_pixels(draw_detections(picture(), found)).any()


def test_nothing_found_changes_nothing():
    nothing = Detections(np.zeros((0, 4)), (), np.zeros(0), (200, 160), Masks([], [], (200, 160)))
    assert not drawn_pixels(draw_detections(picture(), nothing)).any()


def test_masks_in_pixels_are_drawn():
    found = detections()
    dense = dataclasses.replace(found, masks=Masks.from_dense(found.masks.dense(), (200, 160)))
    assert (
        draw_detections(picture(), dense).tobytes() == draw_detections(picture(), found).tobytes()
    )
    assert draw_detections(picture(), dense, zoom=2).size == (400, 320)


def test_every_kind_of_picture(tmp_path):
    path = tmp_path / "grey.png"
    picture().convert("L").save(path)
    assert draw_detections(path, detections()).mode == "RGB"
    assert draw_detections(np.full((160, 200), 90, np.uint8), detections()).size == (200, 160)


@pytest.mark.parametrize("zoom", [0, -1, 1.5, True, None], ids=repr)
def test_zoom_must_be_a_whole_number(zoom):
    with pytest.raises(InputError, match="zoom is"):
        draw_detections(picture(), detections(), zoom=zoom)


def test_another_size_is_an_error():
    with pytest.raises(InputError, match=r"\(160, 200\).*\(200, 160\)"):
        draw_detections(picture((160, 200)), detections())


# --- colours -------------------------------------------------------------------------------------


def test_colours_differ_and_stay():
    names = [f"class {number}" for number in range(len(PALETTE))]
    colours = label_colours(names)
    assert len(set(colours.values())) == len(PALETTE)
    assert label_colours(["cat"]) == {"cat": label_colours(["cat", "cat"])["cat"]}
    assert label_colours(["Cat", "cat"])["Cat"] == label_colours(["cat"])["cat"]


def test_more_labels_than_colours():
    assert len(label_colours(str(number) for number in range(100))) == 100


@pytest.mark.parametrize("length", [60, 2_000, 100_000], ids=["long", "very-long", "endless"])
def test_long_labels_are_shortened(length):
    label = "W" * length
    found = Detections(np.array([(0, 0, 20, 20)]), (label,), np.array([0.5]), (64, 48))
    drawn = np.asarray(found.plot(Image.new("RGB", (64, 48))))
    plate = (drawn == label_colours([label])[label]).all(axis=2)
    assert plate.any(axis=0)[:50].all()  # nearly as wide as the picture
    assert not plate[24:].any()
