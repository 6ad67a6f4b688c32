"""big_vision's own files: one `.npz`, layers stacked on axis 0, kernels as (in, out).

Works for PaliGemma 1 and 2. The sizes of the network follow from the shapes; what does not show in
a shape (norm epsilon, RoPE base, soft-caps, sliding window) is the same in all released models.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlmtasks.engine.config import (
    GEMMA2_DEFAULTS,
    GemmaConfig,
    PaliGemmaConfig,
    SiglipVisionConfig,
)
from vlmtasks.errors import CheckpointError

MAX_COMPRESSION = 20  # of an archive; weights hardly shrink at all

Split = Callable[[Tensor], tuple[Tensor, ...]]


def _same(x: Tensor) -> tuple[Tensor]:
    return (x,)


def _transposed(x: Tensor) -> tuple[Tensor]:
    return (x.permute(1, 0),)  # (in, out) → (out, in)


def _convolution(x: Tensor) -> tuple[Tensor]:
    return (x.permute(3, 2, 0, 1),)  # (rows, columns, in, out) → (out, in, rows, columns)


def _first(x: Tensor) -> tuple[Tensor]:
    return (x[0],)  # (1, S, D) → (S, D)


def _flat(x: Tensor) -> tuple[Tensor]:
    return (x.flatten(),)  # bias by heads (h, d) → (h·d)


def _into_heads(x: Tensor) -> tuple[Tensor]:
    return (x.flatten(1).permute(1, 0),)  # (D, h, d) → (h·d, D)


def _out_of_heads(x: Tensor) -> tuple[Tensor]:
    return (x.flatten(0, 1).permute(1, 0),)  # (h, d, D) → (D, h·d)


def _heads_first(x: Tensor) -> tuple[Tensor]:
    return (x.transpose(1, 2).flatten(0, 1),)  # (h, D, d) → (h·d, D)


def _keys_and_values(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(_heads_first(part)[0] for part in x)  # (2, g, D, d) → 2 × (g·d, D)


def _gate_and_up(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(part.permute(1, 0) for part in x)  # (2, D, F) → 2 × (F, D)


_TOWER = "vision_tower.encoder.layers.{}."
_BLOCK = "img/Transformer/encoderblock/"
_ATTENTION = _BLOCK + "MultiHeadDotProductAttention_0/"
_DECODER = "language_model.layers.{}."

# Key in the file → our names and how its content becomes them. A name with {} takes the layer.
TABLE: dict[str, tuple[tuple[str, ...], Split]] = {
    "img/embedding/kernel": (
        ("vision_tower.embeddings.patch_embedding.weight",),
        _convolution,
    ),
    "img/embedding/bias": (("vision_tower.embeddings.patch_embedding.bias",), _same),
    "img/pos_embedding": (("vision_tower.embeddings.position_embedding.weight",), _first),
    "img/Transformer/encoder_norm/scale": (("vision_tower.post_layernorm.weight",), _same),
    "img/Transformer/encoder_norm/bias": (("vision_tower.post_layernorm.bias",), _same),
    "img/head/kernel": (("multi_modal_projector.linear.weight",), _transposed),
    "img/head/bias": (("multi_modal_projector.linear.bias",), _same),
    **{
        f"{_BLOCK}LayerNorm_{index}/{theirs}": ((f"{_TOWER}layer_norm{index + 1}.{ours}",), _same)
        for index in (0, 1)
        for theirs, ours in (("scale", "weight"), ("bias", "bias"))
    },
    **{
        f"{_BLOCK}MlpBlock_0/Dense_{index}/{theirs}": ((f"{_TOWER}mlp.fc{index + 1}.{ours}",), how)
        for index in (0, 1)
        for theirs, ours, how in (("kernel", "weight", _transposed), ("bias", "bias", _same))
    },
    **{
        f"{_ATTENTION}{theirs}/kernel": ((f"{_TOWER}self_attn.{ours}_proj.weight",), _into_heads)
        for theirs, ours in (("query", "q"), ("key", "k"), ("value", "v"))
    },
    **{
        f"{_ATTENTION}{theirs}/bias": ((f"{_TOWER}self_attn.{ours}_proj.bias",), _flat)
        for theirs, ours in (("query", "q"), ("key", "k"), ("value", "v"))
    },
    f"{_ATTENTION}out/kernel": ((f"{_TOWER}self_attn.out_proj.weight",), _out_of_heads),
    f"{_ATTENTION}out/bias": ((f"{_TOWER}self_attn.out_proj.bias",), _same),
    "llm/embedder/input_embedding": (("language_model.embed_tokens.weight",), _same),
    "llm/final_norm/scale": (("language_model.norm.weight",), _same),
    "llm/layers/attn/q_einsum/w": ((f"{_DECODER}self_attn.q_proj.weight",), _heads_first),
    "llm/layers/attn/kv_einsum/w": (
        (f"{_DECODER}self_attn.k_proj.weight", f"{_DECODER}self_attn.v_proj.weight"),
        _keys_and_values,
    ),
    "llm/layers/attn/attn_vec_einsum/w": ((f"{_DECODER}self_attn.o_proj.weight",), _out_of_heads),
    "llm/layers/mlp/gating_einsum": (
        (f"{_DECODER}mlp.gate_proj.weight", f"{_DECODER}mlp.up_proj.weight"),
        _gate_and_up,
    ),
    "llm/layers/mlp/linear": ((f"{_DECODER}mlp.down_proj.weight",), _transposed),
    "llm/layers/pre_attention_norm/scale": ((f"{_DECODER}input_layernorm.weight",), _same),
}
# The norm before the MLP has another name in Gemma 2, which has norms behind both as well.
GEMMA1_TABLE = {
    "llm/layers/pre_ffw_norm/scale": ((f"{_DECODER}post_attention_layernorm.weight",), _same),
}
GEMMA2_TABLE = {
    "llm/layers/pre_ffw_norm/scale": ((f"{_DECODER}pre_feedforward_layernorm.weight",), _same),
    "llm/layers/post_attention_norm/scale": (
        (f"{_DECODER}post_attention_layernorm.weight",),
        _same,
    ),
    "llm/layers/post_ffw_norm/scale": ((f"{_DECODER}post_feedforward_layernorm.weight",), _same),
}


def read_npz(path: Path) -> tuple[PaliGemmaConfig, dict[str, Tensor]]:
    """The config that the shapes imply, and the weights under our names.

    Raises CheckpointError for a file that is damaged, holds objects (pickles are never opened) or
    lacks a weight.
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            size = sum(member.file_size for member in file.zip.infolist())
            if size > MAX_COMPRESSION * path.stat().st_size:
                raise CheckpointError(f"{path} would unpack to {size} bytes; weights never do")
            keys = {key.removeprefix("params/"): key for key in file.files}
            table = TABLE | (GEMMA2_TABLE if _is_gemma2(keys) else GEMMA1_TABLE)
            _check_keys(path, keys.keys(), table.keys())
            shapes: dict[str, tuple[int, ...]] = {}
            tensors: dict[str, Tensor] = {}
            for key, (names, split) in table.items():
                stored = _as_tensor(file[keys[key]])
                shapes[key] = tuple(stored.shape)
                tensors.update(_converted(stored, names, split))
            return _config(shapes), tensors
    except CheckpointError:
        raise
    except Exception as error:  # zip, numpy and torch each fail in ways of their own
        raise CheckpointError(f"{path} is not a readable big_vision .npz: {error}") from error


