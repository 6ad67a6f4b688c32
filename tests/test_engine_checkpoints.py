import json
import logging
import os
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiny_checkpoints import (
    LAYOUTS,
    in_layout,
    save_folder,
    save_shards,
    tiny_folder,
    tiny_network,
    tiny_picture,
    tiny_tokenizer,
)

from vlmtasks.engine import Engine
from vlmtasks.engine.key_names import PREFIXES, our_name, rename_all
from vlmtasks.engine.tensor_files import read_file
from vlmtasks.errors import CheckpointError, InputError, MissingFileError

FLOAT32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def load(folder, **options):
    return Engine.load(folder, **{"device": "cpu", **options})


def edit_json(path, **changes):
    data = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(data | changes))


def same_weights(engine, network):
    mine, theirs = engine.network.state_dict(), network.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


# Names of weights


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model_type", ["gemma", "gemma2"])
def test_names_are_a_bijection(layout, model_type):
    names = [*tiny_network(model_type).state_dict(), "lm_head.weight"]
    theirs = [in_layout(name, layout) for name in names]
    assert len(set(theirs)) == len(names)
    assert [our_name(key) for key in theirs] == names
    assert rename_all(theirs) == dict(zip(names, theirs, strict=True))


@pytest.mark.parametrize(
    "key",
    [
        "_orig_mod.model.language_model.norm.weight",
        "module.language_model.model.norm.weight",
        "module._orig_mod.language_model.norm.weight",
        "model.language_model._orig_mod.norm.weight",
    ],
)
def test_what_training_tools_wrap_around_modules_is_left_out(key):
    assert our_name(key) == "language_model.norm.weight"


def test_each_prefix_leads_to_one_name_and_none_hides_another():
    for ours, theirs in PREFIXES.items():
        assert len(set(theirs)) == len(theirs)
        for prefix in theirs:
            assert our_name(prefix + "x.weight") == ours + "x.weight"


def test_unknown_names_stay():
    assert our_name("something.else") == "something.else"


@pytest.mark.parametrize(
    "key",
    [
        "vision_tower.vision_model.embeddings.position_ids",
        "language_model.model.layers.0.self_attn.rotary_emb.inv_freq",
        "vision_tower.vision_model.head.probe",
        "model.vision_tower.head.mlp.fc1.weight",
    ],
)
def test_names_that_paligemma_never_uses_are_left_out(key):
    assert rename_all([key]) == {}


def test_two_names_of_one_weight():
    keys = ["language_model.model.norm.weight", "model.language_model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"both of which mean 'language_model.norm.weight'"):
        rename_all(keys)


# Files


@pytest.mark.parametrize("shards", [1, 3])
def test_shards_load_like_one_file(tmp_path, shards):
    network = tiny_network("gemma2")
    save_shards(save_folder(tmp_path, network), network.state_dict(), shards)
    assert same_weights(load(tmp_path), network)


def test_one_file_of_another_name_loads(tmp_path):
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert same_weights(load(folder), tiny_network())


def test_files_without_index_are_refused(tmp_path):
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"x": torch.zeros(1)}, folder / "b.safetensors")
    with pytest.raises(MissingFileError, match=r"2 safetensors files \(a.* but no model"):
        load(folder)


def test_empty_folder(tmp_path):
    with pytest.raises(MissingFileError, match=r"holds no config\.json"):
        load(tmp_path)


