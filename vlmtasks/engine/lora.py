"""LoRA adapters (arXiv 2106.09685) as peft saves them, merged into the weights: W + s·B·A.

s is alpha / r, or alpha / √r for rank-stabilised LoRA (arXiv 2312.03732).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from vlmtasks.engine.folder_files import member, read_json
from vlmtasks.engine.key_names import our_name
from vlmtasks.engine.tensor_files import has_weights, read_file
from vlmtasks.errors import CheckpointError, MissingFileError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MAX_ALPHA = 1e9
_ROOT = "base_model.model."
_QUANTIFIER, _REPEATED_GROUP = re.compile(r"[*+{?]"), re.compile(r"\)[*+{]")
_MATRIX = re.compile(r"(?P<module>.+)\.lora_(?P<kind>[AB])(?:\.(?P<adapter>[^.]+))?\.weight")
_UNSUPPORTED = (
    "use_dora",
    "use_qalora",
    "fan_in_fan_out",
    "lora_bias",
    "layer_replication",
    "alora_invocation_tokens",  # for some tokens of a text only
)
# Ways to start a training that take a part out of the base's own weights.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class LoraConfig:
    """What `adapter_config.json` says about merging. Fields as in the file."""

    base_model_name_or_path: str | None
    revision: str | None
    lora_alpha: float
    use_rslora: bool = False
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_folder(cls, folder: Path) -> "LoraConfig":
        """Raises CheckpointError for adapters that are not plain LoRA."""
        data = read_json(folder, CONFIG_FILE) or {}
        kind = data.get("peft_type", "LORA")
        if kind != "LORA":
            raise CheckpointError(f"{folder / CONFIG_FILE}: peft_type {kind!r}; only LORA is known")
        for option in _UNSUPPORTED:
            if data.get(option):
                raise CheckpointError(f"{folder / CONFIG_FILE}: {option} is not supported")
        start = data.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
            raise CheckpointError(
                f"{folder / CONFIG_FILE}: init_lora_weights is {start!r}, whose training changed "
                "the base's weights too; convert it to plain LoRA with peft's "
                "path_initial_model_for_weight_conversion"
            )
        alpha = data.get("lora_alpha")
        pattern = data.get("alpha_pattern") or {}
        if not _is_number(alpha) or not isinstance(pattern, dict):
            raise CheckpointError(f"{folder / CONFIG_FILE}: lora_alpha must be a number")
        if not all(map(_is_number, pattern.values())):
            raise CheckpointError(f"{folder / CONFIG_FILE}: alpha_pattern must hold numbers")
        return cls(
            _text(data, "base_model_name_or_path"),
            _text(data, "revision"),
            alpha,
            bool(data.get("use_rslora")),
            pattern,
        )

    def scale(self, module: str, rank: int) -> float:
        """s of one module, whose name is the one in the file."""
        alpha = self.lora_alpha
        for pattern, value in self.alpha_pattern.items():
            if module == pattern or module.endswith("." + pattern) or _matches(pattern, module):
                alpha = value
                break
        return alpha / (rank**0.5 if self.use_rslora else rank)


def has_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter, maybe beside a model."""
    return (folder / CONFIG_FILE).is_file()


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter and no weights of a model."""
    return has_adapter(folder) and not has_weights(folder)


def merge_adapter(tensors: dict[str, Tensor], folder: Path) -> None:
    """Merges an adapter folder into the weights `tensors` (our names), in place.

    Only changed weights are copied. Whole weights that were trained beside the adapter
    (modules_to_save, biases) replace those of the base. Raises CheckpointError naming every key of
    the adapter that has no place in the model.
    """
    config = LoraConfig.from_folder(folder)
    if not member(folder, WEIGHTS_FILE).is_file() and member(folder, "adapter_model.bin").is_file():
        raise MissingFileError(
            f"{folder} holds its adapter only as adapter_model.bin: pickle files can run code and "
            "are never opened here; save it as safetensors with peft"
        )
    pairs: dict[str, dict[str, Tensor]] = {}
    names: set[str] = set()
    unmatched: list[str] = []
    for key, tensor in read_file(folder, WEIGHTS_FILE).items():
        found = _MATRIX.fullmatch(key.removeprefix(_ROOT))
        if found is not None:
            pairs.setdefault(found["module"], {})[found["kind"]] = tensor
            names.add(found["adapter"] or "default")
        elif not _replace(tensors, our_name(_without_wrappers(key)), tensor):
            unmatched.append(key)
    _check_pairs(folder, names, pairs)
    for module, pair in pairs.items():
        name = our_name(module + ".weight")
        if name not in tensors or not _fits(tensors[name], pair):
            unmatched += [f"{module}.lora_{kind} {tuple(t.shape)}" for kind, t in pair.items()]
            continue
        scale = config.scale(module, len(pair["A"]))
        tensors[name] = merged(tensors[name], pair["A"], pair["B"], scale)
    if unmatched:
        raise CheckpointError(
            f"{folder}: {len(unmatched)} keys of the adapter have no place in the model: "
            f"{', '.join(sorted(unmatched)[:10])}; the adapter belongs to another base "
            f"(it names {config.base_model_name_or_path!r})"
        )


def merged(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """W + scale·B·A in float32, then back to W's dtype. W (out, in), A (r, in), B (out, r)."""
    return torch.addmm(weight.float(), b.float(), a.float(), alpha=scale).to(weight.dtype)


