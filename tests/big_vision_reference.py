"""PaliGemma as big_vision computes it, in numpy, straight from the arrays of its files.

Written from the published layout, not from our network, so that a wrong transposition shows.
"""

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray]

VISION, VISION_HEADS, VISION_HEAD, MLP, PATCH, SIDE = 24, 3, 8, 20, 4, 5
LAYERS = 2


def draw_arrays(
    rows: int, *, gemma2: bool, width: int, heads: int, groups: int, head_dim: int, seed: int = 0
) -> Arrays:
    """Random weights under the names of big_vision's files. rows: of the embedding table."""
    rng = np.random.default_rng(seed)

    def matrix(*shape: int, fan_in: int) -> NDArray:
        return (rng.standard_normal(shape) * 1.5 / fan_in**0.5).astype(np.float32)

    def vector(*shape: int) -> NDArray:
        return (rng.standard_normal(shape) * 0.1).astype(np.float32)

    block = "img/Transformer/encoderblock/"
    attention = block + "MultiHeadDotProductAttention_0/"
    per_head = (VISION_HEADS, VISION_HEAD)
    arrays = {
        "img/embedding/kernel": matrix(PATCH, PATCH, 3, VISION, fan_in=PATCH * PATCH * 3),
        "img/embedding/bias": vector(VISION),
        "img/pos_embedding": vector(1, SIDE * SIDE, VISION),
        "img/Transformer/encoder_norm/scale": 1 + vector(VISION),
        "img/Transformer/encoder_norm/bias": vector(VISION),
        "img/head/kernel": matrix(VISION, width, fan_in=VISION),
        "img/head/bias": vector(width),
        f"{block}MlpBlock_0/Dense_0/kernel": matrix(LAYERS, VISION, MLP, fan_in=VISION),
        f"{block}MlpBlock_0/Dense_0/bias": vector(LAYERS, MLP),
        f"{block}MlpBlock_0/Dense_1/kernel": matrix(LAYERS, MLP, VISION, fan_in=MLP),
        f"{block}MlpBlock_0/Dense_1/bias": vector(LAYERS, VISION),
        f"{attention}out/kernel": matrix(LAYERS, *per_head, VISION, fan_in=VISION),
        f"{attention}out/bias": vector(LAYERS, VISION),
        "llm/embedder/input_embedding": vector(rows, width),
        "llm/final_norm/scale": vector(width),
        "llm/layers/attn/q_einsum/w": matrix(LAYERS, heads, width, head_dim, fan_in=width),
        "llm/layers/attn/kv_einsum/w": matrix(LAYERS, 2, groups, width, head_dim, fan_in=width),
        "llm/layers/attn/attn_vec_einsum/w": matrix(
            LAYERS, heads, head_dim, width, fan_in=heads * head_dim
        ),
        "llm/layers/mlp/gating_einsum": matrix(LAYERS, 2, width, 40, fan_in=width),
        "llm/layers/mlp/linear": matrix(LAYERS, 40, width, fan_in=40),
        "llm/layers/pre_attention_norm/scale": vector(LAYERS, width),
        "llm/layers/pre_ffw_norm/scale": vector(LAYERS, width),
    }
    for index in (0, 1):
        arrays[f"{block}LayerNorm_{index}/scale"] = 1 + vector(LAYERS, VISION)
        arrays[f"{block}LayerNorm_{index}/bias"] = vector(LAYERS, VISION)
    for name in ("query", "key", "value"):
        arrays[f"{attention}{name}/kernel"] = matrix(LAYERS, VISION, *per_head, fan_in=VISION)
        arrays[f"{attention}{name}/bias"] = vector(LAYERS, *per_head)
    if gemma2:
        arrays["llm/layers/post_attention_norm/scale"] = vector(LAYERS, width)
        arrays["llm/layers/post_ffw_norm/scale"] = vector(LAYERS, width)
    return arrays


