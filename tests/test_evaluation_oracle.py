"""The ceiling of the representation on real annotations, and the rules that it rests on."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmtasks.datasets.coco import CocoDataset
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.datasets.mask_crops import crop_mask, mask_bins
from vlmtasks.datasets.paligemma_examples import encode_object_box
from vlmtasks.errors import InputError
from vlmtasks.evaluation.oracle import (
    UncompressedCodec,
    oracle_boxes,
    oracle_masks,
    oracle_table,
)
from vlmtasks.masks import paste_mask
from vlmtasks.tokens import decode_box, parse_objects
from vqvae import MaskCodec


@pytest.fixture(scope="module")
def val(shared_data: Path) -> CocoDataset:
    return read_coco(shared_data / "coco-tiny" / "annotations" / "instances_val2017.json")


@pytest.mark.parametrize(("scale", "least"), [(1024, 0.993), (1023, 0.994)])
def test_boxes_reach_the_ceiling(val: CocoDataset, scale: int, least: float) -> None:
    row = oracle_boxes(val, scale=scale)
    assert row.scores.stats["AP"] is not None
    assert least <= row.scores.stats["AP"] < 1.0
    assert row.scores.stats["AP50"] == pytest.approx(1.0)


# With scale 1024 the last bin ends before the picture does, and masks that touch the right or
# lower border lose a row of pixels: four of 804 fall below the strictest threshold.
@pytest.mark.parametrize(("scale", "least"), [(1024, 0.9985), (1023, 0.9995)])
def test_uncompressed_masks_reach_the_ceiling(val: CocoDataset, scale: int, least: float) -> None:
    row = oracle_masks(val, UncompressedCodec(), "64×64", scale=scale)
    assert row.scores.stats["AP"] is not None
    assert least <= row.scores.stats["AP"] < 1.0
    assert row.mask_iou is not None
    assert row.mask_iou > 0.995
    assert all(iou is not None and iou > 0.99 for iou in row.mask_iou_by_size)


def test_codes_of_the_bundled_codec_reach_the_ceiling(val: CocoDataset) -> None:
    row = oracle_masks(val, MaskCodec.load(), "16 codes")
    assert row.scores.stats["AP"] is not None
    assert row.scores.stats["AP"] >= 0.85
    assert row.mask_iou is not None
    assert row.mask_iou >= 0.925
    assert "| 16 codes | 0." in oracle_table([row])


@given(st.data())
def test_a_mask_comes_back_from_its_crop(data: st.DataObject) -> None:
    """Rectangles come back exactly, as far as the last bin reaches."""
    width, height = data.draw(st.integers(2, 900)), data.draw(st.integers(2, 900))
    x0 = data.draw(st.integers(0, width - 2))
    y0 = data.draw(st.integers(0, height - 2))
    x1, y1 = data.draw(st.integers(x0 + 1, width - 1)), data.draw(st.integers(y0 + 1, height - 1))
    mask = np.zeros((height, width), bool)
    mask[y0:y1, x0:x1] = True
    bins = mask_bins(mask)
    drawn = paste_mask(
        2 * crop_mask(mask, bins) - 1, decode_box(bins, (width, height)), (width, height)
    )
    assert (drawn == mask).all()


@given(st.integers(1, 5000), st.integers(1, 5000), st.floats(0, 1), st.floats(0, 1))
def test_thin_boxes_can_be_read_back(width: int, height: int, x: float, y: float) -> None:
    box_xyxy = x * width, y * height, x * width, y * height
    loc = encode_object_box(box_xyxy, (width, height))
    text = "".join(f"<loc{value:04d}>" for value in loc)
    (thing,) = parse_objects(f"{text} hair", (width, height))
    assert thing.problem is None
    assert loc[2] - loc[0] == loc[3] - loc[1] == 1


def test_a_mask_without_pixels_has_no_box() -> None:
    with pytest.raises(InputError, match="no pixel"):
        mask_bins(np.zeros((4, 4), bool))


def test_uncompressed_codec_keeps_any_number_of_maps() -> None:
    codec = UncompressedCodec()
    maps = np.random.default_rng(0).random((300, 64, 64)).astype(np.float32)
    codes = np.concatenate([codec.encode(maps[:200]), codec.encode(maps[200:])])
    assert codes.shape == (300, 16)
    assert codes.max() < 128
    np.testing.assert_allclose(codec.decode(codes[::-1]), 2 * maps[::-1] - 1)
