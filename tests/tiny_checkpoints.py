"""Checkpoint folders small enough for tests: a real tokenizer, random weights."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from vlmtasks.engine.config import PaliGemmaConfig, tiny_config
from vlmtasks.engine.paligemma import PaliGemma
from vlmtasks.engine.random_weights import draw_weights

LOCS = [f"<loc{index:04d}>" for index in range(1024)]
SEGS = [f"<seg{index:03d}>" for index in range(128)]


@cache
def tiny_tokenizer_json() -> str:
    """A Gemma-like BPE: bytes, ASCII, a few words, then loc, seg, <image> in PaliGemma's order."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    letters = ["\n", "▁", *(chr(code) for code in range(33, 127)), "é", "ü"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = [("c", "a"), ("ca", "t"), ("d", "o"), ("do", "g"), ("▁", "cat"), ("▁", "dog")]
    merges += [("d", "e"), ("t", "e"), ("c", "t"), ("te", "ct"), ("de", "tect"), ("▁", ";")]
    pieces += [left + right for left, right in merges]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in (*LOCS, *SEGS)])
    tokenizer.add_special_tokens([AddedToken("<image>", normalized=False, special=True)])
    return tokenizer.to_str()


def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_str(tiny_tokenizer_json())


def checkpoint_config(model_type: str = "gemma", padding: int = 7) -> PaliGemmaConfig:
    """`tiny_config` with the vocabulary of `tiny_tokenizer` and some rows that mean nothing."""
    config = tiny_config(model_type)
    image_id = tiny_tokenizer().token_to_id("<image>")
    text = replace(config.text_config, vocab_size=image_id + 1 + padding)
    return replace(config, text_config=text, image_token_index=image_id)


def tiny_network(model_type: str = "gemma", seed: int = 0) -> PaliGemma:
    network = PaliGemma(checkpoint_config(model_type))
    draw_weights(network, seed)
    return network.eval().requires_grad_(False)


def save_folder(folder: Path, network: PaliGemma, **extra_json: object) -> Path:
    """Writes config, weights and tokenizer; extra_json: content of further `<name>.json` files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config": network.config.to_dict(), **extra_json}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    (folder / "tokenizer.json").write_text(tiny_tokenizer_json(), "utf-8")
    save_file(network.state_dict(), folder / "model.safetensors")
    return folder


def tiny_folder(folder: Path, model_type: str = "gemma", seed: int = 0) -> Path:
    return save_folder(folder, tiny_network(model_type, seed))


LAYOUTS = {
    "until 4.51": ("vision_tower.vision_model.", "", "language_model.model.", "language_model."),
    "from 4.52": ("model.vision_tower.vision_model.", "model.", "model.language_model.", ""),
    "from 4.52, flat tower": (
        "model.vision_tower.",
        "model.",
        "model.language_model.",
        "",
    ),
    "5.24 saves": ("vision_tower.", "", "language_model.model.", "language_model."),
    "ours": ("vision_tower.", "", "language_model.", ""),
    "mixture": ("model.vision_tower.", "", "language_model.model.", ""),
}


def in_layout(name: str, layout: str) -> str:
    """What a file of this layout calls the weight that we call `name`."""
    tower, projector, decoder, head = LAYOUTS[layout]
    if name.startswith("lm_head."):
        return head + name
    if name.startswith("multi_modal_projector."):
        return projector + name
    if name.startswith("vision_tower."):
        return tower + name.removeprefix("vision_tower.")
    return decoder + name.removeprefix("language_model.")


def save_shards(folder: Path, tensors: dict[str, torch.Tensor], shards: int = 3) -> None:
    """Writes the weights as `model-0000i-of-0000n.safetensors` with their index."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    weight_map = {}
    for index in range(shards):
        part = dict(list(tensors.items())[index::shards])
        name = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    index_file = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_file))


def tiny_picture(seed: int = 0, size_wh: tuple[int, int] = (50, 40)) -> Image.Image:
    """Coloured noise."""
    width, height = size_wh
    pixels = torch.randint(
        256, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )
    return Image.fromarray(pixels.numpy())
