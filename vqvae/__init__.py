"""PaliGemma's mask codec: a 64×64 mask ↔ the 16 codes that the model writes as ``<seg…>`` tokens.

>>> codec = MaskCodec.load()
>>> codes = codec.encode(masks)      # (N, 64, 64) of 0 … 1 -> (N, 16)
>>> maps = codec.decode(codes)       # (N, 64, 64), foreground above 0

Importing the package does not load torch; the first use of a name does.
"""

from typing import TYPE_CHECKING

from vqvae.errors import CodecError, CodecInputError, CodecWeightsInvalid, CodecWeightsMissing

if TYPE_CHECKING:
    from vqvae.codec import MaskCodec, crop_mask

__all__ = [
    "CodecError",
    "CodecInputError",
    "CodecWeightsInvalid",
    "CodecWeightsMissing",
    "MaskCodec",
    "crop_mask",
]


def __getattr__(name: str) -> object:
    if name not in ("MaskCodec", "crop_mask"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vqvae import codec

    return getattr(codec, name)
