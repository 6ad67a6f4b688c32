"""Turns the state of a training run into an ordinary checkpoint folder.

    python -m vlmtasks.demo.export runs/demo/state.pt vlmtasks/demo/checkpoint

The folder is what `save_pretrained` of transformers writes for a PaliGemma (weights in float16,
names of the official files), with `vlmtasks.json` beside it for what transformers has no place for:
which mask codec the codes belong to.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from vlmtasks.demo.network import demo_config
from vlmtasks.demo.tokenizer import save_tokenizer
from vqvae import MaskCodec

HUB_NAMES = {
    "vision_tower.": "vision_tower.vision_model.",
    "language_model.": "language_model.model.",
    "multi_modal_projector.": "multi_modal_projector.",
}


def export(state_file: Path, folder: Path) -> None:
    """Writes config, weights, tokenizer and codec name; replaces what is in the folder."""
    state = torch.load(state_file, weights_only=True)
    weights = state["model"]
    folder.mkdir(parents=True, exist_ok=True)
    config = demo_config(len(weights["language_model.embed_tokens.weight"]))
    _write_json(folder / "config.json", config.to_dict() | {"dtype": "float16"})
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "do_sample": False},
    )
    _write_json(
        folder / "vlmtasks.json",
        {
            "mask_codec": {"file": "bundled", "sha256": MaskCodec.load().fingerprint},
            "box_scale": 1024,
        },
    )
    save_tokenizer(folder)
    save_file(
        {_hub_name(name): weight.half().contiguous() for name, weight in weights.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes it for the owner alone


def _hub_name(name: str) -> str:
    for ours, theirs in HUB_NAMES.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise ValueError(f"unexpected weight {name}")


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the checkpoint folder of a training run.")
    parser.add_argument("state", type=Path, help="state.pt of a run")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    export(options.state, options.folder)


if __name__ == "__main__":
    main()
