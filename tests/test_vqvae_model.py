"""The codec's networks against plain numpy arithmetic, and the layout of the published weights."""

import io
import zipfile

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view

from vqvae import CodecWeightsInvalid, CodecWeightsMissing, MaskCodec

RES_BLOCK = {"net.0": (128, 128, 3, 3), "net.2": (128, 128, 3, 3), "net.4": (128, 128, 1, 1)}
# kernels as published; transposed convolutions are (in, out, height, width)
KERNELS = {
    "encoder.0": (16, 1, 4, 4),
    "encoder.2": (32, 16, 4, 4),
    "encoder.4": (64, 32, 4, 4),
    "encoder.6": (128, 64, 4, 4),
    **{f"encoder.8.{name}": shape for name, shape in RES_BLOCK.items()},
    **{f"encoder.9.{name}": shape for name, shape in RES_BLOCK.items()},
    "encoder.10": (512, 128, 1, 1),
    "decoder.0": (128, 512, 1, 1),
    **{f"decoder.2.{name}": shape for name, shape in RES_BLOCK.items()},
    **{f"decoder.3.{name}": shape for name, shape in RES_BLOCK.items()},
    "decoder.4": (128, 128, 4, 4),
    "decoder.6": (128, 64, 4, 4),
    "decoder.8": (64, 32, 4, 4),
    "decoder.10": (32, 16, 4, 4),
    "decoder.12": (1, 16, 1, 1),
}
TRANSPOSED = {"decoder.4", "decoder.6", "decoder.8", "decoder.10"}
EMA_BUFFERS = {"_vq_vae._ema_cluster_size": (128,), "_vq_vae._ema_w": (128, 512)}


def random_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Every key that the official file uses, at a scale that keeps the values lively."""
    rng = np.random.default_rng(seed)
    weights = {"_vq_vae._embedding": rng.normal(0, 1, (128, 512))}
    for name, shape in KERNELS.items():
        fan_in = shape[0] * 4 if name in TRANSPOSED else np.prod(shape[1:])
        weights[f"{name}.weight"] = rng.normal(0, (2 / fan_in) ** 0.5, shape)
        outputs = shape[1] if name in TRANSPOSED else shape[0]
        weights[f"{name}.bias"] = rng.normal(0, 0.1, outputs)
    return {name: value.astype(np.float32) for name, value in weights.items()}


class NumpyVQVAE:
    """paligemma-facts §9 for one mask, in float64, with no layer of any library."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}

    def conv(self, x: np.ndarray, name: str, stride: int = 1, padding: int = 0) -> np.ndarray:
        kernel = self.weights[f"{name}.weight"]
        padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
        windows = sliding_window_view(padded, kernel.shape[2:], axis=(1, 2))
        windows = windows[:, ::stride, ::stride]
        out = np.einsum("chwij,ocij->ohw", windows, kernel, optimize=True)
        return out + self.weights[f"{name}.bias"][:, None, None]

    def conv_transposed(self, x: np.ndarray, name: str) -> np.ndarray:
        """Each input cell adds its 4×4 patch at twice its place; one cell is cut off all round."""
        kernel = self.weights[f"{name}.weight"]
        _, height, width = x.shape
        out = np.zeros((kernel.shape[1], 2 * height + 2, 2 * width + 2))
        for row in range(height):
            for column in range(width):
                patch = np.einsum("c,coij->oij", x[:, row, column], kernel, optimize=True)
                out[:, 2 * row : 2 * row + 4, 2 * column : 2 * column + 4] += patch
        return out[:, 1:-1, 1:-1] + self.weights[f"{name}.bias"][:, None, None]

    def res_block(self, x: np.ndarray, name: str) -> np.ndarray:
        y = np.maximum(self.conv(x, f"{name}.net.0", padding=1), 0)
        y = np.maximum(self.conv(y, f"{name}.net.2", padding=1), 0)
        return x + self.conv(y, f"{name}.net.4")

    def vectors(self, mask: np.ndarray) -> np.ndarray:
        """(64, 64) of 0 … 1 -> (16, 512), row by row."""
        x = 2 * (mask[None].astype(np.float64) - 0.5)
        for layer in (0, 2, 4, 6):
            x = np.maximum(self.conv(x, f"encoder.{layer}", stride=2, padding=1), 0)
        x = self.conv(self.res_block(self.res_block(x, "encoder.8"), "encoder.9"), "encoder.10")
        return x.reshape(512, 16).T

    def encode(self, mask: np.ndarray) -> np.ndarray:
        differences = self.vectors(mask)[:, None] - self.weights["_vq_vae._embedding"]
        return (differences**2).sum(-1).argmin(1)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        rows = self.weights["_vq_vae._embedding"][codes]
        x = np.stack([rows[4 * row : 4 * row + 4] for row in range(4)]).transpose(2, 0, 1)
        x = np.maximum(self.conv(x, "decoder.0"), 0)
        x = self.res_block(self.res_block(x, "decoder.2"), "decoder.3")
        for layer in (4, 6, 8, 10):
            x = np.maximum(self.conv_transposed(x, f"decoder.{layer}"), 0)
        return self.conv(x, "decoder.12")[0]


