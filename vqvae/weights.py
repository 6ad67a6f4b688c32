"""Weights files of the codec: the published ``.npz`` and our own ``.safetensors``, never pickle."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vqvae.errors import CodecWeightsInvalid, CodecWeightsMissing
from vqvae.model import MaskVQVAE

_MAX_BYTES = 1 << 28  # the published weights have less than 5 MB

# moving averages that the published training code keeps beside the codebook
_TRAINING_ONLY = frozenset({"_vq_vae._ema_cluster_size", "_vq_vae._ema_w"})


def load_model(path: Path) -> MaskVQVAE:
    """The codec's network in float32 evaluation mode.

    Args:
        path: ``.npz`` in the layout of ``vae-oid.npz``, or ``.safetensors`` with the same keys;
            float16 values are widened.

    Raises:
        CodecWeightsMissing: no such file.
        CodecWeightsInvalid: not readable, or not exactly this network's keys and shapes.
    """
    tensors = _read(path)
    with torch.device("meta"):
        model = MaskVQVAE()
    wanted = model.state_dict()
    given = {name: tensor for name, tensor in tensors.items() if name not in _TRAINING_ONLY}
    _check_layout(path, wanted, given)
    model.load_state_dict({name: given[name].float() for name in wanted}, assign=True)
    return model.eval().requires_grad_(False)


def save_weights(model: MaskVQVAE, path: Path, decoder_dtype: torch.dtype = torch.float32) -> None:
    """Write the network as safetensors, the decoder's values rounded to ``decoder_dtype``.

    The encoder and the codebook stay in float32: rounding them would change the codes of some
    masks, whereas a rounded decoder only moves outlines by less than can be seen.
    """
    state = {
        name: value.to(decoder_dtype if name.startswith("decoder.") else torch.float32)
        for name, value in model.state_dict().items()
    }
    save_file({name: value.contiguous() for name, value in state.items()}, str(path))


def _read(path: Path) -> dict[str, Tensor]:
    try:
        is_there = path.is_file()
    except OSError:  # a name that no file can have
        is_there = False
    if not is_there:
        raise CodecWeightsMissing(
            f"no codec weights at {path}: give a vae-oid.npz or a .safetensors file, "
            "or None for the bundled codec"
        )
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors}
    if path.suffix not in readers:
        raise CodecWeightsInvalid(
            f"{path} has the ending {path.suffix!r}: codec weights are .npz or .safetensors"
        )
    return readers[path.suffix](path)


def _read_npz(path: Path) -> dict[str, Tensor]:
    try:
        # opened here, because numpy leaves the file open when it is no whole zip archive
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            size = sum(member.file_size for member in arrays.zip.infolist())
            if size > _MAX_BYTES:
                raise ValueError(f"it would unpack to {size} bytes")
            return {name: torch.from_numpy(np.array(arrays[name])) for name in arrays.files}
    except Exception as error:  # each part of an archive fails in its own way when damaged
        raise CodecWeightsInvalid(f"{path} is no npz file of plain numbers: {error}") from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        raise CodecWeightsInvalid(f"{path} is no safetensors file: {error}") from error


def _check_layout(path: Path, wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    problems = [f"missing {name}" for name in sorted(wanted.keys() - given.keys())]
    problems += [f"unexpected {name}" for name in sorted(given.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & given.keys()):
        if given[name].shape != wanted[name].shape:
            shapes = f"{tuple(given[name].shape)} instead of {tuple(wanted[name].shape)}"
            problems.append(f"{name} is {shapes}")
        elif not given[name].is_floating_point():
            problems.append(f"{name} holds {given[name].dtype}, not floating point numbers")
    if problems:
        raise CodecWeightsInvalid(
            f"{path} does not hold the mask codec's weights: " + "; ".join(problems)
        )
