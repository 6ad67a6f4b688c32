import json
import math

import pytest
import torch
from safetensors.torch import save_file
from tiny_checkpoints import in_layout, tiny_folder, tiny_network

from vlmtasks.engine import Engine
from vlmtasks.engine.locate import locate
from vlmtasks.errors import CheckpointError, InputError, MissingFileError

Q = "language_model.layers.0.self_attn.q_proj"
DOWN = "language_model.layers.1.mlp.down_proj"
LINEAR = "multi_modal_projector.linear"
TOWER = "vision_tower.encoder.layers.1.mlp.fc1"
RANK = 3


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("base") / "model", "gemma2")


WEIGHTS = tiny_network("gemma2").state_dict()


def matrices(modules, layout="5.24 saves", rank=RANK):
    """A and B of each module, under the names that peft gives them in a file of this layout."""
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for module in modules:
        rows, columns = WEIGHTS[module + ".weight"].shape
        name = in_layout(module + ".weight", layout).removesuffix(".weight")
        a = torch.randn(rank, columns, generator=generator)
        b = torch.randn(rows, rank, generator=generator)
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
    return tensors


def save_adapter(folder, tensors, **config):
    folder.mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "base_model_name_or_path": "org/x"}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def expected(tensors, scale, module=Q):
    a, b = (next(t for k, t in tensors.items() if f"lora_{x}" in k) for x in "AB")
    return WEIGHTS[module + ".weight"] + scale * (b @ a)


def weight(engine, module=Q):
    return engine.network.state_dict()[module + ".weight"]


@pytest.mark.parametrize("layout", ["until 4.51", "from 4.52", "from 4.52, flat tower", "ours"])
def test_adapter_of_every_layout(tmp_path, base, layout):
    tensors = matrices([Q, DOWN, LINEAR, TOWER], layout)
    engine = Engine.load(base, adapter=save_adapter(tmp_path, tensors))

    torch.testing.assert_close(weight(engine), expected(tensors, 2.0))
    changed = {n for n, t in engine.network.state_dict().items() if not torch.equal(t, WEIGHTS[n])}
    assert changed == {f"{module}.weight" for module in (Q, DOWN, LINEAR, TOWER)}


def test_merged_weight_answers_as_the_adapter_beside_the_weight(tmp_path, base):
    tensors = matrices([Q])
    a, b = tensors.values()
    x = torch.randn(4, 128)
    engine = Engine.load(base, adapter=save_adapter(tmp_path, tensors))
    beside = x @ WEIGHTS[Q + ".weight"].T + 2.0 * (x @ a.T) @ b.T
    torch.testing.assert_close(x @ weight(engine).T, beside, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"lora_alpha": 6}, 2.0),
        ({"lora_alpha": 1.5}, 0.5),
        ({"use_rslora": True}, 6 / math.sqrt(RANK)),
        ({"alpha_pattern": {"q_proj": 12}}, 4.0),
        ({"alpha_pattern": {"k_proj": 12, r"layers\.0\.self_attn\.q_proj": 9}}, 3.0),
        ({"alpha_pattern": {"k_proj": 12}}, 2.0),
        ({"r": 99, "rank_pattern": {"q_proj": RANK}}, 2.0),
    ],
    ids=["alpha", "fraction", "rslora", "pattern", "regex", "other pattern", "rank of the matrix"],
)
def test_scale(tmp_path, base, config, scale):
    tensors = matrices([Q])
    engine = Engine.load(base, adapter=save_adapter(tmp_path, tensors, **config))
    torch.testing.assert_close(weight(engine), expected(tensors, scale))


def test_name_of_the_adapter_in_the_keys(tmp_path, base):
    tensors = matrices([Q])
    named = {k.replace("lora_A.", "lora_A.default."): v for k, v in tensors.items()}
    named = {k.replace("lora_B.", "lora_B.default."): v for k, v in named.items()}
    engine = Engine.load(base, adapter=save_adapter(tmp_path, named))
    torch.testing.assert_close(weight(engine), expected(tensors, 2.0))


@pytest.mark.parametrize("wrapper", ["", ".base_layer"])
def test_whole_weights_replace_those_of_the_base(tmp_path, base, wrapper):
    bias = torch.ones(128)
    tensors = {**matrices([Q]), f"base_model.model.{LINEAR}{wrapper}.bias": bias}
    engine = Engine.load(base, adapter=save_adapter(tmp_path, tensors))
    assert torch.equal(engine.network.multi_modal_projector.linear.bias, bias)


