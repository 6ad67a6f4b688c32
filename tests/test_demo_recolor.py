"""Colours by name."""

import numpy as np
import pytest

from vlmtasks.demo.classes import COLORS
from vlmtasks.demo.recolor import draw_paint, main_surface, name_pixels, natural_color, repaint

RNG = np.random.default_rng(0)


def filled(rgb, size=24) -> np.ndarray:
    return np.full((size, size, 3), rgb, np.uint8)


def opaque(rgb: np.ndarray) -> np.ndarray:
    return np.dstack([rgb, np.full(rgb.shape[:2], 255, np.uint8)])


@pytest.mark.parametrize(
    ("rgb", "name"),
    [
        ((221, 46, 68), "red"),
        ((244, 144, 12), "orange"),
        ((255, 204, 77), "yellow"),
        ((120, 177, 89), "green"),
        ((59, 136, 195), "blue"),
        ((146, 102, 204), "purple"),
        ((255, 150, 190), "pink"),
        ((102, 33, 19), "brown"),
        ((20, 20, 20), "black"),
        ((245, 245, 245), "white"),
        ((140, 140, 145), "gray"),
        ((0, 180, 180), None),  # between green and blue
        ((245, 200, 170), None),  # skin
    ],
)
def test_name_of_a_pixel(rgb, name):
    expected = -1 if name is None else COLORS.index(name)
    assert (name_pixels(filled(rgb)) == expected).all()


@pytest.mark.parametrize("color", COLORS)
def test_paint_bears_its_name_in_light_and_shade(color):
    light_to_dark = filled(200).copy()
    light_to_dark[:, 12:] = 170
    for _ in range(20):
        paint = draw_paint(color, RNG)
        painted = repaint(light_to_dark, np.full((24, 24), 255, np.uint8), paint)
        assert (name_pixels(painted) == COLORS.index(color)).mean() >= 0.5


def test_repaint_leaves_the_rest_alone():
    picture = filled((10, 200, 30))
    weight = np.zeros((24, 24), np.uint8)
    weight[:12] = 255
    painted = repaint(picture, weight, np.array([200.0, 0, 0]))
    assert (painted[12:] == picture[12:]).all()
    assert np.abs(painted[:12].astype(int) - (200, 0, 0)).max() <= 2


def test_main_surface_is_the_largest_hue():
    picture = filled((30, 60, 220)).copy()
    picture[:6] = (230, 200, 30)
    surface = main_surface(opaque(picture))
    assert surface is not None
    assert (surface[8:] == 255).all()
    assert (surface[:4] == 0).all()
    assert natural_color(opaque(picture), surface) == "blue"


def test_motley_drawing_has_no_main_surface():
    thirds = np.zeros((30, 30, 3), np.uint8)
    thirds[:10], thirds[10:20], thirds[20:] = (220, 30, 30), (30, 200, 40), (40, 40, 220)
    assert main_surface(opaque(thirds)) is None


def test_white_counts_only_when_it_covers_the_whole():
    picture = filled(250).copy()
    picture[:10] = (220, 30, 30)
    surface = main_surface(opaque(picture))
    assert surface is not None
    assert natural_color(opaque(picture), surface) is None
