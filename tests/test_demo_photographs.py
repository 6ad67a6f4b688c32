"""Scenes with photographed animals."""

import numpy as np
import pytest

from vlmtasks.demo.photographs import Photographs, change_colors, load_pets, split_files
from vlmtasks.demo.scenes import tight_box
from vlmtasks.errors import MissingFileError

SPLITS = ("train", "val", "test")


@pytest.fixture(scope="module")
def photographs(shared_data) -> Photographs:
    return Photographs(shared_data)


def test_development_pictures_are_sixty_and_independent_of_the_order():
    names = [f"cat_{number}.jpg" for number in range(450)]
    train, development = (split_files(names, split) for split in ("train", "val"))
    assert (len(train), len(development)) == (390, 60)
    assert not train & development
    assert split_files(names[::-1], "val") == development


def test_no_picture_is_in_two_splits(shared_data):
    groups = [
        {pet.file_name for pets in load_pets(shared_data, split).values() for pet in pets}
        for split in SPLITS
    ]
    assert [len(group) for group in groups] == [390, 60, 90]
    assert len(set().union(*groups)) == 540


@pytest.mark.parametrize("split", SPLITS)
def test_photograph_as_taken(photographs, split):
    for seed in range(10):
        scene = photographs.as_taken(np.random.default_rng(seed), split)
        assert scene.picture.shape == (224, 224, 3)
        assert scene.known_labels == ("cat", "dog")
        (item,) = scene.objects
        assert item.label in ("cat", "dog")
        assert item.box_xyxy == tight_box(item.mask)


@pytest.mark.usefixtures("drawings")
def test_collage_has_animals_with_exact_masks(photographs):
    scenes = [photographs.collage(np.random.default_rng(seed), "train") for seed in range(20)]
    assert all(scene.kind == "collage" for scene in scenes)
    labels = [item.label for scene in scenes for item in scene.objects]
    assert {"cat", "dog"} < set(labels)
    for scene in scenes:
        assert sum(item.mask.astype(int) for item in scene.objects).max() <= 1
        assert all(item.box_xyxy == tight_box(item.mask) for item in scene.objects)


def test_pictures_without_animals(photographs):
    for seed in range(10):
        scene = photographs.without_animals(np.random.default_rng(seed), "val")
        assert scene is not None
        assert scene.objects == ()
        assert {"cat", "dog"} <= set(scene.known_labels)
        assert "tree" not in scene.known_labels


@pytest.mark.usefixtures("drawings")
def test_same_seed_gives_the_same_scene(photographs):
    for seed in range(10):
        first, again = (
            photographs.make_scene(np.random.default_rng(seed), "train") for _ in range(2)
        )
        assert (first.picture == again.picture).all()


def test_colors_change_but_shapes_stay():
    picture = np.zeros((32, 32, 3), np.uint8)
    picture[:, 16:] = (200, 120, 40)
    results = [change_colors(np.random.default_rng(seed), picture) for seed in range(40)]
    assert len({result.tobytes() for result in results}) > 30
    for result in results:
        assert (result[:, :16] == result[0, 0]).all()
        assert (result[:, 16:] == result[0, 31]).all()
        assert result[0, 31].sum() > result[0, 0].sum()


def test_folder_without_pets_is_an_error(tmp_path):
    with pytest.raises(MissingFileError, match="holds no folder 'pets'"):
        Photographs(tmp_path)