def test_trained_head_is_no_longer_tied(tmp_path, base):
    head = torch.randn_like(WEIGHTS["language_model.embed_tokens.weight"])
    tensors = {**matrices([Q]), "base_model.model.lm_head.weight": head}
    engine = Engine.load(base, adapter=save_adapter(tmp_path, tensors))
    assert torch.equal(engine.network.lm_head.weight, head)
    assert torch.equal(
        weight(engine, "language_model.embed_tokens"), WEIGHTS["language_model.embed_tokens.weight"]
    )


def test_dtype_of_the_base_stays(tmp_path, base):
    engine = Engine.load(base, adapter=save_adapter(tmp_path, matrices([Q])), dtype="bfloat16")
    assert {p.dtype for p in engine.network.parameters()} == {torch.bfloat16}


OTHER_SHAPE = {
    key: tensor[:, :5].contiguous() if "lora_A" in key else tensor
    for key, tensor in matrices([Q]).items()
}
LAYER = "language_model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    "tensors",
    [
        {LAYER.replace("0", "7") + ".lora_A.weight": torch.zeros(3, 128)},
        {"score.weight": torch.zeros(1)},
        {LAYER + ".lora_magnitude_vector": torch.zeros(1)},
        {"language_model.model.embed_tokens.lora_embedding_A": torch.zeros(1)},
        {LAYER + ".lora_A.weight": torch.zeros(3, 128)},
        OTHER_SHAPE,
    ],
    ids=["no such layer", "no such module", "dora", "embedding", "A without B", "other base"],
)
def test_w13_keys_without_a_place_are_an_error(tmp_path, base, tensors):
    tensors = {
        "base_model.model." + k.removeprefix("base_model.model."): tensors[k] for k in tensors
    }
    save_adapter(tmp_path, {**matrices([DOWN]), **tensors})
    with pytest.raises(CheckpointError, match=r"keys of the adapter have no place .* 'org/x'"):
        Engine.load(base, adapter=tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'; only LORA"),
        ({"use_dora": True}, "use_dora is not supported"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is not supported"),
        ({"lora_bias": True}, "lora_bias is not supported"),
        ({"layer_replication": [[0, 1]]}, "layer_replication is not supported"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
        ({"lora_alpha": "16"}, "lora_alpha must be a number"),
        ({"alpha_pattern": []}, None),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern must hold numbers"),
        ({"lora_alpha": 10**400}, "lora_alpha must be a number"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a number"),
        ({"alpha_pattern": {"(": 1}}, "is no regular expression"),
        ({"alpha_pattern": {r"(\w+\.?)+x": 1}}, "too intricate"),
        ({"alpha_pattern": {".*" * 20 + "x": 1}}, "too intricate"),
        ({"base_model_name_or_path": 3}, "base_model_name_or_path must be a string"),
    ],
    ids=str,
)
def test_settings_that_are_refused(tmp_path, base, config, message):
    save_adapter(tmp_path, matrices([Q]), **config)
    if message is None:
        Engine.load(base, adapter=tmp_path)
        return
    with pytest.raises(CheckpointError, match=message):
        Engine.load(base, adapter=tmp_path)


def test_pickled_adapter_is_not_opened(tmp_path, base):
    save_adapter(tmp_path, matrices([Q]))
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(MissingFileError, match=r"only as adapter_model\.bin"):
        Engine.load(base, adapter=tmp_path)


def test_folder_without_adapter(tmp_path, base):
    with pytest.raises(CheckpointError, match=r"holds no adapter_config\.json; pass the folder"):
        Engine.load(base, adapter=base)
    (tmp_path / "adapter_config.json").write_text('{"lora_alpha": 1}')
    with pytest.raises(MissingFileError, match=r"holds no adapter_model\.safetensors"):
        Engine.load(base, adapter=tmp_path)


@pytest.mark.parametrize("way", ["absolute", "inside", "beside"])
def test_adapter_alone_finds_its_base_on_this_machine(tmp_path, base, way):
    name = {"absolute": str(base), "inside": "model", "beside": "somebody/model"}[way]
    adapter = save_adapter(tmp_path / "adapter", matrices([Q]), base_model_name_or_path=name)
    if way == "inside":
        (adapter / "model").symlink_to(base)
    if way == "beside":
        (tmp_path / "model").symlink_to(base)

    found, extra = locate(adapter)

    assert found.resolve() == base.resolve()
    assert extra == adapter
    torch.testing.assert_close(weight(Engine.load(adapter)), expected(matrices([Q]), 2.0))


def test_adapter_alone_without_its_base(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    adapter = save_adapter(tmp_path / "adapter", matrices([Q]))
    with pytest.raises(MissingFileError, match=r"is a LoRA adapter, not a model, .* base 'org/x'"):
        locate(adapter)


def test_two_adapters(tmp_path):
    adapter = save_adapter(tmp_path, matrices([Q]))
    with pytest.raises(InputError, match="is an adapter itself; pass its base"):
        Engine.load(adapter, adapter=adapter)
