"""Trains the demo checkpoint on one CPU core, in three stages, and resumes where it stopped.

    python -m vlmtasks.demo.train --out runs/demo [--photos ../shared/data] [--bfloat16]

0. heads: only with --start-from, whose folder lacks what asks the tower: this alone is learnt.
1. tower: dense questions to every image token (dense.py); the decoder does not run.
2. decoder: several prompts of one picture packed behind its image tokens, which do not see them.
3. official: one prompt a sequence under PaliGemma's full prefix mask, one-hot labels.

Two cores train nearly twice as fast as two processes that average their gradients:

    torchrun --nproc-per-node 2 -m vlmtasks.demo.train --out runs/demo …

Every stage has its own warm-up and anneals to where the next one begins. Scene number i of a run
is the same in every run with the same seed, so a resumed run goes on as if it had not stopped.
"""

import argparse
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from vlmtasks.demo.batches import Batch, batches, sample_pictures
from vlmtasks.demo.dense import DenseHeads, keep_patches
from vlmtasks.demo.network import (
    GRID,
    IMAGE_SIZE,
    PATCH_SIZE,
    build_model,
    start_pointing,
    whiten_patches,
)
from vlmtasks.demo.objectives import packed_layer, packed_loss, prefix_loss
from vlmtasks.demo.vocabulary import DemoVocabulary
from vlmtasks.engine.checkpoints import load_checkpoint
from vlmtasks.engine.paligemma import PaliGemma
from vqvae.muon import Muon

