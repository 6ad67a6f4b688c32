"""Folders that transformers saves: loaded by the engine alone, they answer as transformers does."""

import copy
import os
from dataclasses import fields

import pytest

pytest.importorskip("transformers", reason="pip install 'vlmtasks[reference]' to compare with it")

import numpy as np
import torch
from tiny_checkpoints import checkpoint_config, tiny_picture, tiny_tokenizer
from transformers import PaliGemmaConfig as ReferenceConfig
from transformers import PaliGemmaForConditionalGeneration as Reference

from benchmarks import parity
from vlmtasks.engine import Engine
from vlmtasks.engine.config import PaliGemmaConfig
from vlmtasks.engine.random_weights import draw_weights
from vlmtasks.errors import CheckpointError

SEED = int(os.environ["VLMTASKS_PARITY_SEED"])
PROMPTS = ["detect cat ; dog", "caption en", "answer en how many cats sit on the mat?"]


def reference(model_type: str, *, tied: bool = True, **vision: int) -> Reference:
    settings = checkpoint_config(model_type).to_dict() | {"attn_implementation": "eager"}
    settings["tie_word_embeddings"] = tied
    settings["vision_config"] |= vision
    model = Reference(ReferenceConfig(**settings)).eval().requires_grad_(False)
    draw_weights(model, 3)  # fixed: with a fresh seed, two best logits may tie
    return model


def processor():
    return parity.reference_processor(tiny_tokenizer(), side=32, patch=8)


def tensors(processor, picture, prompt) -> dict[str, torch.Tensor]:
    """What the processor makes of one prompt."""
    made = processor(images=picture, text=[prompt])
    made.pop("labels")
    return {key: torch.from_numpy(np.array(value)) for key, value in made.items()}


def answers(model: Reference, processor, pictures, prompts) -> list[list[int]]:
    """transformers' greedy answers, without the ids that our engine never produces."""
    image_id = processor.tokenizer.image_token_id
    rows = model.config.text_config.vocab_size
    found = []
    for picture, prompt in zip(pictures, prompts, strict=True):
        inputs = tensors(processor, picture, prompt)
        out = model.generate(
            **inputs,
            max_new_tokens=30,
            do_sample=False,
            pad_token_id=0,
            suppress_tokens=list(range(image_id, rows)),
        )
        new = out[0, inputs["input_ids"].shape[1] :].tolist()
        found.append(new[: new.index(1)] if 1 in new else new)
    return found


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own head"])
@pytest.mark.parametrize("model_type", ["gemma", "gemma2"])
@pytest.mark.parametrize("shard", ["1GB", "200KB"], ids=["one file", "shards"])
def test_saved_folder_just_works(tmp_path, model_type, tied, shard):
    model = reference(model_type, tied=tied)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    processor().save_pretrained(tmp_path)
    pictures = [tiny_picture(seed, (30 + seed * 40, 60)) for seed in range(3)]
    expected = answers(model, processor(), pictures, PROMPTS)

    engine = Engine.load(tmp_path, device="cpu")
    generated = engine.generate(engine.encode_image(pictures), PROMPTS, max_new_tokens=30)

    assert (tmp_path / "model.safetensors.index.json").is_file() == (shard == "200KB")
    assert [list(answer.token_ids) for answer in generated] == expected
    texts = processor().tokenizer.batch_decode(expected, skip_special_tokens=True)
    assert [answer.text for answer in generated] == texts