def _check_pairs(folder: Path, names: set[str], pairs: Mapping[str, Mapping[str, Tensor]]) -> None:
    if len(names) > 1:
        raise CheckpointError(
            f"{folder} holds several adapters: {', '.join(sorted(names))}; save the one to use on "
            "its own"
        )
    for module, pair in pairs.items():
        for kind, tensor in pair.items():
            if tensor.dtype not in _FLOATS:
                raise CheckpointError(
                    f"{folder}: {module}.lora_{kind} is {tensor.dtype}; only float32, bfloat16 and "
                    "float16 are merged"
                )


_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _without_wrappers(key: str) -> str:
    """The name in the base of a whole weight; peft wraps adapted modules in a `base_layer`."""
    return key.removeprefix(_ROOT).replace(".base_layer.", ".")


def _fits(weight: Tensor, pair: Mapping[str, Tensor]) -> bool:
    if pair.keys() != {"A", "B"} or weight.dim() != 2:
        return False
    a, b = pair["A"], pair["B"]
    return (
        a.dim() == b.dim() == 2
        and len(a) == b.shape[1] > 0
        and (len(b), a.shape[1]) == tuple(weight.shape)
    )


def _replace(tensors: dict[str, Tensor], name: str, tensor: Tensor) -> bool:
    like = tensors.get(name)
    if like is None and name == "lm_head.weight":  # trained apart from the embedding it was tied to
        like = tensors.get("language_model.embed_tokens.weight")
    if like is None or like.shape != tensor.shape:
        return False
    tensors[name] = tensor.to(like.dtype)
    return True


def _matches(pattern: str, module: str) -> bool:
    if len(_QUANTIFIER.findall(pattern)) > 4 or _REPEATED_GROUP.search(pattern):
        raise CheckpointError(
            f"alpha_pattern {pattern!r:.80} is too intricate, matching it might never end; write "
            "the names of the modules"
        )
    try:
        return re.fullmatch(rf"(.*\.)?({pattern})", module) is not None
    except re.error as error:
        raise CheckpointError(f"alpha_pattern {pattern!r} is no regular expression") from error


def _text(data: Mapping[str, Any], key: str) -> str | None:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise CheckpointError(f"{CONFIG_FILE}: {key} must be a string, not {value!r}")
    return value


def _is_number(value: Any) -> TypeGuard[float]:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_ALPHA
    )