logger = logging.getLogger(__name__)
WHITENING_PICTURES = 300
POINTING_PICTURES = 40
HABITS = tuple(
    f"language_model.layers.{layer}.self_attn.{part}_proj"
    for layer in (0, 1)
    for part in ("q", "k")
)
HABIT_SHARE = 0.05
EMBEDDING_SHARE = 0.2  # of the rates after the tower stage, whose answers hang on the embeddings
KEPT_PATCHES = 108  # of 196, in the tower stage; at its end all of them, as in use
KNOWN_SPREAD = 1.0  # at most, of what has learned the locations before
ALL_PATCHES_FROM = 0.9  # share of the tower stage
DENSE_WEIGHTS = {
    "class": 1.0, "center": 0.5, "edge": 1.0, "mask": 1.0, "code": 0.5, "color": 0.3, "char": 2.0,
    "count": 0.4, "rank": 0.4, "order": 0.3, "outline": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """name; optimiser steps; pictures a step; prompts a picture; learning rates; label spread."""

    name: str
    steps: int
    batch_size: int
    prompts: int
    matrix_lr: float
    other_lr: float
    tower_share: float  # of the learning rates, for the tower and projector; 0 freezes them
    decoder_share: float  # of the learning rates, for the decoder and its embeddings
    dense_share: float  # weight of the dense losses
    point_share: float  # weight of the pointing loss
    last_rate: float  # share of the learning rates that is left at the end
    spread: tuple[float, float]  # of the location labels, from … to, in taught bins


STAGES = {
    "heads": Stage("heads", 0, 32, 0, 3e-3, 1.5e-3, 0.0, 0.0, 1.0, 0.0, 0.5, (0.5, 0.5)),
    "tower": Stage("tower", 12000, 32, 0, 3e-3, 1.5e-3, 1.0, 1.0, 1.0, 0.0, 0.0, (2.0, 0.5)),
    "decoder": Stage("decoder", 8000, 12, 8, 3e-3, 1.5e-3, 0.25, 1.0, 0.5, 0.3, 0.1, (1.2, 0.0)),
    "official": Stage("official", 500, 14, 2, 3e-4, 1.5e-4, 0.25, 1.0, 0.3, 0.1, 0.0, (0.0, 0.0)),
}


class Trainer:
    """Model, optimisers and position of a run; `state`/`restore` make it resumable.

    bfloat16: matrix products and Muon's steps in it, several times as fast on CPUs that have it
    (AMX, AVX-512 BF16) and slower on others; weights stay float32.
    """

    def __init__(
        self,
        vocabulary: DemoVocabulary,
        seed: int,
        *,
        start_from: Path | None = None,
        rate: float = 1.0,
        bfloat16: bool = False,
    ) -> None:
        self.vocabulary = vocabulary
        self.seed = seed
        self.is_new = start_from is None
        self.rate = rate
        self.bfloat16 = bfloat16
        torch.manual_seed(seed)
        self.model = build_model(vocabulary.size, vocabulary.loc_start, seed)
        if start_from is None:
            whiten_patches(self.model, sample_pictures(seed, WHITENING_PICTURES))
        else:
            cpu = torch.device("cpu")
            start = load_checkpoint(
                start_from, device=cpu, dtype=torch.float32, resolution=IMAGE_SIZE
            )
            self.model.load_state_dict(start.network.state_dict())
        self.heads = DenseHeads(
            self.model.config.text_config.hidden_size, vocabulary.class_ids, vocabulary.color_ids,
            vocabulary.char_ids, vocabulary.digit_ids, vocabulary.loc_start, vocabulary.seg_start,
        )  # fmt: skip
        self.stage = ""
        self.step = 0
        self.optimizers: list[torch.optim.Optimizer] = []
        self.packed_layer = packed_layer

    def compile(self) -> None:
        """Fuses the layers' small steps; a minute of g++ for a third of the time of each step."""
        for layer in (*self.model.vision_tower.encoder.layers, *self.model.language_model.layers):
            layer.compile(dynamic=False)
        self.packed_layer = torch.compile(packed_layer, dynamic=False)

    def begin(self, stage: Stage) -> None:
        """Starts a stage with fresh optimisers."""
        if stage.name == "decoder" and self.is_new:
            start_pointing(
                self.model,
                self.heads.center.weight[0].detach(),
                self.vocabulary.class_ids,
                self.vocabulary.class_of,
                sample_pictures(self.seed, POINTING_PICTURES),
            )
        self.stage, self.step = stage.name, 0
        self.optimizers = self._optimizers(stage)

    def _optimizers(self, stage: Stage) -> list[torch.optim.Optimizer]:
        dtype = torch.bfloat16 if self.bfloat16 else torch.float32
        embedding_share = EMBEDDING_SHARE if stage.prompts or not self.is_new else 1.0
        return optimizers(self.model, self.heads, stage, embedding_share, self.rate, dtype)

    def train_step(self, batch: Batch, stage: Stage) -> dict[str, float]:
        """One update; returns the losses."""
        torch.manual_seed(self.seed * 1_000_003 + self.step)  # a resumed run draws the same
        progress = self.step / stage.steps
        annealed = max(0.0, (progress - 0.4) / 0.6)
        rate = min(1.0, (self.step + 1) / 100) * (1.0 - (1.0 - stage.last_rate) * annealed)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate
        spread = stage.spread[0] + (stage.spread[1] - stage.spread[0]) * progress
        spread = spread if self.is_new else min(spread, KNOWN_SPREAD)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            losses = self._losses(batch, stage, spread)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        losses["total"].backward()
        average_gradients([*self.model.parameters(), *self.heads.parameters()])
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        return {name: float(loss.detach()) for name, loss in losses.items()}

    def _losses(self, batch: Batch, stage: Stage, spread: float) -> dict[str, Tensor]:
        embeddings = self.model.language_model.embed_tokens.weight
        dense = batch.dense
        if stage.prompts:
            with torch.set_grad_enabled(stage.tower_share > 0):
                image_tokens = self.model.encode_image(batch.pixels())
        else:
            rng = np.random.default_rng((self.seed, self.step))
            is_late = self.step >= ALL_PATCHES_FROM * stage.steps
            kept, dense = keep_patches(dense, GRID**2 if is_late else KEPT_PATCHES, rng)
            with torch.set_grad_enabled(stage.tower_share > 0):
                image_tokens = encode_patches(self.model, batch.pictures, kept)
        losses: dict[str, Tensor] = {}
        if stage.dense_share > 0:
            losses = self.heads.losses(image_tokens, embeddings, dense, spread)
        total = stage.dense_share * sum(
            (DENSE_WEIGHTS[name] * loss for name, loss in losses.items()), torch.zeros(())
        )
        if stage.prompts:
            given = self.model, image_tokens, batch.prompts, self.vocabulary, spread
            is_packed = stage.name == "decoder"
            text = packed_loss(*given, self.packed_layer) if is_packed else prefix_loss(*given)
            losses |= text
            total = total + text["text"] + stage.point_share * text["point"]
        return losses | {"total": total}

    def state(self) -> dict:
        return {
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "stage": self.stage,
            "step": self.step,
        }

    def restore(self, state: dict, stage: Stage | None) -> None:
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        self.stage, self.step = state["stage"], state["step"]
        if stage is not None:
            self.optimizers = self._optimizers(stage)
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                peaks = [group["peak"] for group in optimizer.param_groups]
                optimizer.load_state_dict(saved)
                for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                    group["peak"] = peak  # the plan's, should it have changed


def average_gradients(parameters: list[nn.Parameter]) -> None:
    """Over all processes of the run; nothing to do in a single one."""
    if not distributed.is_initialized():
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    parts = flat.split([gradient.numel() for gradient in gradients])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)


