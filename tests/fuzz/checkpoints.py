"""Checkpoint folders: index, safetensors, config, tokenizer, vlmtasks.json, adapters, archives."""

import io
import json
import zipfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from tests.big_vision_reference import draw_arrays
from tests.fuzz.cases import Target
from tests.fuzz.mutations import clear, json_bytes, mutate_bytes, mutate_json, put
from tests.tiny_checkpoints import (
    checkpoint_config,
    tiny_folder,
    tiny_picture,
    tiny_tokenizer_json,
)
from vlmtasks.api import VLM
from vlmtasks.engine import Engine
from vlmtasks.engine.big_vision import read_npz
from vlmtasks.engine.checkpoints import read_metadata
from vlmtasks.engine.tensor_files import read_tensors
from vlmtasks.engine.tokenizer import Tokenizer
from vlmtasks.sidecar import Sidecar, load_codec
from vqvae import MaskCodec

_CPU = torch.device("cpu")


# --- safetensors ---------------------------------------------------------------------------------

_SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
_DTYPES = (
    "F32", "F16", "BF16", "F64", "I64", "I8", "U8", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "C64",
    "U16", "U64", "X", "",
)  # fmt: skip


@cache
def _tensors() -> list[dict[str, torch.Tensor]]:
    return [
        {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)},
        {"c": torch.zeros(0, 3), "d": torch.arange(5), "e": torch.tensor(True)},
    ]


def _shard(random: Random, tensors: dict[str, torch.Tensor]) -> bytes:
    data = save(tensors)
    length = int.from_bytes(data[:8], "little")
    header, content = json.loads(data[8 : 8 + length]), data[8 + length :]
    choice = random.random()
    if choice < 0.3:
        return data
    if choice < 0.6:
        header = mutate_json(random, header)
    elif choice < 0.75 and header:
        name = random.choice(list(header))
        header[name] = {**header[name], "dtype": random.choice(_DTYPES)}
    else:
        return mutate_bytes(random, data)
    text = json_bytes(random, header)
    size = random.choice((len(text),) * 6 + (0, 1, len(text) + 9, 2**31, 2**63, 2**64 - 1))
    return size.to_bytes(8, "little") + text + content


def make_weights(random: Random) -> tuple[Any, ...]:
    weight_map = {
        key: name for name, tensors in zip(_SHARDS, _tensors(), strict=True) for key in tensors
    }
    index: Any = {"metadata": {"total_size": 9}, "weight_map": weight_map}
    if random.random() < 0.5:
        index = mutate_json(random, index)
    shards = [_shard(random, tensors) for tensors in _tensors()]
    return json_bytes(random, index), shards, random.random() < 0.4, random


def feed_weights(value: tuple[Any, ...], folder: Path) -> None:
    index, shards, single, random = value
    folder = folder / "weights"
    clear(folder)
    folder.mkdir()
    if single:
        put(random, folder / random.choice(("model.safetensors", "x.safetensors")), shards[0])
        if random.random() < 0.2:
            put(random, folder / random.choice(("pytorch_model.bin", "y.safetensors")), shards[1])
    else:
        put(random, folder / "model.safetensors.index.json", index)
        for name, shard in zip(_SHARDS, shards, strict=True):
            put(random, folder / name, shard)
    for tensor in read_tensors(folder).values():
        tensor.clone()  # touches every byte


# --- the JSON files ------------------------------------------------------------------------------