@pytest.fixture(scope="module")
def official_npz(tmp_path_factory):
    """A file in the published layout, with the buffers that only its training used."""
    file = tmp_path_factory.mktemp("codec") / "vae-oid.npz"
    np.savez(file, **random_weights(), **{k: np.ones(s, "f4") for k, s in EMA_BUFFERS.items()})
    return file


def test_published_layout_has_the_published_sizes():
    sizes = {"encoder": 0, "decoder": 0}
    for name, value in random_weights().items():
        part = name.split(".")[0]
        if part in sizes:
            sizes[part] += value.size
    assert sizes == {"encoder": 861_936, "decoder": 1_123_457}


def test_decoder_equals_numpy(official_npz):
    codes = np.random.default_rng(1).integers(0, 128, (3, 16))
    expected = np.stack([NumpyVQVAE(random_weights()).decode(row) for row in codes])
    decoded = MaskCodec.load(official_npz).decode(codes)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(decoded, expected, atol=1e-4)


def test_encoder_equals_numpy(official_npz):
    masks = np.random.default_rng(2).random((3, 64, 64)) ** 2
    reference = NumpyVQVAE(random_weights())
    codec = MaskCodec.load(official_npz)
    with torch.no_grad():
        signed = torch.from_numpy(masks.astype(np.float32) * 2 - 1)[:, None]
        vectors = codec._model.encoder(signed).flatten(2).transpose(1, 2).numpy()
    np.testing.assert_allclose(vectors, [reference.vectors(mask) for mask in masks], atol=1e-4)
    assert codec.encode(masks).tolist() == [reference.encode(mask).tolist() for mask in masks]


def test_first_row_wins_a_tie(tmp_path):
    weights = random_weights()
    weights["_vq_vae._embedding"][:] = weights["_vq_vae._embedding"][5]
    np.savez(tmp_path / "tie.npz", **weights)
    codes = MaskCodec.load(tmp_path / "tie.npz").encode(np.ones((1, 64, 64)))
    assert codes.tolist() == [[0] * 16]


def test_npz_and_safetensors_are_the_same_codec(official_npz, tmp_path):
    from vqvae.weights import load_model, save_weights

    save_weights(load_model(official_npz), tmp_path / "same.safetensors")
    same = MaskCodec.load(tmp_path / "same.safetensors")
    codes = np.arange(32).reshape(2, 16)
    np.testing.assert_array_equal(same.decode(codes), MaskCodec.load(official_npz).decode(codes))
    assert same.fingerprint == MaskCodec.load(official_npz).fingerprint


