import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image

from vlmtasks import masks as masks_module
from vlmtasks.errors import InputError
from vlmtasks.masks import Masks, paste_mask
from vlmtasks.rle import encode_rle

NOISE = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
ONES = np.ones((64, 64), np.float32)


@pytest.fixture
def three():
    return Masks([ONES, None, -ONES], [(0, 0, 2, 2), (1, 1, 3, 3), (0, 0, 4, 3)], (4, 3))


@pytest.mark.parametrize(
    "box", [(3, 5, 67, 69), (0, 0, 200, 150), (10, 20, 31, 24), (10, 20, 11, 120)], ids=str
)
def test_rule_of_the_evaluator(box):
    """Resize the float map to the box with PIL, then threshold."""
    x0, y0, x1, y1 = box
    expected = np.zeros((150, 200), bool)
    resized = Image.fromarray(NOISE).resize((x1 - x0, y1 - y0), Image.Resampling.BILINEAR)
    expected[y0:y1, x0:x1] = np.asarray(resized) > 0
    assert (paste_mask(NOISE, box, (200, 150)) == expected).all()


def test_strips_are_the_whole(monkeypatch):
    whole = paste_mask(NOISE, (3, 4, 190, 140), (200, 150))
    monkeypatch.setattr(masks_module, "_STRIP_PIXELS", 1000)
    strips = Masks([NOISE], [(3, 4, 190, 140)], (200, 150))
    assert (strips[0] == whole).mean() > 0.9999
    assert strips.rle(0) == encode_rle(strips[0])


def test_pixels_of_each(three):
    assert three[0].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    assert not three[1].any()
    assert not three[-1].any()
    assert [three.area(i) for i in range(3)] == [4, 0, 0]
    assert three.dense().sum() == 4
    assert repr(three) == "Masks(3 masks of 4×3 pixels)"


@pytest.mark.parametrize(
    ("index", "areas"),
    [
        (slice(None, 2), [4, 0]),
        ([0, 0], [4, 4]),
        ([], []),
        (np.array([True, False, True]), [4, 0]),
        ([False, False, False], []),
        (np.array([-3]), [4]),
    ],
    ids=["slice", "twice", "none", "bool-array", "bool-list", "negative"],
)
def test_some_of_them(three, index, areas):
    some = three[index]
    assert isinstance(some, Masks)
    assert [some.area(i) for i in range(len(some))] == areas
    assert some.image_size == (4, 3)


def test_indices_outside(three):
    with pytest.raises(IndexError):
        three[3]
    with pytest.raises(IndexError):
        three[[5]]


def test_none_of_no_objects():
    nothing = Masks([], [], (4, 3))
    assert len(nothing) == 0
    assert nothing.dense().shape == (0, 3, 4)
    assert len(nothing[:]) == len(nothing[np.zeros(0, bool)]) == 0
    assert len(Masks.from_dense(np.zeros((0, 3, 4)), (4, 3))) == 0


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32])
@pytest.mark.parametrize("order", ["C", "F"])
def test_masks_in_pixels(dtype, order):
    dense = np.zeros((2, 3, 4), dtype, order=order)
    dense[0, 1, 2] = 1
    masks = Masks.from_dense(dense, (4, 3))
    assert (masks.dense() == dense.astype(bool)).all()
    assert masks.rle(0) == encode_rle(dense[0])


def test_run_lengths_in_any_form():
    mask = np.zeros((3, 4), bool)
    mask[1, 2] = True
    packed = encode_rle(mask)
    forms = [packed, None, {"size": (3, 4), "counts": packed["counts"].encode()},
             {"size": [3, 4], "counts": [7, 1, 4]}]  # fmt: skip
    masks = Masks.from_rles(forms, (4, 3))
    assert [masks.area(i) for i in range(4)] == [1, 0, 1, 1]
    assert [masks.has_mask(i) for i in range(4)] == [True, False, True, True]
    assert masks.rle(2) == packed
    assert (masks[3] == mask).all()


def test_pixels_that_are_given_away_are_copies(three):
    three[0][:] = True
    three.rle(0)["size"][0] = 99
    assert three.area(0) == 4
    packed = Masks.from_rles([encode_rle(np.ones((3, 4)))], (4, 3))
    packed.rle(0)["size"][0] = 99
    packed[0][:] = False
    assert packed.rle(0)["size"] == [3, 4]
    assert packed.area(0) == 12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Masks([ONES], [], (4, 3)), "1 mask maps were given for 0 boxes"),
        (lambda: Masks([ONES[:8, :8]], [(0, 0, 1, 1)], (4, 3)), r"shape \(8, 8\)"),
        (lambda: Masks([ONES * np.nan], [(0, 0, 1, 1)], (4, 3)), "NaN"),
        (lambda: Masks([ONES.astype(str)], [(0, 0, 1, 1)], (4, 3)), "must be numbers"),
        (lambda: Masks([ONES], [(0, 0, 1, np.nan)], (4, 3)), "NaN"),
        (lambda: Masks([ONES], [(0, 0, 1, 1)], (0, 3)), "image_size"),
        (lambda: Masks.from_dense(np.ones((2, 4, 3)), (4, 3)), r"must be \(N, 3, 4\)"),
        (lambda: Masks.from_dense(np.ones((3, 4)), (4, 3)), r"must be \(N, 3, 4\)"),
        (lambda: Masks.from_dense([], (4, 0)), "image_size"),
        (lambda: Masks.from_rles([encode_rle(np.ones((4, 3)))], (4, 3)), r"\[height, width\]"),
    ],
    ids=["count", "small-map", "nan", "words", "nan-box", "size", "turned", "flat", "no-height",
         "turned-rle"],
)  # fmt: skip
def test_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_hundred_masks_on_48_megapixels_stay_below_200_megabytes():
    """Encoded one by one in a process of its own; one mask covers the whole picture."""
    script = """
        import resource
        import numpy as np
        from vlmtasks.masks import Masks

        values = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
        boxes = [(60 * i, 40 * i, 60 * i + 300, 40 * i + 400) for i in range(99)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        masks = Masks([values] * 100, [(0, 0, 8000, 6000), *boxes], (8000, 6000))
        areas = [masks.area(i) for i in range(100)]
        assert 20e6 < areas[0] < 28e6 and 50e3 < areas[1] < 70e3, areas
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 200
