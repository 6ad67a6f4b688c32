import numpy as np
import pytest
from PIL import Image

from vlmtasks.engine.pixels import PixelConfig, to_pixels
from vlmtasks.errors import CheckpointError, ImageError


def test_values_are_minus_one_to_one():
    picture = Image.fromarray(np.array([[[0, 51, 255]]], np.uint8))

    pixels = to_pixels([picture], PixelConfig(4))

    assert pixels.shape == (1, 3, 4, 4)
    assert pixels.dtype.is_floating_point
    np.testing.assert_allclose(pixels[0, :, 0, 0], [-1, 51 / 127.5 - 1, 1], atol=1e-6)


def test_i13_whole_picture_is_squashed():
    """A panorama: the left half red, the right half blue, nothing cropped or padded."""
    picture = Image.new("RGB", (2000, 10), (255, 0, 0))
    picture.paste((0, 0, 255), (1000, 0, 2000, 10))

    pixels = to_pixels([picture], PixelConfig(8))[0]

    assert pixels.shape == (3, 8, 8)
    np.testing.assert_allclose(pixels[0, :, :3], 1)
    np.testing.assert_allclose(pixels[2, :, :3], -1)
    np.testing.assert_allclose(pixels[2, :, 5:], 1)


def test_shrinking_is_antialiased():
    checks = np.indices((64, 64)).sum(0) % 2 * 255
    picture = Image.fromarray(np.repeat(checks[..., None], 3, 2).astype(np.uint8))

    pixels = to_pixels([picture], PixelConfig(8))

    assert np.abs(pixels.numpy()).max() < 0.1  # grey, not black and white


@pytest.mark.parametrize(
    ("picture", "given"),
    [
        (Image.new("L", (4, 4)), "L"),
        (Image.new("RGBA", (4, 4)), "RGBA"),
        (np.zeros((4, 4, 3), np.uint8), "ndarray"),
        (None, "NoneType"),
    ],
    ids=["grey", "alpha", "array", "none"],
)
def test_only_rgb_pictures(picture, given):
    with pytest.raises(ImageError, match=f"not {given}; open the picture with"):
        to_pixels([picture], PixelConfig(4))


def test_file_of_a_released_checkpoint():
    data = {
        "do_convert_rgb": None,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "SiglipImageProcessor",
        "image_seq_length": 256,
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "PaliGemmaProcessor",
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"height": 224, "width": 224},
    }
    assert PixelConfig.from_dict(data, 224) == PixelConfig(224)


def test_empty_file_means_the_usual():
    assert PixelConfig.from_dict({}, 448) == PixelConfig(448)


def test_size_of_the_file_is_ignored_when_resized():
    config = PixelConfig.from_dict({"size": {"height": 224, "width": 224}}, 448, resized=True)
    assert config.image_size == 448


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"do_resize": False}, "do_resize is false"),
        ({"do_rescale": False}, "do_rescale is false"),
        ({"do_normalize": False}, "do_normalize is false"),
        ({"do_center_crop": True}, "do_center_crop is true"),
        ({"do_pad": True}, "do_pad is true"),
        ({"size": {"height": 448, "width": 448}}, "image_size is 224"),
        ({"size": {"shortest_edge": 224}}, "both must be the same square"),
        ({"size": 336}, "size is 336"),
        ({"resample": 17}, "resample 17 is no filter of PIL"),
        ({"resample": "bicubic"}, "no filter of PIL"),
        ({"rescale_factor": 0}, "rescale_factor must be positive"),
        ({"image_mean": [0.5, 0.5]}, "image_mean must be three numbers"),
        ({"image_mean": "0.5"}, "image_mean must be three numbers"),
        ({"image_std": [0.5, 0.5, 0]}, "image_std must be positive"),
        ({"image_std": [0.5, 0.5, 1e-320]}, "image_std must be positive"),
        ({"rescale_factor": 10**400}, "rescale_factor must be positive"),
        ({"image_mean": [10**400, 0, 0]}, "image_mean must be three numbers"),
        ({"image_std": [0.5, 0.5, float("nan")]}, "image_std must be three numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_steps_that_are_refused(data, message):
    with pytest.raises(CheckpointError, match=message):
        PixelConfig.from_dict(data, 224)
