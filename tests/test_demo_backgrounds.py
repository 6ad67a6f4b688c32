"""Backgrounds: what is held out, and that photographs never show one of our classes."""

import json

import cv2
import numpy as np
import pytest

from vlmtasks.demo import backgrounds
from vlmtasks.demo.backgrounds import crop_photograph, make_background, resize_square
from vlmtasks.demo.patterns import PATTERNS

PAINTERS = [painter for family in PATTERNS.values() for painter in family]


@pytest.fixture
def coco(tmp_path, monkeypatch):
    """Six photographs a part, red where a cat is annotated, green where a person is, else blue."""
    folder = tmp_path / "coco-tiny"
    (folder / "annotations").mkdir(parents=True)
    picture = np.full((240, 600, 3), (0, 0, 255), np.uint8)
    picture[:, :200], picture[:, 400:] = (255, 0, 0), (0, 255, 0)
    for part in ("train2017", "val2017"):
        (folder / part).mkdir()
        images, annotations = [], []
        for number in range(6):
            name = f"{number}.png"
            cv2.imwrite(str(folder / part / name), picture[..., ::-1])
            images.append({"id": number, "file_name": name, "width": 600, "height": 240})
            for category, x in ((17, 0), (1, 400)):
                box = [x, 0, 200, 240]
                annotations.append({"image_id": number, "category_id": category, "bbox": box})
        categories = [{"id": 1, "name": "person"}, {"id": 17, "name": "cat"}]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    monkeypatch.setenv("VLMTASKS_TEST_DATA", str(tmp_path))
    backgrounds._load_photographs.cache_clear()
    yield tmp_path
    backgrounds._load_photographs.cache_clear()


@pytest.fixture
def no_photographs(tmp_path, monkeypatch):
    monkeypatch.setenv("VLMTASKS_TEST_DATA", str(tmp_path / "absent"))
    backgrounds._load_photographs.cache_clear()
    yield
    backgrounds._load_photographs.cache_clear()


def test_no_pattern_or_texture_is_in_two_splits():
    assert len(PAINTERS) == len(set(PAINTERS))
    textures = [name for names in backgrounds._TEXTURES.values() for name in names]
    assert len(textures) == len(set(textures))
    assert not {"coffee", "chelsea"} & set(textures)


@pytest.mark.parametrize("painter", PAINTERS, ids=lambda painter: painter.__name__)
def test_pattern_is_a_picture_and_repeatable(painter):
    first, again = (painter(np.random.default_rng(5), 64) for _ in range(2))
    assert first.shape == (64, 64, 3)
    assert first.dtype == np.uint8
    assert (first == again).all()


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_backgrounds_without_photographs(no_photographs, split):
    for seed in range(30):
        background = make_background(np.random.default_rng(seed), split, 48)
        assert background.picture.shape == (48, 48, 3)
        assert not background.is_photograph


def test_crops_avoid_our_classes(coco):
    for seed in range(40):
        crop = crop_photograph(np.random.default_rng(seed), "train", 40)
        assert crop is not None
        assert crop[..., 0].max() < 60


def test_crops_with_people_show_some(coco):
    rng = np.random.default_rng(0)
    crops = [crop_photograph(rng, "train", 40, people=True) for _ in range(20)]
    assert all(crop is not None and crop[..., 1].max() > 200 for crop in crops)


def test_splits_share_no_photograph(shared_data):
    pictures = {
        split: {photograph.picture.tobytes() for photograph in backgrounds._load_photographs(split)}
        for split in ("train", "val", "test")
    }
    assert [len(group) for group in pictures.values()] == [80, 40, 40]
    assert len(set().union(*pictures.values())) == 160


@pytest.mark.parametrize("shape", [(300, 200, 3), (20, 90, 3), (30, 30)], ids=str)
def test_resize_square(shape):
    resized = resize_square(np.full(shape, 77, np.uint8), 64)
    assert resized.shape[:2] == (64, 64)
    assert (resized == 77).all()