@pytest.mark.parametrize("model_type", ["gemma", "gemma2"])
def test_logprobs_equal_transformers(tmp_path, model_type):
    model = reference(model_type)
    model.save_pretrained(tmp_path)
    processor().save_pretrained(tmp_path)
    picture = tiny_picture()
    engine = Engine.load(tmp_path, device="cpu")

    (answer,) = engine.generate(engine.encode_image([picture]), ["detect cat"], max_new_tokens=12)

    inputs = tensors(processor(), picture, "detect cat")
    ids = torch.cat([inputs["input_ids"][0], torch.tensor(answer.token_ids)])[None]
    types = torch.ones_like(ids)
    types[:, : inputs["input_ids"].shape[1]] = 0
    logits = model(
        input_ids=ids,
        token_type_ids=types,
        attention_mask=torch.ones_like(ids),
        pixel_values=inputs["pixel_values"],
    ).logits
    told = logits[0, -len(answer.token_ids) - 1 : -1].log_softmax(-1)
    expected = told.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    np.testing.assert_allclose(answer.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("resolution", [16, 40, 64, 8])
def test_other_resolution_equals_transformers(tmp_path, resolution):
    model = reference("gemma")
    model.save_pretrained(tmp_path)
    processor().save_pretrained(tmp_path)
    generator = torch.Generator().manual_seed(SEED)
    pixels = torch.rand(2, 3, resolution, resolution, generator=generator) * 2 - 1

    engine = Engine.load(tmp_path, device="cpu", resolution=resolution)

    tower = model.model.vision_tower
    features = tower(pixels, interpolate_pos_encoding=True).last_hidden_state
    expected = model.model.multi_modal_projector(features)
    assert parity.gap(engine.network.encode_image(pixels), expected) < 1e-4


def test_video_equals_transformers(tmp_path):
    """Several frames of one prompt: all image tokens come first."""
    model = reference("gemma2")
    model.save_pretrained(tmp_path)
    processor().save_pretrained(tmp_path)
    frames = [tiny_picture(seed) for seed in range(4)]
    expected = answers(model, processor(), [[frames]], ["caption en"])

    engine = Engine.load(tmp_path, device="cpu")
    encoded = engine.encode_image(frames)
    (answer,) = engine.generate([encoded], ["caption en"], max_new_tokens=30)

    assert list(answer.token_ids) == expected[0]


def test_half_precision_file_is_computed_in_float32(tmp_path):
    """As transformers with dtype="float32" on the same file."""
    reference("gemma").half().save_pretrained(tmp_path)
    processor().save_pretrained(tmp_path)
    model = Reference.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    picture = tiny_picture()

    engine = Engine.load(tmp_path, device="cpu")
    (answer,) = engine.generate(engine.encode_image([picture]), ["detect cat"], max_new_tokens=30)

    assert [list(answer.token_ids)] == answers(model.eval(), processor(), [picture], ["detect cat"])


# config.json


def settings_that_differ(data: dict) -> list[str]:
    """Fields that we read from a config.json otherwise than transformers does."""
    theirs = ReferenceConfig(**{k: v for k, v in copy.deepcopy(data).items() if k != "model_type"})
    ours = PaliGemmaConfig.from_dict(data)
    different = []
    for section in ("vision_config", "text_config"):
        their_part, our_part = getattr(theirs, section), getattr(ours, section)
        for field in fields(our_part):
            value = getattr(our_part, field.name)
            name = field.name
            if name == "hidden_act" and their_part.model_type == "gemma2":
                name = "hidden_activation"
            if name == "rope_theta":
                expected = their_part.rope_parameters["rope_theta"]
            else:
                expected = getattr(their_part, name, None)
            if value != expected:
                different.append(f"{section}.{field.name}: {value!r}, {expected!r}")
    return different


def saved_config(model_type: str) -> dict:
    return ReferenceConfig(**checkpoint_config(model_type).to_dict()).to_dict()


CHANGES = {
    "nothing": {},
    "gelu": {"text_config": {"hidden_act": "gelu"}},
    "gelu twice": {"text_config": {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}},
    "rope at the top": {"text_config": {"rope_parameters": None, "rope_theta": 500.0}},
    "rope": {"text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}},
    "no soft-caps": {
        "text_config": {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    },
    "other soft-caps": {
        "text_config": {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}
    },
    "window": {"text_config": {"sliding_window": 9}},
    "epsilon": {"text_config": {"rms_norm_eps": 1e-3}, "vision_config": {"layer_norm_eps": 1e-2}},
    "image token": {"image_token_index": 17},
}
GEMMA1_IGNORES = {"no soft-caps", "other soft-caps", "window"}


@pytest.mark.parametrize("model_type", ["gemma", "gemma2"])
@pytest.mark.parametrize("change", CHANGES)
def test_config_is_read_as_transformers_reads_it(model_type, change):
    data = saved_config(model_type)
    for key, value in CHANGES[change].items():
        data[key] = {**data[key], **value} if isinstance(value, dict) else value

    different = settings_that_differ(data)

    if model_type == "gemma" and change in GEMMA1_IGNORES:
        # Gemma 1 has no such thing: transformers keeps the key and never uses it
        used = [
            line
            for line in different
            if not line.startswith(("text_config.attn_", "text_config.sliding"))
        ]
        assert used == []
    else:
        assert different == []


@pytest.mark.parametrize("model_type", ["gemma", "gemma2"])
def test_a_key_left_out_means_the_same_or_is_refused(model_type):
    """Each key of each section in turn is deleted."""
    data = saved_config(model_type)
    data["text_config"].pop("layer_types", None)  # transformers then wants all layers to match
    refused, checked = set(), 0
    for section in (None, "vision_config", "text_config"):
        for key in data if section is None else data[section]:
            changed = copy.deepcopy(data)
            del (changed if section is None else changed[section])[key]
            try:
                PaliGemmaConfig.from_dict(changed)
            except CheckpointError:
                refused.add(key)
                continue
            if key == "model_type" and section == "text_config" and model_type == "gemma2":
                continue  # transformers then takes it for Gemma 1, and so do we
            assert settings_that_differ(changed) == [], key
            checked += 1
    assert checked > 30
    assert refused >= {"vocab_size", "hidden_size", "num_hidden_layers", "image_token_index"}


@pytest.mark.parametrize("index", range(6))
def test_our_config_survives_transformers(index):
    """to_dict → transformers → from_dict gives the same config."""
    config = parity.draw_case(SEED, index).config
    data = ReferenceConfig(**config.to_dict()).to_dict()
    assert PaliGemmaConfig.from_dict(data) == config
