"""The mask codec as others use it: masks to 16 codes and back, numpy in and numpy out."""

import hashlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from vqvae.errors import CodecInputError
from vqvae.model import CODEBOOK_SIZE, CODES_PER_MASK, MASK_SIZE, MaskVQVAE
from vqvae.weights import load_model

BUNDLED_WEIGHTS = Path(__file__).with_name("weights.safetensors")
_CHUNK = 128  # masks at a time; bounds the memory of large batches to about 100 MB


class MaskCodec:
    """Turns 64×64 masks into 16 codes of 0 … 127 and back; code k is the token ``<segkkk>``."""

    def __init__(self, model: MaskVQVAE) -> None:
        self._model = model

    @classmethod
    def load(cls, path: str | Path | None = None) -> "MaskCodec":
        """The codec of a weights file.

        Args:
            path: ``vae-oid.npz`` or a ``.safetensors`` of the same keys; None is the codec
                bundled with the package.

        Raises:
            CodecWeightsMissing: no such file (a FileNotFoundError).
            CodecWeightsInvalid: not the weights of this network (a ValueError).
        """
        return cls(load_model(BUNDLED_WEIGHTS if path is None else Path(path)))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the weights (names, shapes, float32 values), the same for npz and safetensors.

        A checkpoint stores it to name the codec whose codes it speaks.
        """
        digest = hashlib.sha256()
        for name, tensor in sorted(self._model.state_dict().items()):
            values = tensor.numpy().astype("<f4")
            digest.update(f"{name} {values.shape}\n".encode())
            digest.update(values.tobytes())
        return digest.hexdigest()

    def encode(self, masks: ArrayLike) -> np.ndarray:
        """Codes of masks that were cropped to their boxes.

        Args:
            masks: (N, 64, 64), bool or numbers of 0 … 1 (see `crop_mask`).

        Returns:
            (N, 16) int64, row by row over the 4×4 grid.

        Raises:
            CodecInputError: wrong shape, or values outside 0 … 1 (a ValueError).
        """
        checked = _check_masks(masks)
        signed_N1HW = torch.from_numpy(checked * 2 - 1)[:, None]
        return _in_chunks(self._model.encode, signed_N1HW).numpy()

    def decode(self, codes: ArrayLike) -> np.ndarray:
        """Masks of codes.

        Args:
            codes: (N, 16) integers of 0 … 127.

        Returns:
            (N, 64, 64) float32 of about −1 … 1, foreground above 0. Resize these values and
            threshold afterwards: the other order loses the outline between the cells.

        Raises:
            CodecInputError: wrong number, kind or range of codes (a ValueError).
        """
        checked = torch.from_numpy(_check_codes(codes))
        return _in_chunks(self._model.decode, checked).view(-1, MASK_SIZE, MASK_SIZE).numpy()


def crop_mask(mask_hw: np.ndarray, box_xyxy_norm: tuple[float, float, float, float]) -> np.ndarray:
    """The part of a mask inside a box, resized as the codec wants it.

    As big_vision prepares its training masks: edges rounded to pixels, bilinear, antialiased.

    Args:
        mask_hw: (H, W) bool, or numbers of 0 … 1.
        box_xyxy_norm: left, top, right, bottom as shares of the width and height, 0 … 1.

    Returns:
        (64, 64) float32 of 0 … 1.

    Raises:
        CodecInputError: not one mask, values outside 0 … 1, or the box covers no pixel of it (a
            ValueError).
    """
    mask = _check_values(np.asarray(mask_hw))
    if mask.ndim != 2:
        raise CodecInputError(f"a mask is (height, width), this one has the shape {mask.shape}")
    height, width = mask.shape
    x1, y1, x2, y2 = box_xyxy_norm
    crop = mask[
        max(0, round(height * y1)) : max(0, round(height * y2)),
        max(0, round(width * x1)) : max(0, round(width * x2)),
    ]
    if not crop.size:
        raise CodecInputError(
            f"box {tuple(box_xyxy_norm)} covers no pixel of a mask of {width}×{height}: "
            "leave such an object without codes"
        )
    resized = F.interpolate(
        torch.from_numpy(crop)[None, None], (MASK_SIZE, MASK_SIZE), mode="bilinear", antialias=True
    )
    return resized[0, 0].clamp(0, 1).numpy()


@torch.inference_mode()
def _in_chunks(function: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    # an empty batch still passes through once and keeps the right shape
    return torch.cat([function(chunk) for chunk in batch.split(_CHUNK)])


def _check_masks(masks: ArrayLike) -> np.ndarray:
    try:
        array = np.asarray(masks)
    except (ValueError, RuntimeError) as error:  # rows of unequal length; torch, with gradients
        raise CodecInputError(
            f"masks must be (N, {MASK_SIZE}, {MASK_SIZE}) numbers, and a tensor that learns must "
            f"be detached first: {error}"
        ) from error
    if array.ndim != 3 or array.shape[1:] != (MASK_SIZE, MASK_SIZE):
        advice = "crop_mask() brings one to that size"
        if array.shape == (MASK_SIZE, MASK_SIZE):
            advice = "put a single mask into a list"
        raise CodecInputError(
            f"masks must be (N, {MASK_SIZE}, {MASK_SIZE}), got {array.shape}: {advice}"
        )
    return _check_values(array)


def _check_values(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise CodecInputError(f"masks must be bool or numbers of 0 … 1, got {array.dtype}")
    values = array.astype(np.float32)
    wrong = values[~((values >= 0) & (values <= 1))]  # this way round NaN is caught too
    if wrong.size:
        raise CodecInputError(
            f"mask values must be 0 … 1, got {wrong[0]:g}: pass mask > 0 for one of 0 and 255"
        )
    return values


def _check_codes(codes: ArrayLike) -> np.ndarray:
    try:
        array = np.asarray(codes)
    except RuntimeError as error:
        raise CodecInputError(f"codes are integers; detach the tensor: {error}") from error
    except ValueError as error:  # rows of unequal length
        lengths = sorted({len(row) for row in codes if hasattr(row, "__len__")})  # pyright: ignore
        raise CodecInputError(
            f"each mask has {CODES_PER_MASK} codes, got rows of {lengths} codes"
        ) from error
    if array.ndim == 0 or array.shape[-1] != CODES_PER_MASK:
        length = array.shape[-1] if array.ndim else 1
        raise CodecInputError(f"each mask has {CODES_PER_MASK} codes, got {length}")
    if array.size and array.dtype.kind not in "iu":
        raise CodecInputError(
            f"codes are integers of 0 … {CODEBOOK_SIZE - 1}, got {array.flat[0]!r} ({array.dtype})"
        )
    wrong = array[(array < 0) | (array >= CODEBOOK_SIZE)]
    if wrong.size:
        raise CodecInputError(f"codes are integers of 0 … {CODEBOOK_SIZE - 1}, got {wrong[0]}")
    if array.ndim != 2:
        raise CodecInputError(
            f"codes must be (N, {CODES_PER_MASK}), got {array.shape}: "
            "put the codes of a single mask into a list"
        )
    return array.astype(np.int64)
