"""Training the codec: generated masks, the codebook's averages, Muon, a run of a few seconds."""

import numpy as np
import pytest
import torch

from vqvae import MaskCodec
from vqvae.generate import random_masks
from vqvae.muon import orthogonalise
from vqvae.train import CodebookAverages, Trainer, draw_batch, k_means, main, reconstruction_loss

NO_SILHOUETTES = np.zeros((0, 128, 128), np.uint8)


def test_generated_masks_fill_their_boxes_and_repeat_by_seed():
    masks = random_masks(np.random.default_rng(0), 40, NO_SILHOUETTES)
    again = random_masks(np.random.default_rng(0), 40, NO_SILHOUETTES)
    np.testing.assert_array_equal(masks, again)
    assert (masks.shape, masks.dtype) == ((40, 64, 64), np.uint8)
    shares = (masks > 127).mean((1, 2))
    assert shares.min() > 0.01 and 0.4 < np.median(shares) < 0.8
    assert len(np.unique(masks.reshape(40, -1), axis=0)) == 40


def test_silhouettes_take_part():
    ring = np.zeros((1, 128, 128), np.uint8)
    ring[0, 20:108, 20:108] = 255
    ring[0, 50:78, 50:78] = 0
    masks = random_masks(np.random.default_rng(0), 60, ring)
    without = random_masks(np.random.default_rng(0), 60, NO_SILHOUETTES)
    assert (masks != without).any()


def test_batches_keep_values_and_shape():
    pool = random_masks(np.random.default_rng(0), 8, NO_SILHOUETTES)
    batch = draw_batch(pool, np.random.default_rng(0), 5)
    assert (batch.shape, batch.dtype) == ((5, 1, 64, 64), torch.float32)
    assert batch.min() == -1 and batch.max() == 1


def test_loss_is_zero_only_for_the_truth():
    target = torch.full((2, 1, 64, 64), -1.0)
    target[:, :, 20:40] = 1
    assert reconstruction_loss(target * 1.0, target).item() < 0.05
    assert reconstruction_loss(-target, target).item() > 4


def test_k_means_finds_separate_clusters():
    torch.manual_seed(0)
    centers = torch.randn(16, 512) * 10
    vectors = centers.repeat(200, 1) + torch.randn(3200, 512) * 0.01
    rows, counts = k_means(vectors)
    assert torch.cdist(vectors, rows).min(1).values.max() < 1.5
    assert counts.min() >= 1


def test_averages_follow_the_vectors_and_dead_codes_restart():
    torch.manual_seed(0)
    averages = CodebookAverages.of(torch.zeros(128, 512), torch.ones(128))
    for _ in range(500):
        rows = averages.update(torch.full((128, 512), 3.0), torch.arange(128) % 64)
    torch.testing.assert_close(rows[:64], torch.full((64, 512), 3.0), atol=0.01, rtol=0)
    assert averages.restart_dead(torch.full((200, 512), 7.0)) == 64
    rows = averages.update(torch.zeros(0, 512), torch.zeros(0, dtype=torch.long))
    torch.testing.assert_close(rows[64:], torch.full((64, 512), 7.0))


@pytest.mark.parametrize("shape", [(16, 40), (40, 16), (32, 32)], ids=["wide", "tall", "square"])
def test_orthogonalised_singular_values_are_near_one(shape):
    torch.manual_seed(0)
    singular = torch.linalg.svdvals(orthogonalise(torch.randn(1, *shape)))
    assert 0.5 < singular.min() and singular.max() < 1.5


def test_a_few_seconds_train_save_and_resume(tmp_path):
    arguments = ["--out", str(tmp_path), "--no-emoji", "--pool", "48", "--batch", "8"]
    main([*arguments, "--minutes", "0.05"])
    first = Trainer(1e-3)
    first.load(tmp_path / "checkpoint.pt")
    assert first.steps > 0 and first.seconds >= 3
    assert MaskCodec.load(tmp_path / "weights.safetensors").decode([[0] * 16]).shape == (1, 64, 64)
    main([*arguments, "--minutes", str(first.seconds / 60 + 0.01), "--resume"])
    second = Trainer(1e-3)
    second.load(tmp_path / "checkpoint.pt")
    assert second.steps > first.steps