def test_no_weights(tmp_path):
    (tiny_folder(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(MissingFileError, match=r"holds no model\.safetensors, no model"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{}", "weight_map must be an object with entries"),
        ('{"weight_map": {}}', "weight_map must be"),
        ('{"weight_map": [1]}', "weight_map must be"),
        ('{"weight_map": {"a": 3}}', "3 is no file name"),
        ('{"weight_map": {"a": ""}}', "is no file name"),
        ('{"weight_map": {"a": "x\\u0000"}}', "is no file name"),
        (f'{{"weight_map": {{"a": "{"x" * 300}"}}}}', "cannot be opened: .*too long"),
        ('{"weight_map": {"a": "\\ud800"}}', "cannot be opened: .*surrogates"),
        (f'{{"weight_map": {"1" * 5000}}}', "is not valid JSON: Exceeds"),
        ('{"weight_map": {"a": "x", "a": "y"}}', r"more than once: \['a'\]"),
        ("[]", "must hold a JSON object, not list"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('"\udcff"', "is not valid JSON"),
    ],
    ids=lambda value: value[:20],
)
def test_damaged_index(tmp_path, index, message):
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_bytes(index.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def test_shard_that_does_not_hold_what_the_index_says(tmp_path):
    network = tiny_network()
    folder = save_folder(tmp_path, network)
    save_shards(folder, network.state_dict())
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["extra"] = "model-00001-of-00003.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"disagree: not in the shard \['extra'\]"):
        load(folder)


def write_raw(folder, header, data=b"", length=None):
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(content) if length is None else length
    (folder / "x.safetensors").write_bytes(struct.pack("<Q", length) + content + data)


TWICE = b'{"a": %(a)b, "a": %(a)b}' % {b"a": json.dumps(FLOAT32).encode()}


@pytest.mark.parametrize(
    ("header", "data", "length"),
    [
        ({"a": FLOAT32}, b"\0" * 4, None),
        ({"a": FLOAT32}, b"\0" * 80, None),
        ({"a": FLOAT32}, b"\0" * 8, 2**62),
        ({"a": FLOAT32}, b"\0" * 8, 2**64 - 1),
        ({"a": FLOAT32}, b"\0" * 8, 99_999_999),
        ({"a": FLOAT32 | {"shape": [2**40, 2**40]}}, b"\0" * 8, None),
        ({"a": FLOAT32 | {"dtype": "P1"}}, b"\0" * 8, None),
        ({"a": FLOAT32, "b": FLOAT32}, b"\0" * 8, None),
        (TWICE, b"\0" * 8, None),
        (b"\xff\xfe{}", b"", None),
        (b"[]", b"", None),
        (b"[" * 100_000, b"", None),
    ],
    ids=[
        "truncated",
        "too long",
        "length bomb",
        "largest length",
        "long header",
        "overflow",
        "dtype",
        "overlap",
        "name twice",
        "no UTF-8",
        "list",
        "deep",
    ],
)
def test_damaged_safetensors(tmp_path, header, data, length):
    write_raw(tmp_path, header, data, length)
    with pytest.raises(CheckpointError, match="safetensors"):
        read_file(tmp_path, "x.safetensors")


@given(st.binary(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_refused_politely(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError):
        read_file(tmp_path, "x.safetensors")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_links_out_of_the_folder_are_refused(tmp_path, name):
    folder = tiny_folder(tmp_path / "model")
    (folder / name).rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", folder / name)
    with pytest.raises(CheckpointError, match=r"a link to .*elsewhere outside"):
        load(folder)


def test_links_of_a_hub_cache_are_fine(tmp_path):
    folder = tiny_folder(tmp_path / "models--a--b" / "snapshots" / "c0ffee")
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    for path in list(folder.iterdir()):
        path.rename(blobs / path.name)
        os.symlink(f"../../blobs/{path.name}", path)
    assert same_weights(load(folder), tiny_network())


def test_a_linked_folder_is_fine(tmp_path):
    os.symlink(tiny_folder(tmp_path / "model"), tmp_path / "link")
    assert same_weights(load(tmp_path / "link"), tiny_network())


# Weights and config


@pytest.mark.parametrize("tie", [True, False])
def test_head_of_its_own(tmp_path, tie):
    network = tiny_network()
    folder = save_folder(tmp_path, network)
    head = torch.randn_like(network.language_model.embed_tokens.weight)
    save_file({**network.state_dict(), "lm_head.weight": head}, folder / "model.safetensors")
    edit_json(folder / "config.json", tie_word_embeddings=tie)

    engine = load(folder)

    hidden = torch.randn(1, 128)
    torch.testing.assert_close(engine.network.logits(hidden), hidden @ head.T)


@pytest.mark.parametrize("tie", [True, False])
def test_head_that_is_the_embedding_is_kept_once(tmp_path, tie):
    network = tiny_network()
    folder = save_folder(tmp_path, network)
    head = network.language_model.embed_tokens.weight.clone()
    save_file({**network.state_dict(), "lm_head.weight": head}, folder / "model.safetensors")
    edit_json(folder / "config.json", tie_word_embeddings=tie)
    assert load(folder).network.lm_head is None


def test_head_without_embedding_is_the_embedding(tmp_path):
    network = tiny_network()
    folder = save_folder(tmp_path, network)
    state = network.state_dict()
    state["language_model.lm_head.weight"] = state.pop("language_model.embed_tokens.weight")
    save_file(state, folder / "model.safetensors")
    assert same_weights(load(folder), network)


def test_untied_head_must_be_there(tmp_path):
    edit_json(tiny_folder(tmp_path) / "config.json", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"1 missing:\n  lm_head\.weight"):
        load(tmp_path)


def test_one_error_lists_everything(tmp_path):
    network = tiny_network()
    folder = save_folder(tmp_path, network)
    state = network.state_dict()
    del state["language_model.norm.weight"]
    state["some.adapter"] = torch.zeros(1)
    state["multi_modal_projector.linear.bias"] = torch.zeros(7)
    state["vision_tower.post_layernorm.bias"] = torch.zeros(64, dtype=torch.int8)
    save_file(state, folder / "model.safetensors")

    with pytest.raises(CheckpointError) as caught:
        load(folder)

    for line in (
        "1 missing:\n  language_model.norm.weight",
        "1 unexpected:\n  some.adapter",
        "1 misshapen:\n  multi_modal_projector.linear.bias is (7,), the config says (128,)",
        "1 not floating point:\n  vision_tower.post_layernorm.bias is torch.int8",
        "Likely cause: the weights are quantised",
    ):
        assert line in str(caught.value)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda s: {f"x.{k}": v for k, v in s.items()}, "this is no PaliGemma"),
        (lambda s: s | {"a.lora_A.weight": torch.zeros(1)}, "LoRA adapter; load the base"),
        (lambda s: s | {"a.qweight": torch.zeros(1)}, "the weights are quantised"),
        (
            lambda s: {k: v.to(torch.float8_e4m3fn) for k, v in s.items()},
            "the weights are quantised",
        ),
        (
            lambda s: s | {"x": torch.zeros(1), "language_model.norm.weight": torch.zeros(3)},
            "belong to different models",
        ),
        (lambda s: {k: v for k, v in s.items() if ".1." not in k}, "too many layers"),
        (
            lambda s: s | {k.replace(".1.", ".2."): v.clone() for k, v in s.items() if ".1." in k},
            "too few layers",
        ),
        (
            lambda s: (
                s | {"vision_tower.embeddings.position_embedding.weight": torch.zeros(64, 64)}
            ),
            "correct vision_config.image_size",
        ),
    ],
    ids=[
        "other names",
        "lora",
        "quantised",
        "float8",
        "several",
        "layers missing",
        "layers left over",
        "resolution",
    ],
)
def test_likely_cause(tmp_path, change, cause):
    network = tiny_network()
    folder = save_folder(tmp_path, network)
    save_file(change(network.state_dict()), folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=cause):
        load(folder)


def test_long_lists_are_cut(tmp_path):
    folder = save_folder(tmp_path, tiny_network())
    save_file({}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"… and \d+ more") as caught:
        load(folder)
    assert len(str(caught.value).splitlines()) < 30


# Numbers


@pytest.mark.parametrize(
    ("stored", "asked", "expected"),
    [
        ("float32", "auto", "float32"),
        ("bfloat16", "auto", "bfloat16"),
        ("float16", "auto", "float32"),
        ("float64", "auto", "float32"),
        ("bfloat16", "float32", "float32"),
        ("float32", "bfloat16", "bfloat16"),
        ("float32", torch.bfloat16, "bfloat16"),
    ],
)
def test_dtypes(tmp_path, stored, asked, expected):
    network = tiny_network().to(getattr(torch, stored))
    engine = load(save_folder(tmp_path, network), dtype=asked)
    assert {str(p.dtype) for p in engine.network.parameters()} == {f"torch.{expected}"}


def test_mixed_dtypes_follow_the_majority(tmp_path):
    network = tiny_network().to(torch.bfloat16)
    folder = save_folder(tmp_path, network)
    state = network.state_dict()
    state = {k: v.float() if "norm" in k else v for k, v in state.items()}
    save_file(state, folder / "model.safetensors")

    engine = load(folder)

    assert engine.dtype == torch.bfloat16
    assert same_weights(engine, network)


@pytest.mark.parametrize("dtype", ["int8", "float64", "fp16", torch.int8, None])
def test_dtypes_that_are_refused(tmp_path, dtype):
    with pytest.raises(InputError, match='is not supported; allowed: "auto", "float32"'):
        load(tmp_path, dtype=dtype)


@pytest.mark.parametrize("device", ["tpu:0", "gpu", "cuda:99", 3.5, "meta"])
def test_devices_that_are_refused(tmp_path, device):
    with pytest.raises(InputError, match=r'cannot be used .* allowed are "auto", "cpu"'):
        load(tmp_path, device=device)


@pytest.mark.parametrize("quantize", ["int4", "nf4", True, ""])
def test_quantization_that_is_refused(tmp_path, quantize):
    with pytest.raises(InputError, match="is not supported; allowed: None"):
        load(tmp_path, quantize=quantize)


# Another resolution


def test_resolution_resizes_the_model(tmp_path):
    engine = load(tiny_folder(tmp_path), resolution=48)
    (image,) = engine.encode_image([tiny_picture()])
    assert image.tokens.shape == (36, 128)
    (answer,) = engine.generate([image], ["detect cat"], max_new_tokens=3)
    assert len(answer.token_ids) <= 3


def test_own_resolution_changes_nothing(tmp_path):
    assert same_weights(load(tiny_folder(tmp_path), resolution=32), tiny_network())


def test_constant_positions_stay_constant(tmp_path):
    network = tiny_network()
    network.vision_tower.embeddings.position_embedding.weight[:] = torch.arange(64.0)
    table = load(save_folder(tmp_path, network), resolution=56)
    weight = table.network.vision_tower.embeddings.position_embedding.weight
    torch.testing.assert_close(weight, torch.arange(64.0).expand(49, 64))


@pytest.mark.parametrize("resolution", [0, -32, 33, 32.0, "64", True, 184, 10**12])
def test_resolutions_that_are_refused(tmp_path, resolution):
    with pytest.raises(InputError, match="resolution"):
        load(tiny_folder(tmp_path), resolution=resolution)


def test_a_resolution_that_fits_is_told(tmp_path):
    with pytest.raises(InputError, match=r"patch size 8; the nearest that fits is 40$"):
        load(tiny_folder(tmp_path), resolution=37)


# What stands beside the weights


def test_tokenizer_of_another_checkpoint(tmp_path):
    edit_json(tiny_folder(tmp_path) / "config.json", image_token_index=5)
    image_id = tiny_tokenizer().token_to_id("<image>")
    with pytest.raises(
        CheckpointError, match=f"<image> is {image_id} in .* image_token_index is 5"
    ):
        load(tmp_path)


def test_tokenizer_larger_than_the_table(tmp_path):
    folder = tiny_folder(tmp_path)
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"<extra{index}>" for index in range(8)])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(CheckpointError, match=r"has ids up to .* but the embedding table has only"):
        load(folder)