def encode_patches(model: PaliGemma, pictures: np.ndarray, kept: np.ndarray) -> Tensor:
    """Image tokens (B, K, D) of a tower that sees only the patches kept (B, K).

    pictures: (B, P, P, 3) uint8. As `encode_image`, but with a product in place of the convolution.
    """
    tower = model.vision_tower
    embedding = tower.embeddings.patch_embedding
    cells = pictures.reshape(len(pictures), GRID, PATCH_SIZE, GRID, PATCH_SIZE, 3)
    cells = cells.transpose(0, 1, 3, 5, 2, 4).reshape(len(pictures), GRID**2, -1)
    patches = torch.from_numpy(np.take_along_axis(cells, kept[..., None], 1))
    x = F.linear(patches.float() / 127.5 - 1.0, embedding.weight.flatten(1), embedding.bias)
    x = x + tower.embeddings.position_embedding.weight[torch.from_numpy(kept)]
    for layer in tower.encoder.layers:
        x = layer(x)
    return model.multi_modal_projector(tower.post_layernorm(x))


def optimizers(
    model: PaliGemma, heads: nn.Module, stage: Stage, embedding_share: float, rate: float,
    muon_dtype: torch.dtype,
) -> list[torch.optim.Optimizer]:  # fmt: skip
    """Muon for the matrices of both transformers, Adam for the rest.

    Queries and keys that start with a habit learn slowly: Muon's steps are all of one size, and at
    full rate they wipe a habit out before the rest has learned to use it.
    """
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        is_decoder = name.startswith("language_model")
        share = stage.decoder_share if is_decoder else stage.tower_share
        share *= HABIT_SHARE if name.startswith(HABITS) else 1.0
        share *= embedding_share if "embed_tokens" in name else 1.0
        is_matrix = parameter.ndim >= 2 and "embed" not in name
        groups.setdefault((is_matrix, rate * share), []).append(parameter)
    groups.setdefault((False, 1.0), []).extend(heads.parameters())
    made: list[torch.optim.Optimizer] = []
    for (is_matrix, share), parameters in groups.items():
        peak = share * (stage.matrix_lr if is_matrix else stage.other_lr)
        if is_matrix:
            optimizer: torch.optim.Optimizer = Muon(parameters, lr=peak, dtype=muon_dtype)
        else:
            optimizer = torch.optim.Adam(parameters, lr=peak, betas=(0.9, 0.98), fused=True)
        for group in optimizer.param_groups:
            group["peak"] = peak
        made.append(optimizer)
    return made


