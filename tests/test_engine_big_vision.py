import numpy as np
import pytest
import torch
from big_vision_reference import draw_arrays, image_tokens, prompt_logits
from tiny_checkpoints import tiny_picture, tiny_tokenizer, tiny_tokenizer_json

from vlmtasks.engine import Engine
from vlmtasks.engine.big_vision import read_npz
from vlmtasks.engine.pixels import to_pixels
from vlmtasks.engine.prompt_ids import pad_ids
from vlmtasks.errors import CheckpointError, MissingFileError

ROWS = tiny_tokenizer().token_to_id("<image>")  # big_vision has no row for <image>
SIZES = {
    "PaliGemma 1": ({"gemma2": False, "width": 48, "heads": 4, "groups": 1, "head_dim": 16}, 16),
    "PaliGemma 2, 3B": ({"gemma2": True, "width": 72, "heads": 4, "groups": 2, "head_dim": 16}, 16),
    "PaliGemma 2, 28B": (
        {"gemma2": True, "width": 72, "heads": 2, "groups": 2, "head_dim": 128},
        36,
    ),
}


def save(folder, arrays, prefix="params/", name="checkpoint.npz", tokenizer=True):
    np.savez(folder / name, **{prefix + key: value for key, value in arrays.items()})
    if tokenizer:
        (folder / "tokenizer.json").write_text(tiny_tokenizer_json())
    return folder


@pytest.fixture
def arrays():
    return draw_arrays(ROWS, **SIZES["PaliGemma 1"][0])


@pytest.mark.parametrize("size", SIZES)
def test_file_computes_what_big_vision_computes(tmp_path, size):
    shape, scalar = SIZES[size]
    arrays = draw_arrays(ROWS, **shape)
    engine = Engine.load(save(tmp_path, arrays), device="cpu")
    picture = tiny_picture()
    pixels = to_pixels([picture], engine.checkpoint.pixel_config)

    expected = image_tokens(arrays, pixels[0].permute(1, 2, 0).numpy().astype(np.float64))
    (image,) = engine.encode_image([picture])
    np.testing.assert_allclose(image.tokens, expected, atol=1e-4)

    text = [2, *engine.tokenizer.encode("detect cat"), engine.tokenizer.newline_id]
    prompt = pad_ids([[ROWS] * 25 + text], 0, "cpu")
    with torch.inference_mode():
        prefill = engine.network.prefill(prompt.ids, prompt.valid, [image.tokens], 40)
        logits = engine.network.logits(prefill.hidden)[0].numpy()
    reference = prompt_logits(arrays, expected, text, gemma2=shape["gemma2"], scalar=scalar)
    assert np.abs(reference).max() > 0.5
    np.testing.assert_allclose(logits, reference, atol=1e-4)


def test_engine_answers(tmp_path, arrays):
    engine = Engine.load(save(tmp_path, arrays), device="cpu")
    images = engine.encode_image([tiny_picture()])
    (answer,) = engine.generate(images, ["detect cat"], max_new_tokens=12)
    assert len(answer.logprobs) == len(answer.token_ids)
    assert max(answer.token_ids) < ROWS


@pytest.mark.parametrize("prefix", ["params/", ""])
def test_file_alone_or_folder(tmp_path, arrays, prefix):
    save(tmp_path, arrays, prefix)
    folder, file = Engine.load(tmp_path), Engine.load(tmp_path / "checkpoint.npz")
    assert folder.fingerprint == file.fingerprint


def test_bfloat16(tmp_path, arrays):
    """numpy reads bfloat16 as two bytes a number."""
    half = {k: torch.from_numpy(v).bfloat16() for k, v in arrays.items()}
    save(tmp_path, {k: v.view(torch.int16).numpy().view("V2") for k, v in half.items()})

    config, tensors = read_npz(tmp_path / "checkpoint.npz")

    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    table = tensors["language_model.embed_tokens.weight"]
    assert torch.equal(table, half["llm/embedder/input_embedding"])
    assert config.text_config.vocab_size == ROWS


def test_resolution(tmp_path, arrays):
    engine = Engine.load(save(tmp_path, arrays), resolution=40)
    assert engine.encode_image([tiny_picture()])[0].tokens.shape == (100, 48)


def test_tokenizer_is_needed(tmp_path, arrays):
    with pytest.raises(MissingFileError, match=r"holds no tokenizer\.json"):
        Engine.load(save(tmp_path, arrays, tokenizer=False))


def test_missing_and_unexpected_arrays_are_named(tmp_path, arrays):
    arrays["opt/count"] = arrays.pop("img/head/bias")
    with pytest.raises(CheckpointError, match=r"missing \['img/head/bias'\], unexpected \['opt/co"):
        Engine.load(save(tmp_path, arrays))


def test_gemma_2_needs_all_its_norms(tmp_path):
    arrays = draw_arrays(ROWS, **SIZES["PaliGemma 2, 3B"][0])
    del arrays["llm/layers/post_ffw_norm/scale"]
    with pytest.raises(CheckpointError, match=r"missing \['llm/layers/post_ffw_norm/scale'\]"):
        Engine.load(save(tmp_path, arrays))


def test_layers_of_different_number(tmp_path, arrays):
    arrays["llm/layers/mlp/linear"] = arrays["llm/layers/mlp/linear"][:1]
    with pytest.raises(
        CheckpointError, match=r"1 missing:\n  language_model.layers.1.mlp.down_pro"
    ):
        Engine.load(save(tmp_path, arrays))


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickles_are_never_opened(tmp_path, arrays):
    bomb = np.array([_Bomb(tmp_path / "pwned")], dtype=object)
    with pytest.raises(CheckpointError, match="allow_pickle=False"):
        Engine.load(save(tmp_path, arrays | {"img/head/bias": bomb}))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a zip file at all"])
def test_damaged_file(tmp_path, content):
    (tmp_path / "checkpoint.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a readable big_vision"):
        Engine.load(tmp_path)


def test_archive_that_unpacks_to_far_more(tmp_path, arrays):
    bomb = {name: np.zeros((99, *array.shape), np.float32) for name, array in arrays.items()}
    np.savez_compressed(tmp_path / "checkpoint.npz", **bomb)
    with pytest.raises(CheckpointError, match="would unpack to"):
        Engine.load(tmp_path)


@pytest.mark.parametrize("cut", [0.3, 0.7, 0.99])
def test_truncated_file(tmp_path, arrays, cut):
    path = save(tmp_path, arrays) / "checkpoint.npz"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * cut)])
    with pytest.raises(CheckpointError, match="not a readable big_vision"):
        Engine.load(tmp_path)


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("img/embedding/kernel", (4, 3, 24)),
        ("img/head/kernel", (2, 3, 4)),
        ("img/pos_embedding", (1,)),
        ("llm/embedder/input_embedding", ()),
        ("llm/layers/mlp/gating_einsum", (2, 2, 40)),
        ("llm/layers/attn/kv_einsum/w", (2, 2)),
        ("llm/layers/attn/attn_vec_einsum/w", (2, 4, 16)),
    ],
)
def test_wrong_shapes(tmp_path, arrays, key, shape):
    arrays[key] = np.zeros(shape, np.float32)
    with pytest.raises(CheckpointError, match="not a readable big_vision"):
        Engine.load(save(tmp_path, arrays))