_ADAPTER = {
    "peft_type": "LORA",
    "base_model_name_or_path": "model",
    "revision": None,
    "lora_alpha": 8,
    "r": 2,
    "alpha_pattern": {"q_proj": 4, "layers.(0|1).mlp.up_proj": 3},
    "target_modules": ["q_proj"],
    "use_rslora": False,
}
_SETTINGS: dict[str, Any] = {
    "generation_config.json": {"eos_token_id": [1, 5], "do_sample": True, "max_length": 3},
    "preprocessor_config.json": {
        "do_resize": True,
        "size": {"height": 32, "width": 32},
        "resample": 3,
        "rescale_factor": 1 / 255,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    "processor_config.json": {"image_processor": {"size": {"height": 32, "width": 32}}},
    "vlmtasks.json": {
        "box_scale": 1024,
        "calibration": {"detect": {"loc": {"temperature": 0.6, "bias": 2.1}}},
    },
}


@cache
def _config(model_type: str) -> dict[str, Any]:
    return json.loads(json.dumps(checkpoint_config(model_type).to_dict()))


@cache
def _adapter_weights() -> bytes:
    root = "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_"
    return save({f"{root}A.weight": torch.ones(2, 128), f"{root}B.weight": torch.ones(256, 2)})


def make_config(random: Random) -> dict[str, Any]:
    files: dict[str, Any] = {"config.json": _config(random.choice(("gemma", "gemma2")))}
    for name, content in _SETTINGS.items():
        if random.random() < 0.2:
            files[name] = mutate_json(random, content)
    if len(files) == 1 or random.random() < 0.3:
        files["config.json"] = mutate_json(random, files["config.json"], most=2)
    adapter = _ADAPTER if random.random() < 0.3 else None
    if adapter is not None and random.random() < 0.8:
        adapter = mutate_json(random, adapter, most=2)
    return {
        "files": {name: json_bytes(random, content) for name, content in files.items()},
        "adapter": None if adapter is None else json_bytes(random, adapter),
        "as_source": random.random() < 0.3,
        "random": random,
    }


def feed_config(value: dict[str, Any], folder: Path) -> None:
    model, adapter, random = folder / "model", folder / "adapter", value["random"]
    for kind in ("gemma", "gemma2"):
        if not (folder / kind).exists():
            tiny_folder(folder / kind, kind)
    kind = "gemma2" if b"gemma2" in value["files"]["config.json"] else "gemma"
    clear(model)
    (folder / kind).rename(model)
    try:
        for name, content in value["files"].items():
            put(random, model / name, content)
        options = {}
        if value["adapter"] is not None:
            clear(adapter)
            adapter.mkdir()
            put(random, adapter / "adapter_config.json", value["adapter"])
            put(random, adapter / "adapter_model.safetensors", _adapter_weights())
            options = {} if value["as_source"] else {"adapter": adapter}
        source = adapter if options == {} and value["adapter"] is not None else model
        _use(Engine.load(source, device="cpu", **options))
    finally:
        for name in (*_SETTINGS, "config.json"):
            clear(model / name)
        (model / "config.json").write_text(json.dumps(_config(kind)))
        model.rename(folder / kind)


def _use(engine: Engine) -> None:
    if engine.config.vision_config.image_size <= 64:
        engine.generate(engine.encode_image([tiny_picture()]), ["detect cat"], max_new_tokens=1)
        VLM(engine).detect(tiny_picture(), "cat", max_new_tokens=8)


@cache
def _bundled() -> str:
    return MaskCodec.load().fingerprint


def make_sidecar(random: Random) -> tuple[bytes, Random]:
    codec = {
        "file": random.choice(("bundled", "codec.safetensors", "codec.npz")),
        "sha256": "0" * 64,
    }
    if codec["file"] == "bundled":
        codec["sha256"] = _bundled()
    content: Any = {"mask_codec": codec, "box_scale": random.choice((1024, 1023))}
    return json_bytes(random, mutate_json(random, content, most=2)), random


def feed_sidecar(value: tuple[bytes, Random], folder: Path) -> None:
    content, random = value
    put(random, folder / "vlmtasks.json", content)
    put(random, folder / "codec.safetensors", _shard(random, _tensors()[0]))
    put(random, folder / "codec.npz", _archive(random, {"a": np.zeros(3, np.float32)}))
    load_codec(Sidecar.from_metadata(read_metadata(folder), folder))


# --- tokenizer -----------------------------------------------------------------------------------

_PARTS: dict[str, Any] = {
    "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
    "padding": {
        "strategy": {"Fixed": 10**9},
        "direction": "Left",
        "pad_to_multiple_of": 8,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    },
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
    "pre_tokenizer": {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always",
        "split": True,
    },
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<bos>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
    },
    "decoder": {"type": "ByteFallback"},
}


@cache
def _tokenizer() -> dict[str, Any]:
    return json.loads(tiny_tokenizer_json())


