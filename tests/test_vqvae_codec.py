"""The codec's public surface: what it refuses, what it promises, what the bundled one can draw."""

import subprocess
import sys

import numpy as np
import pytest

from vqvae import CodecInputError, MaskCodec, crop_mask

ROWS, COLUMNS = np.mgrid[0:64, 0:64] + 0.5
RADIUS = np.hypot(ROWS - 32, COLUMNS - 32)


@pytest.fixture(scope="module")
def codec() -> MaskCodec:
    return MaskCodec.load()


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        pytest.param(list(range(15)), "16 codes, got 15", id="M08-15-codes"),
        pytest.param(list(range(17)), "16 codes, got 17", id="M08-17-codes"),
        pytest.param([list(range(15))], "16 codes, got 15", id="15 codes in a batch"),
        pytest.param([[0] * 16, [0] * 15], r"rows of \[15, 16\]", id="rows of unequal length"),
        pytest.param([0] * 15 + [128], "got 128", id="M08-128"),
        pytest.param([0] * 15 + [-1], "got -1", id="M08-minus-one"),
        pytest.param([[0] * 15 + [128]], "got 128", id="128 in a batch"),
        pytest.param([[0] * 15 + [-1]], "got -1", id="minus one in a batch"),
        pytest.param([[0.5] * 16], "0.5", id="fractions"),
        pytest.param([[True] * 16], "bool", id="truth values"),
        pytest.param([["a"] * 16], "'a'", id="text"),
        pytest.param([0] * 16, r"\(N, 16\), got \(16,\)", id="no batch axis"),
        pytest.param(3, "got 1", id="a number"),
        pytest.param([], "got 0", id="nothing"),
    ],
)
def test_decode_refuses_with_the_bad_value(codec, codes, message):
    with pytest.raises(CodecInputError, match=message) as caught:
        codec.decode(codes)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        pytest.param(np.zeros((64, 64)), r"got \(64, 64\)", id="no batch axis"),
        pytest.param(np.zeros((1, 32, 64)), r"got \(1, 32, 64\)", id="wrong size"),
        pytest.param(np.full((1, 64, 64), 255, np.uint8), "got 255", id="0 … 255"),
        pytest.param(np.full((1, 64, 64), -1.0), "got -1", id="-1 … 1"),
        pytest.param(np.full((1, 64, 64), np.nan), "got nan", id="NaN"),
        pytest.param(np.full((1, 64, 64), "x"), "<U1", id="text"),
    ],
)
def test_encode_refuses_with_the_bad_value(codec, masks, message):
    with pytest.raises(CodecInputError, match=message):
        codec.encode(masks)


def test_M08_empty_batches(codec):
    assert codec.decode(np.empty((0, 16))).shape == (0, 64, 64)
    assert codec.encode(np.empty((0, 64, 64))).shape == (0, 16)


def test_kinds_and_range(codec):
    codes = codec.encode(RADIUS[None] < 20)
    decoded = codec.decode(codes)
    assert (codes.shape, codes.dtype) == ((1, 16), np.int64)
    assert (decoded.shape, decoded.dtype) == ((1, 64, 64), np.float32)
    assert decoded[0, 32, 32] == pytest.approx(1, abs=0.2)
    assert decoded[0, 0, 0] == pytest.approx(-1, abs=0.2)


def test_bool_and_float_masks_are_the_same(codec):
    masks = np.stack([RADIUS < 12, RADIUS > 25])
    np.testing.assert_array_equal(codec.encode(masks), codec.encode(masks.astype(np.float64)))


def test_M08_batch_equals_single_calls(codec):
    codes = np.random.default_rng(0).integers(0, 128, (3, 16))
    singles = np.concatenate([codec.decode(row[None]) for row in codes])
    np.testing.assert_allclose(codec.decode(codes), singles, atol=1e-5)


def test_more_masks_than_one_chunk(codec):
    masks = np.random.default_rng(0).random((130, 8, 8)).repeat(8, 1).repeat(8, 2)
    codes = codec.encode(masks)
    assert codes.shape == (130, 16)
    np.testing.assert_array_equal(codes[-1:], codec.encode(masks[-1:]))
    np.testing.assert_allclose(codec.decode(codes)[-1:], codec.decode(codes[-1:]), atol=1e-5)


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(RADIUS < 32, id="disc"),
        pytest.param(np.ones((64, 64), bool), id="full square"),
        pytest.param((RADIUS < 32) & (RADIUS > 14), id="ring"),
        pytest.param(ROWS > np.abs(2 * COLUMNS - 64), id="triangle"),
        pytest.param((ROWS < 40) | (COLUMNS > 30), id="notched square"),
        pytest.param(np.abs(ROWS - COLUMNS) < 16, id="diagonal bar"),
    ],
)
def test_bundled_codec_draws_simple_shapes(codec, mask):
    drawn = codec.decode(codec.encode(mask[None]))[0] > 0
    assert (drawn & mask).sum() / (drawn | mask).sum() >= 0.9


def test_fingerprint_is_a_sha256_and_stable(codec):
    assert len(bytes.fromhex(codec.fingerprint)) == 32
    assert codec.fingerprint == MaskCodec.load().fingerprint


def test_crop_takes_rounded_rows_and_columns():
    mask = np.zeros((10, 20), np.uint8)
    mask[3:7, 4:12] = 1
    np.testing.assert_array_equal(crop_mask(mask, (0.21, 0.28, 0.61, 0.72)), np.ones((64, 64)))
    half = crop_mask(mask, (0, 0.3, 0.4, 0.7))  # columns 0:8, of which 4:8 are inside
    assert half[:, :24].max() == 0 and half[:, 40:].min() == 1


def test_crop_antialiases():
    stripes = (np.arange(256) % 2 == 0)[None].repeat(256, 0)
    np.testing.assert_allclose(crop_mask(stripes, (0, 0, 1, 1))[8:-8, 8:-8], 0.5, atol=0.02)


def test_crop_equals_pillow():
    from PIL import Image

    mask = np.random.default_rng(0).random((150, 37)).astype(np.float32)
    expected = np.asarray(Image.fromarray(mask).resize((64, 64), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(crop_mask(mask, (0, 0, 1, 1)), expected, atol=1e-5)


def test_crop_without_pixels_is_an_error():
    with pytest.raises(CodecInputError, match="covers no pixel of a mask of 20×10"):
        crop_mask(np.zeros((10, 20)), (0.5, 0.5, 0.51, 0.9))
    with pytest.raises(CodecInputError, match=r"\(1, 10, 20\)"):
        crop_mask(np.zeros((1, 10, 20)), (0, 0, 1, 1))


def test_import_is_light():
    code = "import sys, vqvae; print('torch' in sys.modules, vqvae.MaskCodec.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "MaskCodec"]


def test_unknown_name_is_an_attribute_error():
    import vqvae

    with pytest.raises(AttributeError, match="Codec2"):
        _ = vqvae.Codec2
