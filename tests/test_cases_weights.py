"""The reported problems of loading weights (W…)."""

import json
import pickle
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from tiny_checkpoints import (
    LAYOUTS,
    checkpoint_config,
    in_layout,
    save_folder,
    save_shards,
    tiny_folder,
    tiny_network,
    tiny_picture,
)

from vlmtasks.engine import Engine
from vlmtasks.engine.lora import merged
from vlmtasks.errors import CheckpointError, MissingFileError, NumericsError


def rewrite(folder, tensors):
    save_file(tensors, folder / "model.safetensors")


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_w01_tied_head(tmp_path):
    engine = Engine.load(tiny_folder(tmp_path), device="cpu")

    assert "lm_head.weight" not in engine.network.state_dict()
    hidden = torch.randn(1, 128)
    expected = hidden @ engine.network.language_model.embed_tokens.weight.T
    torch.testing.assert_close(engine.network.logits(hidden), expected)


@pytest.mark.parametrize("key", ["language_model.norm.weight", "vision_tower.post_layernorm.bias"])
def test_w01_any_other_missing_key_is_named(tmp_path, key):
    folder = tiny_folder(tmp_path)
    state = tiny_network().state_dict()
    del state[key]
    rewrite(folder, state)

    with pytest.raises(CheckpointError, match=rf"(?s)1 missing:\n  {key}.*file is incomplete"):
        Engine.load(folder)


@pytest.mark.parametrize("model_type", ["gemma", "gemma2"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_w03_every_layout_gives_the_same_parameters(tmp_path, layout, model_type):
    network = tiny_network(model_type)
    folder = save_folder(tmp_path, network)
    rewrite(folder, {in_layout(name, layout): t for name, t in network.state_dict().items()})

    loaded = Engine.load(folder, device="cpu").network.state_dict()

    assert loaded.keys() == network.state_dict().keys()
    assert all(torch.equal(loaded[name], t) for name, t in network.state_dict().items())


def test_w05_missing_shard_is_named_before_anything_is_read(tmp_path):
    folder = tiny_folder(tmp_path)
    save_shards(folder, tiny_network().state_dict(), 2)
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"not even a header")
    (folder / "model-00002-of-00002.safetensors").unlink()

    with pytest.raises(MissingFileError, match=r"lacks 1 of 2 .*: model-00002-of-00002\.safetens"):
        Engine.load(folder)


@pytest.mark.parametrize(
    "name",
    ["../evil.safetensors", "/etc/passwd", "a/../../evil.safetensors", "..\\evil.safetensors"],
)
def test_w07_path_traversal(tmp_path, name):
    folder = tiny_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "evil.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))

    with pytest.raises(ValueError, match="leads out of the checkpoint folder") as caught:
        Engine.load(folder)
    assert repr(name) in str(caught.value)


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt"])
def test_w09_pickles_are_never_opened(tmp_path, name):
    folder = tiny_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(_Bomb(tmp_path / "pwned")))

    with pytest.raises(CheckpointError, match=f"only as {name}.*convert them to safetensors"):
        Engine.load(folder)
    assert not (tmp_path / "pwned").exists()


def test_w10_version_2_weights_in_a_version_1_config(tmp_path):
    folder = save_folder(tmp_path, tiny_network("gemma"))
    rewrite(folder, tiny_network("gemma2").state_dict())

    with pytest.raises(CheckpointError, match="PaliGemma 2 weights in a PaliGemma 1") as caught:
        Engine.load(folder)
    assert "language_model.layers.0.pre_feedforward_layernorm.weight" in str(caught.value)


def test_w10_version_1_weights_in_a_version_2_config(tmp_path):
    folder = save_folder(tmp_path, tiny_network("gemma2"))
    rewrite(folder, tiny_network("gemma").state_dict())

    with pytest.raises(CheckpointError, match="PaliGemma 1 weights in a PaliGemma 2"):
        Engine.load(folder)


def test_w13_formula():
    weight = merged(
        torch.zeros(2, 2), torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]), 2 / 1
    )
    assert weight.tolist() == [[6, 12], [8, 16]]