def make_tokenizer(random: Random) -> tuple[bytes, list[int], Random]:
    data = dict(_tokenizer())
    for _ in range(random.choice((1, 1, 2))):
        part = random.choice((*data, "added tokens", "vocabulary", "model"))
        if part == "model":
            changed = mutate_json(random, {k: v for k, v in data["model"].items() if k != "vocab"})
            data["model"] = {"vocab": data["model"].get("vocab"), **changed}
        elif part == "added tokens":
            tokens = list(data["added_tokens"] or [{}])
            at = random.choice((0, 1, 2, 3, 4, 700, len(tokens) - 1)) % len(tokens)
            data["added_tokens"] = (
                tokens[:at] + mutate_json(random, tokens[at : at + 2]) + tokens[at + 2 :]
            )
        elif part == "vocabulary":
            vocabulary = dict(data["model"].get("vocab") or {})
            for name in random.sample(list(vocabulary), min(2, len(vocabulary))):
                vocabulary.update(mutate_json(random, {name: vocabulary.pop(name)}))
            data["model"] = {**data["model"], "vocab": vocabulary}
        else:
            data[part] = random.choice((data.get(part), _PARTS.get(part), None))
            if part not in ("added_tokens", "model"):
                data = mutate_json(random, {part: data[part]}) | {
                    k: v for k, v in data.items() if k != part
                }
    ids = [random.choice((0, 1, 2, 3, 5, 300, 400, 1500, 2**31, -1)) for _ in range(20)]
    return json_bytes(random, data), ids, random


def feed_tokenizer(value: tuple[bytes, list[int], Random], folder: Path) -> None:
    content, ids, random = value
    put(random, folder / "tokenizer.json", content)
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    for text in ("detect cat ; dog", "<loc0001> 猫 \0 <image>", "", "\n", "x" * 300):
        tokenizer.encode(text, location_tokens=True)
        assert not set(tokenizer.encode(text)) & {tokenizer.image_id, tokenizer.bos_id}
    tokenizer.decode(ids)
    for token_id in ids:
        tokenizer.is_byte(token_id)


# --- archives ------------------------------------------------------------------------------------

_SHAPES = ((), (0,), (3,), (2, 3), (1, 2, 3, 4), (2, 0, 3))


@cache
def _packed_model() -> dict[str, np.ndarray]:
    sizes = {"gemma2": False, "width": 16, "heads": 2, "groups": 1, "head_dim": 8}
    return {f"params/{name}": array for name, array in draw_arrays(20, **sizes).items()}


def _archive(random: Random, arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(
        buffer, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as file:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array)
            data = content.getvalue()
            if random.random() < 0.05:
                data = mutate_bytes(random, data)
            elif random.random() < 0.03:
                data = data.replace(b"'shape': (", b"'shape': (9999999999, ")
            file.writestr(name + ".npy", data)
    data = buffer.getvalue()
    return mutate_bytes(random, data) if random.random() < 0.3 else data


def make_archive(random: Random) -> tuple[bytes, Random]:
    arrays = dict(_packed_model()) if random.random() < 0.8 else {"a": np.zeros(3)}
    for name in random.sample(list(arrays), random.choice((0, 1, 1, 2)) % (len(arrays) + 1)):
        shape = random.choice((arrays[name].shape[1:], (2, *arrays[name].shape), *_SHAPES))
        dtype = random.choice(("f4", "f4", "f2", "f8", "i8", "?", "c8", "U2", "V2", ">f4", "M8[s]"))
        arrays[name] = np.zeros(shape, dtype)
    return _archive(random, arrays), random


def feed_archive(value: tuple[bytes, Random], folder: Path) -> None:
    content, random = value
    path = folder / "x.npz"
    put(random, path, content)
    if random.random() < 0.3:
        MaskCodec.load(path)
    elif path.is_file():
        read_npz(path)


TARGETS = (
    Target("weights", make_weights, feed_weights, 500),
    Target("config", make_config, feed_config, 25),
    Target("sidecar", make_sidecar, feed_sidecar, 300),
    Target("tokenizer", make_tokenizer, feed_tokenizer, 30),
    Target("archive", make_archive, feed_archive, 150),
)
