"""Train the mask codec on generated masks: ``python -m vqvae.train --minutes 35 --out runs/vqvae``.

The networks first learn without the codebook; k-means over their vectors then makes the codebook,
which follows the vectors by moving averages while codes that fall out of use start anew elsewhere.
The learning rate follows the wall clock, so a run ends annealed after the minutes it was given.
"""

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vqvae.generate import random_masks
from vqvae.model import CODE_DIM, CODEBOOK_SIZE, MaskVQVAE
from vqvae.muon import Muon
from vqvae.silhouettes import emoji_silhouettes, glyph_silhouettes
from vqvae.weights import save_weights

COMMITMENT = 0.25
CODEBOOK_DECAY = 0.98
IOU_WEIGHT = 0.3
WARM_UP_SHARE = 0.02  # of the time: the learning rate rises
UNQUANTISED_SHARE = 0.05  # of the time: before the codebook exists
RESTART_SHARE = 0.8  # of the time: dead codes are restarted until then
RESTART_EVERY = 20  # steps
CHECKPOINT_SECONDS = 120
REPORT_EVERY = 10  # steps


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m vqvae.train", description=__doc__)
    parser.add_argument("--minutes", type=float, default=35, help="training time, pool excluded")
    parser.add_argument("--out", type=Path, default=Path("runs/vqvae"), help="folder of the run")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--pool", type=int, default=60000, help="number of masks to generate")
    parser.add_argument("--npm", type=Path, help="folder with @iconify-json tarballs [OUT/npm]")
    parser.add_argument("--no-emoji", action="store_true", help="glyphs and generated shapes only")
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    cv2.setNumThreads(1)
    torch.manual_seed(options.seed)
    pool = load_pool(options)
    trainer = Trainer(options.lr)
    checkpoint = options.out / "checkpoint.pt"
    if options.resume and checkpoint.is_file():
        trainer.load(checkpoint)
    trainer.fit(pool, options.minutes * 60, options.batch, options.out)
    # the values read back from this file are the codec's from then on
    save_weights(trainer.model, options.out / "weights.safetensors", torch.float16)