def test_w13_adapter_given_as_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text(
        json.dumps(
            {"base_model_name_or_path": "nobody/here", "peft_type": "LORA", "lora_alpha": 8, "r": 4}
        )
    )
    save_file({"x": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")

    with pytest.raises(CheckpointError, match=r"is a LoRA adapter.*'nobody/here'.*adapter="):
        Engine.load(tmp_path)


def test_w16_rows_come_from_the_text_config(tmp_path):
    """The number at the top of released files is that of the model's vocabulary without padding."""
    folder = tiny_folder(tmp_path)
    config = checkpoint_config()
    edit_config(folder, vocab_size=config.image_token_index)

    engine = Engine.load(folder, device="cpu")

    rows = engine.network.language_model.embed_tokens.weight.shape[0]
    assert rows == config.text_config.vocab_size == config.image_token_index + 8


def test_w16_image_token_outside_the_table(tmp_path):
    folder = tiny_folder(tmp_path)
    rows = checkpoint_config().text_config.vocab_size
    edit_config(folder, image_token_index=rows)

    with pytest.raises(
        CheckpointError, match=f"image_token_index {rows} is outside .* {rows} rows"
    ):
        Engine.load(folder)


def test_w16_table_of_another_size(tmp_path):
    network = tiny_network()
    folder = save_folder(tmp_path, network)
    state = network.state_dict()
    state["language_model.embed_tokens.weight"] = torch.zeros(1000, 128)
    rewrite(folder, state)

    with pytest.raises(
        CheckpointError, match=r"(?s)is \(1000, 128\), the config says .*vocab_size"
    ):
        Engine.load(folder)


def test_w16_rows_without_a_token_are_never_produced(tmp_path):
    """Padding rows and <image> get the largest logits, and are not chosen."""
    network = tiny_network()
    image_id = network.config.image_token_index
    weight = network.language_model.embed_tokens.weight
    network.lm_head = torch.nn.Linear(128, len(weight), bias=False)
    network.lm_head.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    network.lm_head.weight[image_id:] *= 1000
    network.config = replace(network.config, tie_word_embeddings=False)
    engine = Engine.load(save_folder(tmp_path, network), device="cpu")
    images = engine.encode_image([tiny_picture()])

    for options in ({}, {"temperature": 5.0, "seed": 1}, {"num_beams": 3}):
        (answer,) = engine.generate(images, ["detect cat"], max_new_tokens=20, **options)
        assert max(answer.token_ids, default=0) < image_id
    assert engine.tokenizer.decode(range(image_id, len(weight))) == ""


# --- invented later ------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [0, 2], ids=["index-alone", "with-its-shards"])
def test_index_left_beside_a_single_file_is_not_looked_at(tmp_path, shards):
    """As transformers, or the weights of an earlier run would be loaded without a word."""
    folder = tiny_folder(tmp_path)
    new = (folder / "model.safetensors").read_bytes()
    if shards:
        save_shards(folder, tiny_network(seed=5).state_dict(), shards)
    else:
        index = {"weight_map": {"x": "model-00001-of-00002.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").write_bytes(new)

    loaded = Engine.load(folder, device="cpu").network.state_dict()

    assert all(torch.equal(loaded[name], t) for name, t in tiny_network().state_dict().items())


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 99\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_git_lfs_pointers_are_called_so(tmp_path, name):
    folder = tiny_folder(tmp_path)
    (folder / name).write_bytes(LFS)
    with pytest.raises(CheckpointError, match=f"{name}.*run `git lfs pull`"):
        Engine.load(folder)


def test_folder_of_checkpoints_names_them(tmp_path):
    for step in (500, 1000):
        tiny_folder(tmp_path / f"checkpoint-{step}")
    with pytest.raises(MissingFileError, match="folders checkpoint-1000, checkpoint-500 do: pass"):
        Engine.load(tmp_path)


def test_weights_that_are_nan_name_the_stage(tmp_path):
    network = tiny_network()
    network.multi_modal_projector.linear.weight.fill_(float("nan"))
    engine = Engine.load(save_folder(tmp_path, network), device="cpu")
    with pytest.raises(NumericsError, match=r"NaN or infinity \(vision tower and projector"):
        engine.encode_image([tiny_picture()])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("https://huggingface.co/google/paligemma-3b-mix-224", '"organisation/name"'),
        ("google/paligemma-3b-mix-224/", "neither a folder"),
        ("./no-such-folder", "neither a folder"),
        ("model.gguf", "neither a folder"),
    ],
)
def test_sources_that_are_none(source, words):
    with pytest.raises(CheckpointError, match=words):
        Engine.load(source)


def test_html_page_in_place_of_the_config(tmp_path):
    folder = tiny_folder(tmp_path)
    (folder / "config.json").write_text("<!DOCTYPE html><html>404</html>")
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON"):
        Engine.load(folder)


def test_one_foreign_tensor_is_named(tmp_path):
    folder = tiny_folder(tmp_path)
    rewrite(folder, tiny_network().state_dict() | {"optimizer.step": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"1 unexpected:\n  optimizer\.step"):
        Engine.load(folder)


# --- LoRA folders that are not quite what W13 has ------------------------------------------------

QUERY = "model.language_model.layers.0.self_attn.q_proj"  # (256, 128) in the tiny network


def save_adapter(folder, tensors=None, **config):
    folder.mkdir(parents=True, exist_ok=True)
    written = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(written | config))
    if tensors is None:
        tensors = {"lora_A.weight": torch.ones(2, 128), "lora_B.weight": torch.ones(256, 2)}
    named = {f"base_model.model.{QUERY}.{key}": tensor for key, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        pytest.param(
            {"lora_A.weight": torch.ones(0, 128), "lora_B.weight": torch.ones(256, 0)},
            r"q_proj\.lora_A \(0, 128\)",
            id="rank-0",
        ),
        pytest.param(
            {
                "lora_A.english.weight": torch.ones(2, 128),
                "lora_B.english.weight": torch.ones(256, 2),
                "lora_A.german.weight": torch.ones(2, 128),
                "lora_B.german.weight": torch.ones(256, 2),
            },
            "several adapters: english, german",
            id="two-adapters-in-a-file",
        ),
        pytest.param(
            {
                "lora_A.weight": torch.ones(2, 128, dtype=torch.int8),
                "lora_B.weight": torch.ones(256, 2),
            },
            r"q_proj\.lora_A is torch\.int8",
            id="quantised",
        ),
    ],
)
def test_adapters_with_unusable_weights(tmp_path, tensors, words):
    base = tiny_folder(tmp_path / "base")
    with pytest.raises(CheckpointError, match=words):
        Engine.load(base, adapter=save_adapter(tmp_path / "lora", tensors))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        pytest.param({"init_lora_weights": "pissa"}, "convert it to plain LoRA", id="pissa"),
        pytest.param({"init_lora_weights": "pissa_niter_4"}, "plain LoRA", id="fast-pissa"),
        pytest.param({"init_lora_weights": "olora"}, "plain LoRA", id="olora"),
        pytest.param({"init_lora_weights": "corda"}, "plain LoRA", id="corda"),
        pytest.param({"init_lora_weights": "loftq"}, "plain LoRA", id="loftq"),
        pytest.param({"alora_invocation_tokens": [5, 6]}, "alora_invocation", id="activated"),
        pytest.param({"use_qalora": True}, "use_qalora is not supported", id="qalora"),
    ],
)
def test_adapters_that_plain_merging_would_get_wrong(tmp_path, config, words):
    """PiSSA and its like take a part out of the base's weights first: W + BA counts it twice."""
    base = tiny_folder(tmp_path / "base")
    with pytest.raises(CheckpointError, match=words):
        Engine.load(base, adapter=save_adapter(tmp_path / "lora", **config))