def run(
    out: Path,
    stages: list[Stage],
    seed: int,
    photos: Path | None,
    *,
    start_from: Path | None = None,
    rate: float = 1.0,
    bfloat16: bool = False,
    fuse: bool = False,
) -> None:
    """Runs the stages that are not finished yet, saving to `out` every few minutes.

    start_from: a checkpoint folder whose weights the run begins with, instead of fresh ones.
    rate: of the planned learning rates of the model.
    """
    out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(
        DemoVocabulary.build(), seed, start_from=start_from, rate=rate, bfloat16=bfloat16
    )
    if fuse:
        trainer.compile()
    names = [stage.name for stage in stages]
    saved = out / "state.pt"
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        stage = stages[names.index(state["stage"])] if state["stage"] in names else None
        is_finished = stage is not None and state["step"] >= stage.steps
        trainer.restore(state, None if is_finished else stage)
    first = names.index(trainer.stage) if trainer.stage in names else 0
    for stage in stages[first:]:
        if trainer.stage != stage.name:
            trainer.begin(stage)
        _run_stage(trainer, stage, out, photos)


def _run_stage(trainer: Trainer, stage: Stage, out: Path, photos: Path | None) -> None:
    rank = distributed.get_rank() if distributed.is_initialized() else 0
    source: Iterator[Batch] = batches(
        trainer.vocabulary, trainer.seed + len(stage.name) + 1000 * rank,
        stage.batch_size, stage.prompts,
        first=trainer.step, photos=photos, bfloat16=trainer.bfloat16,
    )  # fmt: skip
    started = last_saved = time.monotonic()
    first, sums = trainer.step, {}
    while trainer.step < stage.steps:
        losses = trainer.train_step(next(source), stage)
        for name, value in losses.items():
            sums[name] = sums.get(name, 0.0) * 0.98 + value * 0.02 if name in sums else value
        if rank:
            continue  # the first process writes for all
        if trainer.step % 20 == 0 or trainer.step == stage.steps:
            speed = (trainer.step - first) / (time.monotonic() - started)
            row = {
                "stage": stage.name,
                "step": trainer.step,
                "steps_a_minute": round(60 * speed, 1),
            }
            row |= {name: round(value, 4) for name, value in sums.items()}
            with open(out / "log.jsonl", "a", encoding="utf-8") as log:
                log.write(json.dumps(row) + "\n")
        if time.monotonic() - last_saved > 180 or trainer.step == stage.steps:
            save(trainer, out, stage)
            last_saved = time.monotonic()


def save(trainer: Trainer, out: Path, stage: Stage) -> None:
    """Writes to a file beside and moves it, so that a kill never leaves half a state."""
    for name in ("state.pt", *([f"{stage.name}.pt"] if trainer.step == stage.steps else [])):
        torch.save(trainer.state() | {"plan": asdict(stage)}, out / "state.tmp")
        os.replace(out / "state.tmp", out / name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--photos", type=Path, help="folder with coco-tiny and pets")
    parser.add_argument("--start-from", type=Path, help="checkpoint folder to begin with")
    parser.add_argument("--rate", type=float, default=1.0, help="of the planned learning rates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bfloat16", action="store_true", help="faster on CPUs that have it")
    parser.add_argument("--compile", action="store_true", help="faster steps after some minutes")
    for name, stage in STAGES.items():
        parser.add_argument(f"--{name}-steps", type=int, default=stage.steps)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if "WORLD_SIZE" in os.environ:
        distributed.init_process_group("gloo")
    stages = [
        Stage(**{**asdict(stage), "steps": getattr(options, f"{name}_steps")})
        for name, stage in STAGES.items()
    ]
    stages = [stage for stage in stages if stage.steps]
    run(
        options.out, stages, options.seed, options.photos, start_from=options.start_from,
        rate=options.rate, bfloat16=options.bfloat16, fuse=options.compile,
    )  # fmt: skip


if __name__ == "__main__":
    main()
