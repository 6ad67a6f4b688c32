"""Scenes: repeatable, exact boxes and masks, nothing hidden, held-out drawings."""

import json
import subprocess
import sys

import numpy as np
import pytest

from vlmtasks.demo.assets import TEST_VENDOR, TRAIN_VENDORS, load_drawings
from vlmtasks.demo.classes import LABELS
from vlmtasks.demo.scenes import MIN_VISIBLE_PIXELS, scene_at, tight_box
from vlmtasks.demo.sprites import load_sprites
from vlmtasks.rle import decode_rle

SPLITS = ("train", "val", "test")

pytestmark = pytest.mark.usefixtures("drawings")


@pytest.fixture(scope="module")
def scenes():
    return {split: [scene_at(4, index, split) for index in range(60)] for split in SPLITS}


@pytest.mark.parametrize("split", SPLITS)
def test_same_seed_and_index_give_the_same_scene(scenes, split):
    for index in range(5):
        again = scene_at(4, index, split)
        assert (again.picture == scenes[split][index].picture).all()
        assert again.text == scenes[split][index].text
        assert [o.label for o in again.objects] == [o.label for o in scenes[split][index].objects]


def test_splits_seeds_and_indices_differ(scenes):
    pictures = {scene.picture.tobytes() for group in scenes.values() for scene in group}
    pictures |= {scene_at(5, index, "train").picture.tobytes() for index in range(5)}
    assert len(pictures) == 3 * 60 + 5


@pytest.mark.parametrize("split", SPLITS)
def test_objects_are_exact_and_visible(scenes, split):
    for scene in scenes[split]:
        assert scene.picture.shape == (224, 224, 3)
        assert scene.picture.dtype == np.uint8
        assert len(scene.objects) <= 5
        overlap = sum(item.mask.astype(int) for item in scene.objects)
        assert np.max(overlap) <= 1
        for item in scene.objects:
            assert item.label in scene.known_labels
            assert item.mask.shape == (224, 224)
            assert item.mask.sum() >= MIN_VISIBLE_PIXELS
            x1, y1, x2, y2 = (int(v) for v in item.box_xyxy)
            assert item.mask[y1:y2, x1:x2].sum() == item.mask.sum()
            for edge in (item.mask[y1], item.mask[y2 - 1], item.mask[:, x1], item.mask[:, x2 - 1]):
                assert edge.any()


def test_all_classes_and_counts_up_to_five_occur():
    scenes = [scene_at(6, index, "train") for index in range(300)]
    counts = [[item.label for item in scene.objects] for scene in scenes]
    assert {label for labels in counts for label in labels} == set(LABELS)
    most = [max((labels.count(label) for label in labels), default=0) for labels in counts]
    assert {0, 1, 2, 3, 4, 5} == set(most)
    assert 0.08 < np.mean([bool(scene.words) for scene in scenes]) < 0.25


def test_held_out_vendor_is_in_no_other_split():
    assert TEST_VENDOR not in TRAIN_VENDORS
    for split in SPLITS:
        vendors = {s.vendor for groups in load_sprites(split).values() for g in groups for s in g}
        assert vendors == ({TEST_VENDOR} if split == "test" else set(TRAIN_VENDORS))


@pytest.mark.parametrize("vendor", [*TRAIN_VENDORS, TEST_VENDOR])
def test_every_vendor_draws_every_class(vendor):
    drawings = load_drawings(vendor)
    assert {drawing.label for drawing in drawings} == set(LABELS)
    for drawing in drawings:
        assert drawing.rgba.shape == (192, 192, 4)
        assert (drawing.rgba[..., 3] > 127).mean() > 0.05


def test_boats_float_on_no_water():
    for drawing in load_drawings(TEST_VENDOR):
        if drawing.label == "boat":
            r, g, b, a = np.moveaxis(drawing.rgba.astype(int), 2, 0)
            water = (a > 127) & (abs(r - 93) < 12) & (abs(g - 173) < 12) & (abs(b - 236) < 12)
            assert water.sum() < 0.15 * (a > 127).sum(), drawing.name


def test_tight_box_has_exclusive_far_edges():
    mask = np.zeros((10, 20), bool)
    mask[2:5, 7:9] = True
    assert tight_box(mask) == (7.0, 2.0, 9.0, 5.0)


def test_command_writes_coco_files(tmp_path):
    command = [sys.executable, "-m", "vlmtasks.demo.scenes", "--split", "val", "--count", "7"]
    subprocess.run([*command, "--seed", "3", "--out", str(tmp_path)], check=True)
    content = json.loads((tmp_path / "instances.json").read_text())
    texts = json.loads((tmp_path / "texts.json").read_text())
    assert [image["id"] for image in content["images"]] == list(range(1, 8))
    assert [entry["image_id"] for entry in texts] == list(range(1, 8))
    assert len(list((tmp_path / "images").iterdir())) == 7
    assert (tmp_path / "sheet.png").is_file()
    expected = [item for index in range(7) for item in scene_at(3, index, "val").objects]
    assert len(content["annotations"]) == len(expected)
    names = {category["id"]: category["name"] for category in content["categories"]}
    for annotation, item in zip(content["annotations"], expected, strict=True):
        assert names[annotation["category_id"]] == item.label
        assert (decode_rle(annotation["segmentation"]) == item.mask).all()
        x, y, w, h = annotation["bbox"]
        assert (x, y, x + w, y + h) == item.box_xyxy