def _converted(
    stored: Tensor, names: tuple[str, ...], split: Split
) -> Iterator[tuple[str, Tensor]]:
    if "{}" not in names[0]:
        yield from zip(names, map(Tensor.contiguous, split(stored)), strict=True)
        return
    for layer, content in enumerate(stored):
        for name, tensor in zip(names, split(content), strict=True):
            yield name.format(layer), tensor.contiguous()


def _as_tensor(array: np.ndarray) -> Tensor:
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        # numpy has no bfloat16 and hands out two bytes a number
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _is_gemma2(keys: Mapping[str, str]) -> bool:
    return any(key in keys for key in GEMMA2_TABLE.keys() - GEMMA1_TABLE.keys())


def _check_keys(path: Path, given: Set[str], expected: Set[str]) -> None:
    missing, unexpected = sorted(expected - given), sorted(given - expected)
    if missing or unexpected:
        raise CheckpointError(
            f"{path} is no PaliGemma of big_vision: missing {missing[:10]}, "
            f"unexpected {unexpected[:10]}"
        )


def _config(shapes: Mapping[str, tuple[int, ...]]) -> PaliGemmaConfig:
    patch, _, channels, vision_width = shapes["img/embedding/kernel"]
    side = round(shapes["img/pos_embedding"][1] ** 0.5)
    vision_layers, _, vision_heads, _ = shapes[f"{_ATTENTION}query/kernel"]
    rows, width = shapes["llm/embedder/input_embedding"]
    layers, heads, _, head_dim = shapes["llm/layers/attn/q_einsum/w"]
    is_gemma2 = _is_gemma2({key: key for key in shapes})
    extra: dict[str, Any] = {"head_dim": head_dim}
    if is_gemma2:
        # 27B divides by the width a head, the smaller ones by head_dim
        scalar = width // heads if head_dim == 128 else head_dim
        extra = {**GEMMA2_DEFAULTS, **extra, "query_pre_attn_scalar": scalar}
    return PaliGemmaConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=vision_width,
            intermediate_size=shapes[f"{_BLOCK}MlpBlock_0/Dense_0/kernel"][2],
            num_hidden_layers=vision_layers,
            num_attention_heads=vision_heads,
            num_channels=channels,
            image_size=side * patch,
            patch_size=patch,
        ),
        text_config=GemmaConfig(
            model_type="gemma2" if is_gemma2 else "gemma",
            vocab_size=rows,
            hidden_size=width,
            intermediate_size=shapes["llm/layers/mlp/gating_einsum"][3],
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=shapes["llm/layers/attn/kv_einsum/w"][2],
            **extra,
        ),
        image_token_index=rows,  # big_vision has no <image>; any id without a row of its own
    )