@pytest.mark.parametrize("value", [107, [1, 107], [107]])
def test_stop_ids_of_generation_config(tmp_path, value):
    folder = tiny_folder(tmp_path)
    edit_json(folder / "generation_config.json", eos_token_id=value)
    assert load(folder).checkpoint.stop_ids == {1, 107}


@pytest.mark.parametrize("value", ["1", [1, "x"], -1, [True], 1.0])
def test_stop_ids_that_are_refused(tmp_path, value):
    folder = tiny_folder(tmp_path)
    edit_json(folder / "generation_config.json", eos_token_id=value)
    with pytest.raises(CheckpointError, match="eos_token_id must be ids"):
        load(folder)


def test_sampling_settings_are_reported(tmp_path, caplog):
    folder = tiny_folder(tmp_path)
    edit_json(folder / "generation_config.json", do_sample=True)
    with caplog.at_level(logging.INFO):
        load(folder)
    assert "sampling settings of generation_config.json are ignored" in caplog.text


@pytest.mark.parametrize("nested", [False, True])
def test_pixel_settings_are_read(tmp_path, nested):
    folder = tiny_folder(tmp_path)
    settings = {"image_mean": [0.1, 0.2, 0.3], "size": {"height": 32, "width": 32}}
    if nested:
        edit_json(folder / "processor_config.json", image_processor=settings)
    else:
        edit_json(folder / "preprocessor_config.json", **settings)
    assert load(folder).checkpoint.pixel_config.image_mean == (0.1, 0.2, 0.3)