def load_pool(options: argparse.Namespace) -> np.ndarray:
    """(N, 64, 64) uint8 masks, generated once a run folder."""
    file = options.out / "pool.npy"
    if file.is_file():
        return np.load(file, allow_pickle=False, mmap_mode="r")
    rng = np.random.default_rng(options.seed)
    silhouettes = glyph_silhouettes()
    if not options.no_emoji:
        emoji = emoji_silhouettes(options.out / "emoji.npz", options.npm or options.out / "npm")
        glyphs = silhouettes[rng.permutation(len(silhouettes))[: len(emoji) // 8]]
        silhouettes = np.concatenate([emoji, glyphs])
    pool = random_masks(rng, options.pool, silhouettes)
    np.save(file, pool)
    return pool


def draw_batch(pool: np.ndarray, rng: np.random.Generator, size: int) -> Tensor:
    """(B, 1, 64, 64) of −1 … 1, half of them mirrored, some upside down or transposed."""
    masks = pool[np.sort(rng.integers(0, len(pool), size))]
    masks = np.where(rng.random((size, 1, 1)) < 0.5, masks[:, :, ::-1], masks)
    masks = np.where(rng.random((size, 1, 1)) < 0.15, masks[:, ::-1], masks)
    masks = np.where(rng.random((size, 1, 1)) < 0.15, masks.transpose(0, 2, 1), masks)
    return torch.from_numpy(masks.astype(np.float32) / 127.5 - 1)[:, None]


def reconstruction_loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error against −1 … 1, plus a soft 1 − IoU, which weighs thin masks up."""
    share, truth = torch.sigmoid(4 * output), target * 0.5 + 0.5
    both = torch.minimum(share, truth).sum((1, 2, 3))
    either = torch.maximum(share, truth).sum((1, 2, 3))
    return F.mse_loss(output, target) + IOU_WEIGHT * (1 - (both + 1) / (either + 1)).mean()


@dataclass
class CodebookAverages:
    """Moving sums per code, from which the codebook's rows are the means."""

    counts_K: Tensor
    sums_KD: Tensor

    @classmethod
    def of(cls, rows_KD: Tensor, counts_K: Tensor) -> "CodebookAverages":
        return cls(counts_K.clone(), rows_KD * counts_K[:, None])

    def update(self, vectors_ND: Tensor, codes_N: Tensor) -> Tensor:
        """Take in a batch; return the new rows (K, D)."""
        counts = torch.bincount(codes_N, minlength=CODEBOOK_SIZE).to(self.counts_K)
        sums = torch.zeros_like(self.sums_KD).index_add_(0, codes_N, vectors_ND)
        self.counts_K.lerp_(counts, 1 - CODEBOOK_DECAY)
        self.sums_KD.lerp_(sums, 1 - CODEBOOK_DECAY)
        return self.sums_KD / self.counts_K.clamp_min(1e-3)[:, None]

    def restart_dead(self, vectors_ND: Tensor) -> int:
        """Put codes of under a twentieth of the mean use onto random vectors; how many."""
        mean = self.counts_K.mean()
        dead = (self.counts_K < 0.05 * mean).nonzero()[:, 0]
        picks = torch.randperm(len(vectors_ND))[: len(dead)]
        dead = dead[: len(picks)]
        self.counts_K[dead] = 0.3 * mean
        self.sums_KD[dead] = vectors_ND[picks] * 0.3 * mean
        return len(dead)


def k_means(vectors_ND: Tensor, rounds: int = 15) -> tuple[Tensor, Tensor]:
    """Rows (K, D) and counts (K,) of Lloyd's iteration; empty clusters restart on a vector."""
    rows = vectors_ND[torch.randperm(len(vectors_ND))[:CODEBOOK_SIZE]].clone()
    counts = torch.ones(CODEBOOK_SIZE)
    for _ in range(rounds):
        nearest = torch.cdist(vectors_ND, rows).argmin(1)
        counts = torch.bincount(nearest, minlength=CODEBOOK_SIZE).float()
        sums = torch.zeros_like(rows).index_add_(0, nearest, vectors_ND)
        spare = vectors_ND[torch.randint(len(vectors_ND), (CODEBOOK_SIZE,))]
        rows = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], spare)
    return rows, counts.clamp_min(1)


