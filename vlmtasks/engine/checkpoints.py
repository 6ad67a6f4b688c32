"""A checkpoint folder → the network and everything that belongs to it, or one clear error."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlmtasks.engine.big_vision import read_npz
from vlmtasks.engine.config import PaliGemmaConfig
from vlmtasks.engine.devices import DTYPES
from vlmtasks.engine.folder_files import member, read_json
from vlmtasks.engine.key_names import rename_all
from vlmtasks.engine.lora import merge_adapter
from vlmtasks.engine.paligemma import PaliGemma
from vlmtasks.engine.pixels import PixelConfig
from vlmtasks.engine.tensor_files import read_tensors
from vlmtasks.engine.tokenizer import Tokenizer
from vlmtasks.errors import CheckpointError, InputError

logger = logging.getLogger(__name__)

HEAD = "lm_head.weight"
EMBEDDING = "language_model.embed_tokens.weight"
QUANTISED = "the weights are quantised; this engine loads float32, bfloat16 and float16."
POSITIONS = "vision_tower.embeddings.position_embedding.weight"


@dataclass(frozen=True)
class Checkpoint:
    """What a folder holds. stop_ids: every id that ends an answer. metadata: `vlmtasks.json`."""

    folder: Path
    network: PaliGemma
    tokenizer: Tokenizer
    pixel_config: PixelConfig
    stop_ids: frozenset[int]
    metadata: dict[str, Any]


def load_checkpoint(
    source: Path,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    resolution: int | None = None,
    adapter: Path | None = None,
    final_softcap: bool = True,
) -> Checkpoint:
    """Reads a folder as transformers saves it, or one of big_vision's `.npz` beside a tokenizer.

    Weights stay memory-mapped where device and dtype allow it, so that resident memory is the file
    once. dtype None: as stored (float16 becomes float32 on the CPU, which cannot compute in it).
    resolution: another side of the model input in pixels; the position table is interpolated.
    adapter: a LoRA folder to merge. final_softcap False: leave Gemma 2's final soft-cap out.
    """
    folder = source if source.is_dir() else source.parent
    config, tensors = read_model(source)
    if adapter is not None:
        merge_adapter(tensors, adapter)
    if resolution is not None:
        config = resize_positions(tensors, config, resolution)
    if not final_softcap:
        text = replace(config.text_config, final_logit_softcapping=None)
        config = replace(config, text_config=text)
    tokenizer = Tokenizer.from_file(member(folder, "tokenizer.json"))
    check_vocabulary(tokenizer, config)
    return Checkpoint(
        folder=folder,
        network=build_network(config, tensors, device, dtype, str(source)),
        tokenizer=tokenizer,
        pixel_config=read_pixel_config(folder, config, resized=resolution is not None),
        stop_ids=read_stop_ids(folder) | {tokenizer.eos_id},
        metadata=read_metadata(folder),
    )


def read_model(source: Path) -> tuple[PaliGemmaConfig, dict[str, Tensor]]:
    """Config and weights (our names) of a folder or of a `.npz` file."""
    if source.is_file():
        return read_npz(source)
    packed = sorted(source.glob("*.npz"))
    if len(packed) == 1 and not any(source.glob("*.safetensors*")):
        return read_npz(member(source, packed[0].name))
    config = PaliGemmaConfig.from_dict(read_json(source, "config.json") or {})
    tensors = read_tensors(source)
    named = {name: tensors[key] for name, key in rename_all(tensors).items()}
    if config.tie_word_embeddings and EMBEDDING not in named and HEAD in named:
        named[EMBEDDING] = named.pop(HEAD)  # tied, and saved under the name of the head
    return config, named


def build_network(
    config: PaliGemmaConfig,
    tensors: Mapping[str, Tensor],
    device: torch.device,
    dtype: torch.dtype | None,
    source: str,
) -> PaliGemma:
    """A network in eval mode whose parameters are `tensors` (our names), without a second copy.

    Raises CheckpointError listing every missing, unexpected and misshapen weight.
    """
    with torch.device("meta"):
        network = PaliGemma(config)
        if has_own_head(config, tensors):
            text = config.text_config
            network.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
    check_fit(network, tensors, source)
    chosen = compute_dtype(tensors, device) if dtype is None else dtype
    wanted = network.state_dict().keys()
    state = {name: tensors[name].to(device=device, dtype=chosen) for name in wanted}
    network.load_state_dict(state, strict=True, assign=True)
    return network.requires_grad_(False).eval()


def has_own_head(config: PaliGemmaConfig, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the head differs from the embedding, as transformers decides it.

    A stored head with the very numbers of the embedding is tied; it is not kept twice.
    """
    if HEAD not in tensors:
        return not config.tie_word_embeddings
    head, embedding = tensors[HEAD], tensors.get(EMBEDDING)
    if embedding is None or head.shape != embedding.shape or head.dtype != embedding.dtype:
        return True
    return not torch.equal(head, embedding)


