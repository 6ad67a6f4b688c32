"""What the demo's training teaches, and that a run can stop and go on."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from vlmtasks.demo.batches import BatchMaker, crop_to_bins, mix_codes, shift_box
from vlmtasks.demo.dense import (
    LOC_CHOICES,
    DenseTargets,
    assign_patches,
    counts_and_ranks,
    keep_patches,
    snap_loc,
    spread_cross_entropy,
)
from vlmtasks.demo.evaluate import classes_named
from vlmtasks.demo.network import build_model, start_pointing, whiten_patches
from vlmtasks.demo.objectives import END_WORTH, packed_loss, prefix_loss
from vlmtasks.demo.vocabulary import DemoVocabulary, PromptIds


@pytest.fixture(scope="module")
def vocabulary() -> DemoVocabulary:
    return DemoVocabulary.build()


@pytest.fixture(scope="module")
def model(vocabulary):
    return build_model(vocabulary.size, vocabulary.loc_start, seed=3)


def test_taught_bins_are_every_eighth_and_the_last():
    assert LOC_CHOICES[:3].tolist() == [0, 8, 16]
    assert LOC_CHOICES[-2:].tolist() == [1016, 1023]
    assert LOC_CHOICES[snap_loc(np.array([0, 3, 5, 1019, 1023]))].tolist() == [0, 0, 8, 1016, 1023]


def test_patches_belong_to_the_object_that_covers_them_most():
    masks = np.zeros((2, 224, 224), bool)
    masks[0, 0:32, 0:32] = True  # patches 0, 1, 14, 15
    masks[1, 0:16, 32:48] = True  # patch 2
    masks[1, 16:17, 32:48] = True  # one row of patch 16: too little to ask about
    patch_object, centers = assign_patches(masks)
    assert patch_object[[0, 1, 14, 15]].tolist() == [0, 0, 0, 0]
    assert patch_object[[2, 16, 50]].tolist() == [1, -100, -1]
    assert centers[0] in (0, 1, 14, 15)
    assert centers[1] == 2


def test_no_objects_leave_all_patches_background():
    patch_object, centers = assign_patches(np.zeros((0, 224, 224), bool))
    assert (patch_object == -1).all()
    assert centers.shape == (0,)


def test_counts_and_ranks_are_those_of_the_class():
    counts, ranks = counts_and_ranks(np.array([4, 7, 4, 4]), np.array([90.0, 10.0, 20.0, 50.0]))
    assert counts.tolist() == [3, 1, 3, 3]
    assert ranks.tolist() == [2, 0, 0, 1]


def test_kept_patches_hold_all_objects_and_their_centers():
    patch_object = np.full(100, -1)
    patch_object[40:50] = 0
    target = DenseTargets(
        patch_object, np.zeros((100, 64), np.uint8),
        np.array([45]), np.array([3]), np.array([-100]), np.zeros((1, 4), int),
        np.zeros((1, 16), int), np.zeros((1, 16, 16), np.float32), np.full((100, 2), -1),
        np.full((100, 2), -1), np.ones(1, int), np.zeros(1, int),
    )  # fmt: skip
    kept, [left] = keep_patches([target], 20, np.random.default_rng(0))
    assert kept.shape == (1, 20)
    assert set(range(40, 50)) <= set(kept[0].tolist())
    assert (left.patch_object == 0).sum() == 10
    assert kept[0][left.centers[0]] == 45


def test_spread_labels_prefer_the_neighbour_to_the_stranger():
    wanted = torch.tensor([10])
    near, far = torch.zeros(1, 129), torch.zeros(1, 129)
    near[0, 11], far[0, 60] = 9.0, 9.0
    assert spread_cross_entropy(near, wanted, 1.0) < spread_cross_entropy(far, wanted, 1.0)
    exact = torch.zeros(1, 129)
    exact[0, 10] = 30.0
    assert spread_cross_entropy(exact, wanted, 0.0) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("loc_yxyx", "expected"),
    [
        pytest.param((0, 0, 512, 512), 1.0, id="inside"),
        pytest.param((0, 0, 1023, 1023), 0.25, id="quarter"),
        pytest.param((512, 512, 1023, 1023), 0.0, id="outside"),
    ],
)
def test_cropped_masks_hold_the_share_of_the_box(loc_yxyx, expected):
    mask = np.zeros((224, 224), bool)
    mask[:112, :112] = True
    crop = crop_to_bins(mask, np.array(loc_yxyx))
    assert crop.shape == (64, 64)
    assert crop.mean() == pytest.approx(expected, abs=0.02)


def test_whitened_patches_have_unit_variance_and_no_correlation(vocabulary):
    rng = np.random.default_rng(0)
    smooth = np.cumsum(rng.normal(size=(30, 224, 224, 3)), axis=2)
    pictures = np.clip(smooth * 3 + 128, 0, 255).astype(np.uint8)
    model = build_model(vocabulary.size, vocabulary.loc_start, seed=0)
    whiten_patches(model, pictures)
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1.0
    with torch.no_grad():
        patches = model.vision_tower.embeddings.patch_embedding(pixels)
    features = patches[:, 32:].permute(0, 2, 3, 1).flatten(0, 2)
    covariance = torch.cov(features.T)
    assert covariance.diagonal()[:40].mean() == pytest.approx(1.0, abs=0.1)
    assert (covariance - covariance.diag().diag()).abs().max() < 0.1


def test_packed_prompts_do_not_see_each_other(model, vocabulary):
    image_tokens = torch.randn(1, 100, 256, generator=torch.Generator().manual_seed(0))
    first = PromptIds((2, 100, vocabulary.newline), (200, 1), "a")
    second = PromptIds((2, 101, 102, vocabulary.newline), (201, 202, 1), "b")
    with torch.no_grad():
        both = packed_loss(model, image_tokens, [[first, second]], vocabulary, 0.0)["text"]
        alone = [
            packed_loss(model, image_tokens, [[prompt]], vocabulary, 0.0)["text"]
            for prompt in (first, second)
        ]
    assert both.item() == pytest.approx((alone[0].item() * 2 + alone[1].item() * 3) / 5, abs=1e-5)


def test_packed_prompts_go_through_the_layers_as_in_use(model, vocabulary):
    """What packed_layer leaves out is what nobody reads."""

    def whole(layer, x, cos, sin, mask, is_last):
        L = mask.shape[2]
        S = x.shape[1] - L
        everything = torch.zeros(len(mask), 1, S + L, S + L, dtype=torch.bool)
        everything[:, :, :S, :S] = True
        everything[:, :, S:] = mask
        return layer(x, cos, sin, everything, None, None)

    image_tokens = torch.randn(1, 100, 256, generator=torch.Generator().manual_seed(0))
    row = [
        PromptIds((2, 100, vocabulary.newline), (200, 1), "a", ((3, 4), ())),
        PromptIds((2, 101, 102, vocabulary.newline), (201, 202, 1), "b"),
    ]
    with torch.no_grad():
        expected = packed_loss(model, image_tokens, [row], vocabulary, 0.0, whole)
        given = packed_loss(model, image_tokens, [row], vocabulary, 0.0)
    assert given.keys() == expected.keys()
    for name, value in given.items():
        assert value.item() == pytest.approx(expected[name].item(), abs=1e-5)


def test_the_official_loss_is_that_of_the_network(model, vocabulary):
    """The loss equals the cross-entropy of PaliGemma.forward under its own mask."""
    image_tokens = torch.randn(1, 100, 256, generator=torch.Generator().manual_seed(0))
    prompt = PromptIds((2, 100, vocabulary.newline), (200, 1), "a")
    image = model.config.image_token_index
    ids = torch.tensor([[image] * 100 + [*prompt.prefix, *prompt.suffix]])
    is_prefix = torch.arange(105)[None] < 103
    with torch.no_grad():
        logits = model(ids, is_prefix, torch.ones_like(is_prefix), [image_tokens[0]])
        wanted = torch.nn.functional.cross_entropy(logits[0, 102:104], torch.tensor([200, 1]))
        given = prefix_loss(model, image_tokens, [[prompt]], vocabulary, 0.0)["text"]
    assert given.item() == pytest.approx(wanted.item(), abs=1e-5)


def test_the_end_of_boxes_counts_less_than_the_end_of_words(model, vocabulary):
    image_tokens = torch.randn(1, 100, 256, generator=torch.Generator().manual_seed(0))

    def loss(task: str) -> float:
        prompt = PromptIds((2, 100, vocabulary.newline), (200, 1), task)
        with torch.no_grad():
            return packed_loss(model, image_tokens, [[prompt]], vocabulary, 0.0)["text"].item()

    prompt = PromptIds((2, 100, vocabulary.newline), (200,), "presence")
    with torch.no_grad():
        word = packed_loss(model, image_tokens, [[prompt]], vocabulary, 0.0)["text"].item()
    end = 2 * loss("presence") - word
    expected = (word + END_WORTH * end) / (1 + END_WORTH)
    assert loss("detect") == pytest.approx(expected, abs=1e-4)


def test_what_is_fed_may_differ_from_what_is_wanted(model, vocabulary):
    image_tokens = torch.randn(1, 100, 256, generator=torch.Generator().manual_seed(0))
    prefix = (2, 100, vocabulary.newline)
    prompt = PromptIds(prefix, (200, 250, 1), "a", given=(201, 250, 1))
    image = model.config.image_token_index
    ids = torch.tensor([[image] * 100 + [*prefix, 201, 250, 1]])
    is_prefix = torch.arange(106)[None] < 103
    with torch.no_grad():
        logits = model(ids, is_prefix, torch.ones_like(is_prefix), [image_tokens[0]])
        wanted = torch.nn.functional.cross_entropy(logits[0, 102:105], torch.tensor([200, 250, 1]))
        given = prefix_loss(model, image_tokens, [[prompt]], vocabulary, 0.0)["text"]
    assert given.item() == pytest.approx(wanted.item(), abs=1e-5)


def test_shifted_boxes_keep_near_and_upright():
    rng = np.random.default_rng(0)
    box = np.array([20, 30, 60, 90])
    moved = np.stack([shift_box(rng, box) for _ in range(500)])
    assert (moved[:, 2:] > moved[:, :2]).all()
    assert np.abs((moved - box).mean(0)).max() < 0.6
    assert (moved - box).std(0) == pytest.approx([2.4, 3.6, 2.4, 3.6], abs=0.3)
    assert (shift_box(rng, np.array([0, 0, 1, 1])) == [0, 0, 1, 1]).all()


def test_fed_codes_are_partly_those_of_other_masks():
    codes = np.arange(4000)[:, None].repeat(16, 1)  # every mask has codes of its own
    fed = mix_codes(np.random.default_rng(0), codes)
    strange = fed != codes
    assert strange.mean() == pytest.approx(0.45, abs=0.03)
    assert strange.mean(1).min() == 0.0
    assert strange.mean(1).max() > 0.8
    assert all(len(set(row[other])) <= 1 for row, other in zip(fed, strange, strict=True))
    assert mix_codes(np.random.default_rng(0), np.zeros((0, 16), int)).shape == (0, 16)


@pytest.mark.usefixtures("drawings")
def test_masks_are_taught_within_the_box_that_is_fed(vocabulary):
    batch = BatchMaker(vocabulary, None).make(seed=0, number=0, batch_size=6, prompts=8)
    segments = [
        p for row in batch.prompts for p in row if p.task == "segment" and len(p.suffix) > 1
    ]
    assert segments
    for prompt in segments:
        assert len(prompt.given) == len(prompt.suffix)
        differs = [a != b for a, b in zip(prompt.given, prompt.suffix, strict=True)]
        may = [
            0 <= t - vocabulary.loc_start < 1024 or 0 <= t - vocabulary.seg_start < 128
            for t in prompt.suffix
        ]
        assert not any(d and not m for d, m in zip(differs, may, strict=True))
    assert any(prompt.given != prompt.suffix for prompt in segments)
    boxes = [p for row in batch.prompts for p in row if p.task == "detect"]
    assert all(prompt.given == prompt.suffix for prompt in boxes)


def test_image_tokens_start_without_looking_at_prompts(vocabulary):
    """So the full prefix mask gives what the packed prompts were trained with."""
    model = build_model(vocabulary.size, vocabulary.loc_start, seed=1)
    pictures = np.random.default_rng(0).integers(0, 256, (8, 224, 224, 3), dtype=np.uint8)
    center = torch.randn(256, generator=torch.Generator().manual_seed(0))
    start_pointing(model, center, vocabulary.class_ids, vocabulary.class_of, pictures)
    prompts = [[PromptIds((2, 100 + n, vocabulary.newline), (200, 300, 1), "a")] for n in range(8)]
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1.0
    with torch.no_grad():
        image_tokens = model.encode_image(pixels)
        packed, official = (
            loss(model, image_tokens, prompts, vocabulary, 0.0)["text"]
            for loss in (packed_loss, prefix_loss)
        )
    assert official.item() == pytest.approx(packed.item(), abs=0.01)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a cat, two dogs and text", {"cat", "dog"}),
        ("three buses", {"bus"}),
        ("nothing", set()),
        ("a catalog", set()),
    ],
)
def test_classes_named_in_a_caption(caption, expected):
    assert classes_named(caption) == expected


@pytest.mark.usefixtures("drawings")
def test_a_stopped_run_goes_on_as_if_it_had_not(tmp_path, monkeypatch):
    from dataclasses import replace

    from vlmtasks.demo import train

    stage = replace(train.STAGES["tower"], steps=4, batch_size=2)

    def weights(folder) -> dict:
        return torch.load(folder / "state.pt", weights_only=True)["model"]

    monkeypatch.setattr(train, "WHITENING_PICTURES", 8)
    train.run(tmp_path / "whole", [stage], seed=5, photos=None)
    stopping = train.Trainer.train_step

    def stop_at_two(self, batch, stage):
        if self.step == 2:
            train.save(self, tmp_path / "parts", stage)
            raise KeyboardInterrupt
        return stopping(self, batch, stage)

    monkeypatch.setattr(train.Trainer, "train_step", stop_at_two)
    with pytest.raises(KeyboardInterrupt):
        train.run(tmp_path / "parts", [stage], seed=5, photos=None)
    monkeypatch.setattr(train.Trainer, "train_step", stopping)
    train.run(tmp_path / "parts", [stage], seed=5, photos=None)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    log = (tmp_path / "parts" / "log.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["step"] == 4


@pytest.mark.usefixtures("drawings")
def test_a_run_can_start_from_a_checkpoint(tmp_path, monkeypatch):
    from dataclasses import replace

    from vlmtasks.api import BUNDLED
    from vlmtasks.demo import train
    from vlmtasks.engine import Engine

    monkeypatch.setattr(train, "WHITENING_PICTURES", 8)
    still = replace(train.STAGES["tower"], steps=1, batch_size=2, matrix_lr=0.0, other_lr=0.0)
    train.run(tmp_path, [still], seed=5, photos=None, start_from=BUNDLED["demo"])
    weights = torch.load(tmp_path / "state.pt", weights_only=True)["model"]
    bundled = Engine.load(BUNDLED["demo"]).network.state_dict()
    assert all(torch.equal(weights[name], bundled[name]) for name in weights)


def test_a_run_can_start_from_a_checkpoint_for_smaller_pictures(tmp_path, vocabulary):
    """The positions are enlarged, all else is taken as it is."""
    from vlmtasks.api import BUNDLED
    from vlmtasks.demo.train import Trainer
    from vlmtasks.engine import Engine

    shutil.copytree(BUNDLED["demo"], tmp_path / "small")
    tensors = load_file(tmp_path / "small" / "model.safetensors")
    positions = "vision_tower.vision_model.embeddings.position_embedding.weight"
    [name] = [name for name in tensors if name.endswith(positions.split("vision_model.")[1])]
    tensors[name] = tensors[name].unflatten(0, (14, 14))[:7, :7].flatten(0, 1).contiguous()
    save_file(tensors, tmp_path / "small" / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    config["vision_config"] |= {"image_size": 112, "num_image_tokens": 49}
    (tmp_path / "small" / "config.json").write_text(json.dumps(config))
    weights = Trainer(vocabulary, 0, start_from=tmp_path / "small").model.state_dict()
    bundled = Engine.load(BUNDLED["demo"]).network.state_dict()
    [changed] = [name for name in weights if not torch.equal(weights[name], bundled[name])]
    assert changed.endswith("position_embedding.weight")
    assert weights[changed].shape == (196, 256)
    corners = weights[changed].unflatten(0, (14, 14))[::13, ::13]
    known = tensors[name].float().unflatten(0, (7, 7))[::6, ::6]
    assert torch.nn.functional.cosine_similarity(corners, known, dim=-1).min() > 0.95