def image_tokens(arrays: Arrays, pixels: NDArray) -> NDArray:
    """Pixels (rows, columns, 3) in −1..1 → (S, width)."""
    patches = pixels.reshape(SIDE, PATCH, SIDE, PATCH, 3)
    kernel = arrays["img/embedding/kernel"]
    x = np.einsum("aibjc,ijcd->abd", patches, kernel).reshape(SIDE * SIDE, VISION)
    x = x + arrays["img/embedding/bias"] + arrays["img/pos_embedding"][0]
    block = "img/Transformer/encoderblock/"
    for layer in range(LAYERS):
        w = {k.removeprefix(block): v[layer] for k, v in arrays.items() if k.startswith(block)}
        h = layer_norm(x, w["LayerNorm_0/scale"], w["LayerNorm_0/bias"])
        path = "MultiHeadDotProductAttention_0/"
        q, k, v = (
            np.einsum("sd,dhk->hsk", h, w[f"{path}{n}/kernel"]) + w[f"{path}{n}/bias"][:, None]
            for n in ("query", "key", "value")
        )
        weights = softmax(q @ k.transpose(0, 2, 1) / VISION_HEAD**0.5)
        mixed = np.einsum("hsk,hkd->sd", weights @ v, w[f"{path}out/kernel"])
        x = x + mixed + w[f"{path}out/bias"]
        h = layer_norm(x, w["LayerNorm_1/scale"], w["LayerNorm_1/bias"])
        h = gelu(h @ w["MlpBlock_0/Dense_0/kernel"] + w["MlpBlock_0/Dense_0/bias"])
        x = x + h @ w["MlpBlock_0/Dense_1/kernel"] + w["MlpBlock_0/Dense_1/bias"]
    norm = "img/Transformer/encoder_norm/"
    x = layer_norm(x, arrays[norm + "scale"], arrays[norm + "bias"])
    return x @ arrays["img/head/kernel"] + arrays["img/head/bias"]


def prompt_logits(
    arrays: Arrays, images: NDArray, ids: list[int], *, gemma2: bool, scalar: float
) -> NDArray:
    """Logits (rows,) behind a prompt: image tokens (S, width), then ids. All see all."""
    table = arrays["llm/embedder/input_embedding"]
    x = np.concatenate([images, table[ids] * table.shape[1] ** 0.5])
    for layer in range(LAYERS):
        w = {
            k.removeprefix("llm/layers/"): v[layer]
            for k, v in arrays.items()
            if k.startswith("llm/layers/")
        }
        h = attend(rms_norm(x, w["pre_attention_norm/scale"]), w, gemma2, scalar)
        x = x + (rms_norm(h, w["post_attention_norm/scale"]) if gemma2 else h)
        h = rms_norm(x, w["pre_ffw_norm/scale"])
        gate, up = np.einsum("td,cdf->ctf", h, w["mlp/gating_einsum"])
        h = (gelu(gate) * up) @ w["mlp/linear"]
        x = x + (rms_norm(h, w["post_ffw_norm/scale"]) if gemma2 else h)
    logits = rms_norm(x[-1], arrays["llm/final_norm/scale"]) @ table.T
    return np.tanh(logits / 30) * 30 if gemma2 else logits


def attend(x: NDArray, w: Arrays, gemma2: bool, scalar: float) -> NDArray:
    q = rope(np.einsum("td,ndh->nth", x, w["attn/q_einsum/w"]))
    k, v = np.einsum("td,ckdh->ckth", x, w["attn/kv_einsum/w"])
    groups = len(q) // len(k)
    k, v = np.repeat(rope(k), groups, 0), np.repeat(v, groups, 0)
    scores = q @ k.transpose(0, 2, 1) * scalar**-0.5
    if gemma2:
        scores = np.tanh(scores / 50) * 50
    return np.einsum("nth,nhd->td", softmax(scores) @ v, w["attn/attn_vec_einsum/w"])


def rope(x: NDArray) -> NDArray:
    """Rotates (heads, T, d), halves against each other, base 10000."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] / 10000 ** (np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate(
        [
            first * np.cos(angles) - second * np.sin(angles),
            second * np.cos(angles) + first * np.sin(angles),
        ],
        -1,
    )


def rms_norm(x: NDArray, scale: NDArray) -> NDArray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * (1 + scale)


def layer_norm(x: NDArray, scale: NDArray, bias: NDArray) -> NDArray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * scale + bias


def gelu(x: NDArray) -> NDArray:
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def softmax(x: NDArray) -> NDArray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