class Trainer:
    """Model, optimisers and the averages of the codebook; saved and restored together."""

    def __init__(self, lr: float) -> None:
        self.model = MaskVQVAE().to(memory_format=torch.channels_last)  # pyright: ignore
        _initialise(self.model)
        self.lr = lr
        matrices = [p for p in self.model.parameters() if p.ndim == 4 and min(p.shape[:2]) >= 16]
        others = [p for p in self.model.parameters() if p.ndim != 4 or min(p.shape[:2]) < 16]
        self.optimizers = [
            Muon(matrices, lr),
            torch.optim.AdamW(others, lr, betas=(0.9, 0.99), weight_decay=0),
        ]
        self.averages: CodebookAverages | None = None
        self.steps = 0
        self.seconds = 0.0

    def fit(self, pool: np.ndarray, seconds: float, batch: int, out: Path) -> None:
        """Train until ``seconds`` of training time are used up in all."""
        rng = np.random.default_rng((self.steps, batch))
        next_save = self.seconds + CHECKPOINT_SECONDS
        while self.seconds < seconds:
            started = time.monotonic()
            progress = self.seconds / seconds
            if self.averages is None and progress >= UNQUANTISED_SHARE:
                self._make_codebook(pool, rng)
            report = self._step(draw_batch(pool, rng, batch), progress)
            self.seconds += time.monotonic() - started
            if self.steps % REPORT_EVERY == 0:
                print(f"{self.seconds:7.1f} s step {self.steps} {report}", flush=True)
            if self.seconds >= next_save:
                self.save(out)
                next_save = self.seconds + CHECKPOINT_SECONDS
        self.save(out)

    def _step(self, masks: Tensor, progress: float) -> str:
        lr = self.lr * min(1, progress / WARM_UP_SHARE) * (1 + math.cos(math.pi * progress)) / 2
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
        masks = masks.to(memory_format=torch.channels_last)
        vectors_BDhw = self.model.encoder(masks)
        quantised, commitment = self._quantise(vectors_BDhw, progress)
        output = self.model.decoder(quantised)
        loss = reconstruction_loss(output, masks) + COMMITMENT * commitment
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        self.steps += 1
        if self.steps % REPORT_EVERY:
            return ""
        iou = _mean_iou(output.detach() > 0, masks > 0)
        return (
            f"lr {lr:.2e} loss {loss.item():.4f} commitment {commitment.item():.4f} IoU {iou:.4f}"
        )

    def _quantise(self, vectors_BDhw: Tensor, progress: float) -> tuple[Tensor, Tensor]:
        """Straight-through codebook rows and the commitment loss; moves the codebook."""
        if self.averages is None:
            return vectors_BDhw, vectors_BDhw.new_zeros(())
        vectors_BhwD = vectors_BDhw.permute(0, 2, 3, 1)
        flat = vectors_BhwD.detach().reshape(-1, CODE_DIM)
        book = self.model._vq_vae
        codes = book.nearest(flat)
        rows = book._embedding[codes].view(vectors_BhwD.shape)
        commitment = F.mse_loss(vectors_BhwD, rows)
        through = vectors_BhwD + (rows - vectors_BhwD).detach()
        book._embedding = self.averages.update(flat, codes)
        if self.steps % RESTART_EVERY == 0 and progress < RESTART_SHARE:
            self.averages.restart_dead(flat)
        return through.permute(0, 3, 1, 2), commitment

    @torch.no_grad()
    def _make_codebook(self, pool: np.ndarray, rng: np.random.Generator) -> None:
        vectors = self.model.encoder(draw_batch(pool, rng, 1000)).permute(0, 2, 3, 1)
        rows, counts = k_means(vectors.reshape(-1, CODE_DIM))
        self.model._vq_vae._embedding = rows
        self.averages = CodebookAverages.of(rows, counts / counts.mean() * 8)

    def save(self, out: Path) -> None:
        averages = self.averages
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "averages": None if averages is None else (averages.counts_K, averages.sums_KD),
            "steps": self.steps,
            "seconds": self.seconds,
        }
        # a run that is killed while it writes keeps its former checkpoint
        torch.save(state, out / "checkpoint.new")
        (out / "checkpoint.new").replace(out / "checkpoint.pt")

    def load(self, file: Path) -> None:
        state = torch.load(file, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.averages = state["averages"] and CodebookAverages(*state["averages"])
        self.steps, self.seconds = state["steps"], state["seconds"]


@torch.no_grad()
def _initialise(model: MaskVQVAE) -> None:
    """He's normal weights: the library's default fades through fourteen layers without a norm."""
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.ConvTranspose2d):
            # with stride 2 a transposed 4×4 kernel reaches each output through 2×2 of its taps
            transposed = isinstance(layer, torch.nn.ConvTranspose2d)
            taps = 4 if transposed else math.prod(layer.kernel_size)
            gain = 2 if layer.out_channels > 1 else 1
            layer.weight.normal_(0, (gain / (layer.in_channels * taps)) ** 0.5)
            torch.nn.init.zeros_(cast(Tensor, layer.bias))
            if name.endswith("net.4"):
                layer.weight.mul_(0.3)  # residual blocks start near the identity


def _mean_iou(masks: Tensor, truth: Tensor) -> float:
    both = (masks & truth).sum((1, 2, 3))
    either = (masks | truth).sum((1, 2, 3))
    return (both / either.clamp_min(1)).mean().item()


if __name__ == "__main__":
    main()
