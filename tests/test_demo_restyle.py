"""Other styles and more shapes of the demo's drawings, for training only."""

import json
from importlib.resources import files

import numpy as np
import pytest

from vlmtasks.demo.classes import LABELS
from vlmtasks.demo.icons import load_icons
from vlmtasks.demo.restyle import bend, restyle
from vlmtasks.demo.scenes import scene_at


def disc() -> np.ndarray:
    y, x = np.mgrid[:96, :96]
    rgba = np.zeros((96, 96, 4), np.uint8)
    rgba[np.hypot(y - 48, x - 48) < 44] = (200, 60, 40, 255)
    return rgba


def test_bending_keeps_most_of_the_shape():
    changed = 0
    for seed in range(40):
        bent = bend(np.random.default_rng(seed), disc())
        area = (bent[..., 3] > 127).sum()
        assert area == pytest.approx((disc()[..., 3] > 127).sum(), rel=0.35)
        changed += bent.shape != (96, 96, 4)
    assert 15 <= changed <= 33


def test_new_styles_leave_the_caller_s_drawing_and_its_size():
    rgba = disc()
    rgb, alpha = np.ascontiguousarray(rgba[..., :3]), np.ascontiguousarray(rgba[..., 3])
    before = rgb.copy()
    names_hold = []
    for seed in range(60):
        styled, holds = restyle(np.random.default_rng(seed), rgb, alpha, is_painted=seed % 2 == 0)
        assert styled.shape == rgb.shape and styled.dtype == np.uint8
        names_hold.append(holds)
    assert (rgb == before).all()
    assert 0.4 < np.mean(names_hold) < 0.95


@pytest.mark.usefixtures("drawings")
def test_icons_show_every_class_and_are_opaque_inside():
    icons = load_icons()
    names = json.loads((files("vlmtasks.demo") / "icons.json").read_text())
    listed = sum(len(text.split()) for pack in names.values() for text in pack["names"].values())
    assert len(icons) == listed
    assert {icon.label for icon in icons} == set(LABELS)
    assert all(max(icon.rgba.shape) == 192 and icon.rgba.shape[2] == 4 for icon in icons)
    books = [icon for icon in icons if icon.label == "book" and icon.vendor == "tabler"]
    for book in books:  # line drawings: the page is filled
        assert (book.rgba[..., 3] > 127).mean() > 0.3


@pytest.mark.usefixtures("drawings")
def test_validation_scenes_hold_no_icons_and_no_other_styles(monkeypatch):
    from vlmtasks.demo import sprites

    def never(*args):
        raise AssertionError("only training draws so")

    for name in ("load_icon_sprites", "restyle", "bend"):
        monkeypatch.setattr(sprites, name, never)
    for split in ("val", "test"):
        assert scene_at(3, 1, split).picture.shape == (224, 224, 3)
