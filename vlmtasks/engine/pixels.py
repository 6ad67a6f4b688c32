"""Pictures to pixels of the vision tower, as transformers' SiglipImageProcessor computes them.

The whole picture is squashed to a square, never cropped or padded, so a box in the answer maps back
by one factor a side. Values: x = (u8 · rescale_factor − mean) / std, which is u8 / 127.5 − 1 for
every released PaliGemma.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vlmtasks.errors import CheckpointError, ImageError

MAX_VALUE = 1e6  # of what pixels are multiplied with or divided by
BICUBIC = 3  # PIL's number, as preprocessor_config.json writes it; antialiased when shrinking


@dataclass(frozen=True)
class PixelConfig:
    """How a picture becomes pixels. Defaults: every released PaliGemma. Fields as in
    `preprocessor_config.json`; `image_size` is the side of the square in pixels."""

    image_size: int
    resample: int = BICUBIC
    rescale_factor: float = 1 / 255
    image_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    image_std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], image_size: int, *, resized: bool = False
    ) -> "PixelConfig":
        """Reads a `preprocessor_config.json` of a model of `image_size`.

        `resized`: the model was changed to `image_size`, so the size in the file says nothing.
        Raises CheckpointError for steps that this engine does not do.
        """
        for step in ("do_resize", "do_rescale", "do_normalize"):
            if data.get(step) is False:
                raise CheckpointError(
                    f"preprocessor_config.json: {step} is false; this engine always resizes, "
                    "rescales and normalises, as PaliGemma was trained"
                )
        for step in ("do_center_crop", "do_pad"):
            if data.get(step):
                raise CheckpointError(
                    f"preprocessor_config.json: {step} is true; this engine squashes the whole "
                    "picture, as PaliGemma was trained"
                )
        if not resized:
            _check_size(data.get("size"), image_size)
        resample = data.get("resample", BICUBIC)
        factor = data.get("rescale_factor", 1 / 255)
        if resample not in tuple(Image.Resampling):
            raise CheckpointError(
                f"preprocessor_config.json: resample {resample!r} is no filter of PIL "
                f"({', '.join(f'{f.value} {f.name.lower()}' for f in Image.Resampling)})"
            )
        if not _is_number(factor) or factor <= 0:
            raise CheckpointError(
                f"preprocessor_config.json: rescale_factor must be positive, not {factor!r}"
            )
        std = _three_numbers(data, "image_std")
        if min(std) < 1 / MAX_VALUE:
            raise CheckpointError(
                f"preprocessor_config.json: image_std must be positive, not {std}"
            )
        return cls(image_size, int(resample), factor, _three_numbers(data, "image_mean"), std)


def to_pixels(pictures: Sequence[Image.Image], config: PixelConfig) -> Tensor:
    """PIL pictures in RGB → float32 (B, 3, image_size, image_size).

    Raises ImageError for anything that is not an RGB picture of PIL.
    """
    side = config.image_size
    batch = np.empty((len(pictures), 3, side, side), np.float32)
    scale = np.float32(config.rescale_factor)
    mean, std = np.array([config.image_mean, config.image_std], np.float32)
    for index, picture in enumerate(pictures):
        if not isinstance(picture, Image.Image) or picture.mode != "RGB":
            given = getattr(picture, "mode", type(picture).__name__)
            raise ImageError(
                f"the engine takes RGB pictures of PIL, not {given}; "
                "open the picture with vlmtasks.images.open_image"
            )
        squashed = picture.resize((side, side), Image.Resampling(config.resample))
        pixels = (np.asarray(squashed, np.float32) * scale - mean) / std  # (side, side, 3)
        batch[index] = pixels.transpose(2, 0, 1)
    return torch.from_numpy(batch)


def _check_size(size: Any, image_size: int) -> None:
    if size is None:
        return
    if isinstance(size, Mapping):
        sides = [size.get("height"), size.get("width")]
    else:
        sides = [size, size]
    if sides != [image_size, image_size]:
        raise CheckpointError(
            f"preprocessor_config.json: size is {size!r}, but vision_config.image_size is "
            f"{image_size}; both must be the same square"
        )


def _three_numbers(data: Mapping[str, Any], key: str) -> tuple[float, float, float]:
    value = data.get(key, (0.5, 0.5, 0.5))
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or len(value) != 3
        or not all(map(_is_number, value))
    ):
        raise CheckpointError(
            f"preprocessor_config.json: {key} must be three numbers, not {value!r}"
        )
    return (float(value[0]), float(value[1]), float(value[2]))


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MAX_VALUE
    )
