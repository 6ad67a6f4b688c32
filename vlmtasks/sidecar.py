"""`vlmtasks.json`: what a checkpoint folder says beyond the files of Hugging Face.

    {"mask_codec": {"file": "bundled", "sha256": "9f2c…"}, "box_scale": 1024}

mask_codec: the codec that the model was trained with. Its codes mean nothing by themselves, and
    another codec draws masks that are wrong but look plausible. So the folder names it: "file" is a
    file of the folder, or "bundled" for the codec of this package; "sha256" is its
    `MaskCodec.fingerprint`. Where none is named the user must pass one; where one is named, no
    other is accepted.
box_scale: 1024 (also where it is missing) or 1023, see `vlmtasks.tokens`.

Other keys belong to other parts of the package.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmtasks.engine.folder_files import member
from vlmtasks.errors import CheckpointError, InputError, MaskCodecError
from vlmtasks.tokens import BOX_SCALE, check_scale

if TYPE_CHECKING:
    from vqvae import MaskCodec

FILE_NAME = "vlmtasks.json"
BUNDLED = "bundled"


@dataclass(frozen=True)
class Sidecar:
    """The checked content of `vlmtasks.json`.

    codec_file: a path, BUNDLED, or None where the folder names no codec.
    codec_sha256: the fingerprint of that codec.
    """

    folder: Path
    codec_file: Path | str | None = None
    codec_sha256: str | None = None
    box_scale: int = BOX_SCALE

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], folder: Path) -> "Sidecar":
        """Check what was read from `folder`. CheckpointError says which value is not allowed."""
        path = folder / FILE_NAME
        scale = metadata.get("box_scale", BOX_SCALE)
        try:
            check_scale(scale)
        except InputError as error:
            raise CheckpointError(f"{path}: box_{error}") from None
        codec = metadata.get("mask_codec")
        if codec is None:
            return cls(folder, box_scale=scale)
        if not isinstance(codec, dict):
            raise CheckpointError(f"{path}: mask_codec is {codec!r}; it must be an object")
        file, sha256 = codec.get("file"), codec.get("sha256")
        if not isinstance(sha256, str) or not re.fullmatch("[0-9a-f]{64}", sha256):
            raise CheckpointError(
                f"{path}: the sha256 of mask_codec is {sha256!r}; it must be the fingerprint of a "
                "codec, 64 hexadecimal digits"
            )
        return cls(folder, BUNDLED if file == BUNDLED else member(folder, file), sha256, scale)


def load_codec(sidecar: Sidecar, given: "str | Path | MaskCodec | None" = None) -> "MaskCodec":
    """The codec to draw the masks of a checkpoint with.

    given: what the user passes: a file (`vae-oid.npz` or safetensors) or a loaded codec.
    MaskCodecError: none is known, the file is absent or no codec, or another one is named.
    """
    from vqvae import CodecError, MaskCodec

    if given is None and sidecar.codec_file is None:
        raise MaskCodecError(
            f"{sidecar.folder} does not say which mask codec its segment codes belong to; pass "
            'mask_codec="…/vae-oid.npz", the codec of the official PaliGemma checkpoints'
        )
    if given is not None and not isinstance(given, str | Path):
        if not hasattr(given, "fingerprint"):
            raise MaskCodecError(
                f"mask_codec is {given!r:.80}; it must be a file or a vqvae.MaskCodec"
            )
        codec = given
    else:
        file = sidecar.codec_file if given is None else given
        try:
            codec = MaskCodec.load(None if given is None and file == BUNDLED else file)
        except CodecError as error:
            raise MaskCodecError(str(error)) from error
    if sidecar.codec_sha256 is not None and sidecar.codec_sha256 != codec.fingerprint:
        raise MaskCodecError(
            f"this is not the mask codec of {sidecar.folder}: its fingerprint is "
            f"{codec.fingerprint}, {FILE_NAME} names {sidecar.codec_sha256}; masks of another "
            "codec are wrong, so pass mask_codec= the one it was trained with"
        )
    return codec