def test_metadata_is_passed_on(tmp_path):
    folder = tiny_folder(tmp_path)
    assert load(folder).metadata == {}
    edit_json(folder / "vlmtasks.json", box_scale=1024, calibration={"a": 1})
    assert load(folder).metadata == {"box_scale": 1024, "calibration": {"a": 1}}
    assert load(folder).folder == folder


@pytest.mark.parametrize("name", ["vlmtasks", "config", "generation_config", "preprocessor_config"])
@pytest.mark.parametrize("content", ["[]", "{", '{"a": 1, "a": 2}', "null"])
def test_damaged_json(tmp_path, name, content):
    folder = tiny_folder(tmp_path)
    (folder / f"{name}.json").write_text(content)
    with pytest.raises(CheckpointError, match=f"{name}.json"):
        load(folder)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/does/not/exist", "neither a folder nor a name on the hub"),
        ("a b/c", "neither a folder"),
        ("", "is a path or a name"),
        (None, "is a path or a name"),
        (3, "is a path or a name"),
        ("~nobody-of-this-name/x", "cannot be opened: Could not determine home"),
        ("x" * 5000, "cannot be opened: .*too long"),
        ("a\0b", "neither a folder"),
        ("\ud800", "neither a folder"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_sources_that_are_refused(source, message):
    with pytest.raises(ValueError, match=message):
        load(source)


def test_a_file_of_the_folder_is_no_source(tmp_path):
    with pytest.raises(CheckpointError, match="is a file; pass the folder it is in"):
        load(tiny_folder(tmp_path) / "model.safetensors")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_links_in_a_circle_are_refused(tmp_path, name):
    folder = tiny_folder(tmp_path)
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    with pytest.raises(CheckpointError, match=f"'{name}' cannot be opened: Symlink loop"):
        load(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_folders_are_no_files(tmp_path, name):
    folder = tiny_folder(tmp_path)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(MissingFileError, match=name.replace(".", r"\.")):
        load(folder)


def test_byte_order_mark_does_no_harm(tmp_path):
    folder = tiny_folder(tmp_path)
    for name in ("config.json", "vlmtasks.json"):
        path = folder / name
        path.write_bytes(b"\xef\xbb\xbf" + (path.read_bytes() if path.exists() else b"{}"))
    assert load(folder).metadata == {}
