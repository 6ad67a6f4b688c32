"""Pictures behind the vision tower: made once, asked about many times."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlmtasks.engine.checkpoints import Checkpoint
from vlmtasks.errors import InputError


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """A picture after the vision tower, accepted wherever the engine takes a picture.

    tokens: (S, D), what the decoder sees. image_size: (width, height) of the picture in pixels.
    fingerprint: of the engine that made it; another engine refuses it.
    """

    tokens: Tensor
    image_size: tuple[int, int]
    fingerprint: str


def join_images(image: EncodedImage | Sequence[EncodedImage], fingerprint: str) -> Tensor:
    """All image tokens of one prompt (S, D), picture after picture.

    Raises InputError for what is no encoding, or was made by another engine than `fingerprint`.
    """
    parts = list(image) if isinstance(image, Sequence) else [image]
    for part in parts:
        if not isinstance(part, EncodedImage):
            raise InputError(
                f"the engine takes encoded pictures, not {type(part).__name__}; "
                "call engine.encode_image first"
            )
        if part.fingerprint != fingerprint:
            raise InputError(
                "this picture was encoded by another checkpoint, resolution or dtype; "
                "encode it with this engine"
            )
    if not parts:
        raise InputError("a prompt needs at least one picture")
    return parts[0].tokens if len(parts) == 1 else torch.cat([part.tokens for part in parts])


def fingerprint_of(checkpoint: Checkpoint) -> str:
    """Of everything that decides what a picture is encoded to."""
    network = checkpoint.network
    weight = network.multi_modal_projector.linear.weight
    digest = hashlib.sha256()
    facts = (network.config.to_dict(), repr(checkpoint.pixel_config), str(weight.dtype))
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for tensor in (weight, network.vision_tower.embeddings.patch_embedding.weight):
        digest.update(tensor.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()
