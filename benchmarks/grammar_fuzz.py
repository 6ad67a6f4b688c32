"""Do networks that nobody trained keep to the grammar of boxes?

    python -m benchmarks.grammar_fuzz [--count 10000] [--seed 0]

Random weights, random noise for pictures, random classes, tasks, lengths and ways of decoding;
every answer is parsed, and a record with any problem, or a label that was not asked, is a failure.
A model without training says what the grammar lets it, so this meets the corners that a trained
one never does: cut answers, loops, names that begin alike.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from vlmtasks.api import VLM
from vlmtasks.categories import normalize_name
from vlmtasks.demo.tokenizer import build_tokenizer
from vlmtasks.engine import Engine
from vlmtasks.engine.config import PaliGemmaConfig, tiny_config
from vlmtasks.engine.paligemma import PaliGemma
from vlmtasks.engine.random_weights import draw_weights
from vlmtasks.results import Detections

NAMES: tuple[str, ...] = (
    "cat", "cats", "cat food", "Dog", "dog on the left", "a", "ab", "abc", "x-ray & co", "7",
)  # fmt: skip
MODELS = 20
BATCH = 50


def main() -> int:
    """Print what was found; 1 when an answer was malformed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="answers (10000)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    seen: Counter[str] = Counter()
    rng = Random(options.seed)
    while seen["answers"] < options.count:
        vlm = random_vlm(rng)
        for _ in range(max(1, options.count // MODELS // BATCH)):
            check_batch(vlm, rng, seen)
    print(f"{time.perf_counter() - start:.0f} s; {dict(seen)}")
    return int(seen["malformed"] > 0)


def check_batch(vlm: VLM, rng: Random, seen: "Counter[str]") -> None:
    """Ask one question about many pictures and count what comes."""
    task = rng.choice(["detect", "segment"])
    names = rng.sample(list(NAMES), rng.randint(1, 4))
    keywords: dict[str, Any] = {
        "max_new_tokens": rng.choice([1, 4, 5, 6, 20, 21, 22, 40, 120, 200]),
        "score": rng.choice(["loc", "class", "product"]),
        "temperature": rng.choice([0.0, 1.0]),
        "seed": rng.randrange(1 << 30),
        "batch_size": BATCH,
    }
    if rng.random() < 0.2:
        keywords["stop_score"] = 0.001
    noise = np.random.default_rng(keywords["seed"])
    pictures = list(noise.integers(0, 256, (BATCH, 8, 8, 3), dtype=np.uint8))
    for found in getattr(vlm, task)(pictures, names, **keywords):
        complaint = complaint_about(found, names)
        if complaint:
            print(f"{task} {names} {keywords}: {complaint}: {found.text}", file=sys.stderr)
        seen["malformed"] += bool(complaint)
        seen["answers"] += 1
        seen["objects"] += len(found) + len(found.removed)
        seen[f"finish reason {found.finish_reason}"] += 1


def complaint_about(found: Detections, names: list[str]) -> str:
    """What is wrong with an answer, "" for nothing."""
    asked = set(map(normalize_name, names))
    if found.dropped:
        return f"problems {[record.problem for record in found.dropped]}"
    labels = {normalize_name(label) for label in found.labels}
    return "" if labels <= asked else f"labels {labels - asked}"


class BlankCodec:
    """Decodes to nothing: masks are not what is tested here."""

    fingerprint = "0" * 64

    def decode(self, codes: np.ndarray) -> np.ndarray:
        return np.zeros((len(codes), 64, 64), np.float32)


def random_vlm(rng: Random) -> VLM:
    """A tiny network with fresh weights and the demo's tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine.load(random_checkpoint(Path(folder), rng), device="cpu")
    return VLM(engine, mask_codec=BlankCodec())  # type: ignore[arg-type]


def random_checkpoint(folder: Path, rng: Random) -> Path:
    """A checkpoint folder of one or the other family."""
    network = PaliGemma(config_for_demo_tokens(rng.choice(["gemma", "gemma2"])))
    draw_weights(network, rng.randrange(1 << 30))
    (folder / "config.json").write_text(json.dumps(network.config.to_dict()), "utf-8")
    (folder / "tokenizer.json").write_text(build_tokenizer().to_str(), "utf-8")
    save_file(network.state_dict(), folder / "model.safetensors")
    return folder


def config_for_demo_tokens(model_type: str) -> PaliGemmaConfig:
    """`tiny_config` with the vocabulary of the demo."""
    size = build_tokenizer().get_vocab_size()
    config = tiny_config(model_type)
    text = replace(config.text_config, vocab_size=size)
    return replace(config, text_config=text, image_token_index=size - 1)


if __name__ == "__main__":
    sys.exit(main())
