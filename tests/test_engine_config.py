import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmtasks.engine.config import GemmaConfig, PaliGemmaConfig, SiglipVisionConfig, tiny_config
from vlmtasks.errors import CheckpointError

VISION = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "model_type": "siglip_vision_model",
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "num_image_tokens": 256,
    "patch_size": 14,
    "projection_dim": 2048,
    "projector_hidden_act": "gelu_fast",
    "vision_use_head": False,
}
RELEASED = {
    "PaliGemma 3B, 224": (
        {
            "model_type": "paligemma",
            "image_token_index": 257152,
            "hidden_size": 2048,
            "text_config": {
                "hidden_size": 2048,
                "intermediate_size": 16384,
                "model_type": "gemma",
                "num_attention_heads": 8,
                "num_hidden_layers": 18,
                "num_key_value_heads": 1,
                "torch_dtype": "float32",
                "vocab_size": 257216,
            },
            "vision_config": VISION,
        },
        PaliGemmaConfig(SiglipVisionConfig(), GemmaConfig()),
    ),
    "PaliGemma 2 28B, 448": (
        {
            "model_type": "paligemma",
            "image_token_index": 257152,
            "text_config": {
                "hidden_size": 4608,
                "intermediate_size": 36864,
                "model_type": "gemma2",
                "num_attention_heads": 32,
                "num_hidden_layers": 46,
                "num_key_value_heads": 16,
                "head_dim": 128,
                "query_pre_attn_scalar": 144,
                "vocab_size": 257216,
            },
            "vision_config": {**VISION, "image_size": 448},
        },
        PaliGemmaConfig(
            SiglipVisionConfig(image_size=448),
            GemmaConfig(
                model_type="gemma2",
                hidden_size=4608,
                intermediate_size=36864,
                num_hidden_layers=46,
                num_attention_heads=32,
                num_key_value_heads=16,
                head_dim=128,
                query_pre_attn_scalar=144,
                attn_logit_softcapping=50.0,
                final_logit_softcapping=30.0,
                sliding_window=4096,
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", RELEASED)
def test_released_configs(name):
    data, expected = RELEASED[name]
    assert PaliGemmaConfig.from_dict(data) == expected


@pytest.mark.parametrize("model_type", ["gemma", "gemma2"])
def test_dict_comes_back(model_type):
    config = replace(tiny_config(model_type), tie_word_embeddings=False)
    data = json.loads(json.dumps(config.to_dict()))
    assert PaliGemmaConfig.from_dict(data) == config


def test_off_switches_come_back():
    config = tiny_config("gemma2")
    text = replace(config.text_config, attn_logit_softcapping=None, final_logit_softcapping=None)
    config = replace(config, text_config=replace(text, sliding_window=None))
    assert PaliGemmaConfig.from_dict(config.to_dict()) == config


def test_derived_values():
    assert SiglipVisionConfig(image_size=896).num_image_tokens == 4096
    assert SiglipVisionConfig(image_size=230).num_image_tokens == 256
    assert GemmaConfig().query_scale == 1 / 16
    assert GemmaConfig(query_pre_attn_scalar=144).query_scale == pytest.approx(1 / 12)
    sliding = GemmaConfig(model_type="gemma2", sliding_window=5)
    assert [sliding.slides(layer) for layer in range(4)] == [True, False, True, False]


def changed(section=None, **values):
    data = tiny_config("gemma2").to_dict()
    target = data if section is None else data[section]
    for key, value in values.items():
        if value is ...:
            del target[key]
        else:
            target[key] = value
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "must hold an object, not list"),
        (changed(model_type="blip-2"), "model_type is 'blip-2'; this engine runs 'paligemma'"),
        (changed(model_type=...), "model_type is None"),
        (changed(text_config=...), "text_config must be an object"),
        (changed(vision_config=3), "vision_config must be an object, not 3"),
        (changed(image_token_index=...), "lacks image_token_index"),
        (changed(image_token_index=1000), "1000 is outside the embedding table"),
        (changed(image_token_index=-1), "-1 is outside"),
        (changed(image_token_index="x"), "image_token_index must be int, not 'x'"),
        (changed("text_config", model_type="llama"), "'llama'; supported are 'gemma'"),
        (changed("text_config", hidden_size=..., vocab_size=...), "lacks vocab_size, hidden_size"),
        (changed("text_config", num_hidden_layers=0), "num_hidden_layers must be a positive"),
        (changed("text_config", num_hidden_layers=10**9), "up to 1000, not"),
        (changed("text_config", hidden_size=10**18), "up to 1000000, not"),
        (changed("text_config", vocab_size=10**30), "up to 1000000000, not"),
        (changed("text_config", query_pre_attn_scalar=10**400), "must be a positive number"),
        (changed("text_config", rope_theta=10**400), "rope_theta must be a positive number"),
        (changed("vision_config", image_size=10**12), "image_size must be a positive number"),
        (changed("vision_config", num_channels=4), "num_channels is 4; pictures are RGB"),
        (changed("text_config", num_hidden_layers=2.0), "must be int, not 2.0"),
        (changed("text_config", num_hidden_layers=True), "must be int, not True"),
        (changed("text_config", num_key_value_heads=3), "no multiple of num_key_value_heads 3"),
        (changed("text_config", head_dim=7), "head_dim 7 must be even"),
        (changed("text_config", rms_norm_eps=float("nan")), "must be a positive number"),
        (changed("text_config", hidden_activation="relu"), "'relu'; supported are"),
        (changed("text_config", attention_bias=True), "attention_bias is true"),
        (changed("text_config", rope_parameters={"rope_type": "yarn"}), "only default RoPE"),
        (changed("text_config", rope_scaling={"type": "linear"}), "only default RoPE"),
        (changed("text_config", rope_parameters=3), "rope_parameters must be an object"),
        (changed("text_config", layer_types=["full_attention"] * 2), "must alternate"),
        (changed("text_config", layer_types=["sliding_attention"]), "must alternate"),
        (changed("text_config", layer_types="x"), "must alternate"),
        (changed("vision_config", num_attention_heads=5), "no multiple of num_attention_heads 5"),
        (changed("vision_config", num_channels=1), "num_channels is 1; pictures are RGB"),
        (changed("vision_config", patch_size=64), "smaller than patch_size 64"),
        (changed("vision_config", hidden_act="silu"), "'silu'; supported are"),
        (changed("vision_config", layer_norm_eps="1e-6"), "must be int or float, not '1e-6'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_configs_that_are_refused(data, message):
    with pytest.raises(CheckpointError, match=message):
        PaliGemmaConfig.from_dict(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.data())
def test_any_value_is_taken_or_refused_politely(data):
    """One key of a good config gets any JSON value at all."""
    config = tiny_config(data.draw(st.sampled_from(["gemma", "gemma2"]))).to_dict()
    section = data.draw(st.sampled_from([config, config["text_config"], config["vision_config"]]))
    section[data.draw(st.sampled_from(sorted(section)))] = data.draw(JSON)
    try:
        assert isinstance(PaliGemmaConfig.from_dict(config), PaliGemmaConfig)
    except CheckpointError as error:
        assert str(error)