def compute_dtype(tensors: Mapping[str, Tensor], device: torch.device) -> torch.dtype:
    """The dtype that most numbers are stored in.

    float32 in place of float64, and in place of float16 on the CPU, which cannot compute in it.
    """
    counts: dict[torch.dtype, int] = {}
    for tensor in tensors.values():
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel()
    most = max(counts, key=lambda dtype: counts[dtype])
    too_wide_or_narrow = most == torch.float64 or (device.type == "cpu" and most == torch.float16)
    return torch.float32 if too_wide_or_narrow else most


def check_fit(network: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Raises one CheckpointError for all weights that do not fit, with the likely cause."""
    expected = {name: tuple(p.shape) for name, p in network.state_dict().items()}
    given = {name: tuple(t.shape) for name, t in tensors.items()}
    if HEAD in given and HEAD not in expected:  # the same numbers as the embedding: tied
        del given[HEAD]
    missing = sorted(expected.keys() - given.keys())
    unexpected = sorted(given.keys() - expected.keys())
    misshapen = sorted(n for n in expected.keys() & given.keys() if expected[n] != given[n])
    wrong_dtype = sorted(n for n in expected.keys() & given.keys() if not _is_float(tensors[n]))
    if not (missing or unexpected or misshapen or wrong_dtype):
        return
    lines = [f"{source}: the weights do not fit the config."]
    lines += _listed("missing", missing)
    lines += _listed("unexpected", unexpected)
    lines += _listed(
        "misshapen", [f"{n} is {given[n]}, the config says {expected[n]}" for n in misshapen]
    )
    lines += _listed("not floating point", [f"{n} is {tensors[n].dtype}" for n in wrong_dtype])
    cause = QUANTISED if wrong_dtype else _likely_cause(expected, missing, unexpected, misshapen)
    lines.append(f"Likely cause: {cause}")
    raise CheckpointError("\n".join(lines))


def resize_positions(
    tensors: dict[str, Tensor], config: PaliGemmaConfig, resolution: int
) -> PaliGemmaConfig:
    """Interpolates the position table in place for a model input of `resolution` pixels a side.

    Bicubic, align_corners False, no antialias, as transformers' `interpolate_pos_encoding`.
    Returns the config of the resized model.
    """
    vision = config.vision_config
    if isinstance(resolution, bool) or not isinstance(resolution, int) or resolution < 1:
        raise InputError(
            f"resolution must be a number of pixels, not {resolution!r}; leave it out for the "
            f"model's own {vision.image_size}"
        )
    if resolution % vision.patch_size:
        raise InputError(
            f"resolution {resolution} is no multiple of the patch size {vision.patch_size}; the "
            f"nearest that fits is {_nearest_multiple(resolution, vision.patch_size)}"
        )
    tokens = (resolution // vision.patch_size) ** 2
    if tokens >= config.text_config.max_position_embeddings:
        raise InputError(
            f"resolution {resolution} gives {tokens} image tokens, which leaves nothing of the "
            f"{config.text_config.max_position_embeddings} positions of this model; pass less"
        )
    table = tensors.get(POSITIONS)
    if table is not None and table.dim() == 2:
        before, after = int(len(table) ** 0.5), resolution // vision.patch_size
        if before**2 == len(table) and before != after:
            square = table.float().view(1, before, before, -1).permute(0, 3, 1, 2)
            square = nn.functional.interpolate(
                square, size=(after, after), mode="bicubic", align_corners=False
            )
            flat = square.permute(0, 2, 3, 1).reshape(after**2, -1)
            tensors[POSITIONS] = flat.to(table.dtype)
    return replace(config, vision_config=replace(vision, image_size=resolution))


def _nearest_multiple(number: int, unit: int) -> int:
    return max(1, round(number / unit)) * unit


def check_vocabulary(tokenizer: Tokenizer, config: PaliGemmaConfig) -> None:
    """Raises CheckpointError where tokenizer and embedding table cannot belong together."""
    if tokenizer.image_id is not None and tokenizer.image_id != config.image_token_index:
        raise CheckpointError(
            f"<image> is {tokenizer.image_id} in tokenizer.json but image_token_index is "
            f"{config.image_token_index} in config.json; the files belong to different checkpoints"
        )
    rows, size = config.text_config.vocab_size, tokenizer.size
    if tokenizer.image_id == size - 1:
        size -= 1  # <image> needs no row: image tokens take its place
    if size > rows:
        raise CheckpointError(
            f"tokenizer.json has ids up to {size - 1}, but the embedding table has only {rows} "
            "rows (text_config.vocab_size); the files belong to different checkpoints"
        )


def read_pixel_config(folder: Path, config: PaliGemmaConfig, *, resized: bool) -> PixelConfig:
    """`preprocessor_config.json`, or that part of `processor_config.json`, or the usual values."""
    data = read_json(folder, "preprocessor_config.json", required=False)
    if data is None:
        processor = read_json(folder, "processor_config.json", required=False) or {}
        part = processor.get("image_processor")
        data = part if isinstance(part, dict) else {}
    return PixelConfig.from_dict(data, config.vision_config.image_size, resized=resized)


def read_stop_ids(folder: Path) -> frozenset[int]:
    """The end tokens of `generation_config.json`; its sampling settings are not taken over."""
    data = read_json(folder, "generation_config.json", required=False) or {}
    value = data.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise CheckpointError(f"generation_config.json: eos_token_id must be ids, not {value!r}")
    if data.get("do_sample"):
        logger.info("%s: sampling settings of generation_config.json are ignored", folder)
    return frozenset(ids)


def read_metadata(folder: Path) -> dict[str, Any]:
    """The object in `vlmtasks.json`, what we keep beside a checkpoint; {} where there is none."""
    return read_json(folder, "vlmtasks.json", required=False) or {}


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype in (*DTYPES.values(), torch.float64)


def _listed(what: str, names: list[str], limit: int = 20) -> list[str]:
    if not names:
        return []
    more = f"\n  … and {len(names) - limit} more" if len(names) > limit else ""
    return [f"{len(names)} {what}:\n  " + "\n  ".join(names[:limit]) + more]


def _likely_cause(
    expected: Mapping[str, Any], missing: list[str], unexpected: list[str], misshapen: list[str]
) -> str:
    def any_has(names: list[str], *parts: str) -> bool:
        return any(part in name for name in names for part in parts)

    if any_has(unexpected, "lora_"):
        return "these are matrices of a LoRA adapter; load the base with adapter= this folder."
    if any_has(unexpected, "qweight", "absmax", "quant_state", "scale", "weight_format", "SCB"):
        return QUANTISED
    if any_has(unexpected, "feedforward_layernorm"):
        return (
            "PaliGemma 2 weights in a PaliGemma 1 config: text_config.model_type should be "
            "'gemma2', with the sizes that belong to it."
        )
    if any_has(missing, "feedforward_layernorm"):
        return (
            "PaliGemma 1 weights in a PaliGemma 2 config: text_config.model_type should be 'gemma'."
        )
    if len(missing) == len(expected):
        return "this is no PaliGemma, or its key names are those of another library."
    if misshapen and all(name == POSITIONS for name in misshapen):
        return (
            "the position table is that of another resolution: correct vision_config.image_size, "
            "then pass resolution= to resize the table."
        )
    if any_has(misshapen, EMBEDDING, HEAD):
        return "text_config.vocab_size must be the number of rows of the embedding table."
    if missing and not unexpected and not misshapen:
        return "the file is incomplete, or the config has too many layers."
    if unexpected and not missing and not misshapen:
        return "the config has too few layers, or the file holds another model too."
    return "config.json and the weights belong to different models."