def test_half_precision_decoder_is_computed_in_float32_and_keeps_the_codes(official_npz, tmp_path):
    from vqvae.weights import load_model, save_weights

    save_weights(load_model(official_npz), tmp_path / "half.safetensors", torch.float16)
    half = MaskCodec.load(tmp_path / "half.safetensors")
    assert half._model.decoder[0].weight.dtype == torch.float32
    assert half.decode(np.zeros((1, 16), int)).dtype == np.float32
    full = MaskCodec.load(official_npz)
    assert half.fingerprint != full.fingerprint
    masks = np.random.default_rng(3).random((5, 64, 64))
    np.testing.assert_array_equal(half.encode(masks), full.encode(masks))


def test_one_error_lists_all_that_is_wrong(tmp_path):
    weights = random_weights()
    del weights["encoder.4.bias"], weights["decoder.12.weight"]
    weights["decoder.14.weight"] = np.zeros((1, 1), "f4")
    weights["encoder.10.weight"] = np.zeros((512, 64, 1, 1), "f4")
    weights["decoder.0.bias"] = np.zeros(128, "i4")
    np.savez(tmp_path / "wrong.npz", **weights)
    with pytest.raises(CodecWeightsInvalid) as caught:
        MaskCodec.load(tmp_path / "wrong.npz")
    for part in (
        "missing decoder.12.weight; missing encoder.4.bias",
        "unexpected decoder.14.weight",
        "encoder.10.weight is (512, 64, 1, 1) instead of (512, 128, 1, 1)",
        "decoder.0.bias holds torch.int32",
    ):
        assert part in str(caught.value)


def archive(header: bytes) -> bytes:
    """An npz with one array, of which there is only a header."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header)
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("text.npz", b"not a zip archive", id="text as npz"),
        pytest.param("empty.npz", b"", id="empty npz"),
        pytest.param("cut.npz", b"PK\x03\x04" + b"\0" * 40, id="cut npz"),
        pytest.param("text.safetensors", b"not safetensors at all", id="text as safetensors"),
        pytest.param("empty.safetensors", b"", id="empty safetensors"),
        pytest.param("weights.pt", b"\x80\x04.", id="pickle by its ending"),
        pytest.param("pickle.npz", b"\x80\x04\x8c\x02os\x94.", id="pickle in disguise"),
        pytest.param("head.npz", archive(b"{'descr': ((((1"), id="half a header"),
        pytest.param(
            "huge.npz",
            archive(b"{'descr': '<f4', 'fortran_order': False, 'shape': (10**11,), }"),
            id="arithmetic in the header",
        ),
        pytest.param(
            "huge.npz",
            archive(b"{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000,), }"),
            id="declares 400 GB",
        ),
        pytest.param(
            "method.npz",
            archive(b"{}").replace(b"\x08\0", b"\x63\0"),
            id="compressed in an unknown way",
        ),
    ],
)
def test_unreadable_file_is_an_error_that_names_it(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CodecWeightsInvalid, match=name):
        MaskCodec.load(tmp_path / name)


def test_archive_that_unpacks_to_far_more_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("vqvae.weights._MAX_BYTES", 1000)
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(1000, np.uint8))
    with pytest.raises(CodecWeightsInvalid, match="would unpack to 1128 bytes"):
        MaskCodec.load(tmp_path / "bomb.npz")


def test_pickled_arrays_inside_npz_are_refused(tmp_path):
    np.savez(tmp_path / "objects.npz", **{"decoder.0.bias": np.array([{}, []], dtype=object)})
    with pytest.raises(CodecWeightsInvalid, match="allow_pickle"):
        MaskCodec.load(tmp_path / "objects.npz")


def test_absent_file_says_what_to_give(tmp_path):
    with pytest.raises(CodecWeightsMissing, match=r"vae-oid\.npz or a \.safetensors") as caught:
        MaskCodec.load(tmp_path / "nothing.npz")
    assert isinstance(caught.value, FileNotFoundError)