@pytest.mark.parametrize("start", [True, False, "gaussian", "eva", "orthogonal"])
def test_adapters_that_only_started_elsewhere(tmp_path, start):
    base = tiny_folder(tmp_path / "base")
    Engine.load(base, adapter=save_adapter(tmp_path / "lora", init_lora_weights=start))


def query_weight(engine):
    return engine.network.language_model.layers[0].self_attn.q_proj.weight


def test_config_of_the_base_beside_an_adapter(tmp_path):
    """Training scripts copy config.json into the folder; it is an adapter all the same."""
    base = tiny_folder(tmp_path / "base")
    lora = save_adapter(tmp_path / "lora", base_model_name_or_path=str(base))
    (lora / "config.json").write_bytes((base / "config.json").read_bytes())
    expected = query_weight(Engine.load(base, device="cpu")) + 4
    for engine in (
        Engine.load(base, adapter=lora, device="cpu"),
        Engine.load(lora, device="cpu"),
    ):
        torch.testing.assert_close(query_weight(engine), expected)


def test_folder_that_is_a_model_and_an_adapter(tmp_path):
    """Whether the weights are merged already nobody can see, so the user has to say it."""
    folder = tiny_folder(tmp_path / "both")
    plain = query_weight(Engine.load(folder, device="cpu"))
    save_adapter(folder)
    with pytest.raises(CheckpointError, match=r"a whole model and a LoRA adapter.*adapter="):
        Engine.load(folder)
    merged_weight = query_weight(Engine.load(folder, adapter=folder, device="cpu"))
    torch.testing.assert_close(merged_weight, plain + 4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"\0" * 100, "was it copied completely", id="zeros"),
        pytest.param(b"\x05\0\0", "was it copied completely", id="three-bytes"),
    ],
)
def test_interrupted_downloads_are_called_so(tmp_path, content, words):
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors.*{words}"):
        Engine.load(folder)
