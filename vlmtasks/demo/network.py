"""Shape and starting weights of the demo model.

The starting weights give the network the habits that a large model learns from data it has and we
have not: attention that starts local in the tower (ConViT, arXiv 2103.10697), location embeddings
that are smooth in the coordinate, and decoder queries that find the patches of the class they name.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vlmtasks.demo.tokenizer import IMAGE_SIZE, PATCH_SIZE
from vlmtasks.engine.config import GemmaConfig, PaliGemmaConfig, SiglipVisionConfig
from vlmtasks.engine.paligemma import PaliGemma
from vlmtasks.engine.siglip import EncoderLayer

GRID = IMAGE_SIZE // PATCH_SIZE
TEXT_MARK = 0.5  # length, of embeddings about 0.5 long
POSITION_DIMS = 32  # of the tower's width, where patch positions live at the start
# (dx, dy) in patches that the heads of the even and odd layers look at first
EVEN_OFFSETS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))
ODD_OFFSETS = ((-1, -1), (1, -1), (-1, 1), (1, 1), (-2, 0), (2, 0))


def demo_config(vocab_size: int) -> PaliGemmaConfig:
    """8.7 million parameters; `<image>` is the last id of the vocabulary."""
    return PaliGemmaConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=6,
            num_attention_heads=8,
            image_size=IMAGE_SIZE,
            patch_size=PATCH_SIZE,
        ),
        text_config=GemmaConfig(
            vocab_size=vocab_size,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=5,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=64,
            max_position_embeddings=1024,
        ),
        image_token_index=vocab_size - 1,
    )


def build_model(vocab_size: int, loc_start: int, seed: int) -> PaliGemma:
    """A fresh model with the starting weights described above."""
    generator = torch.Generator().manual_seed(seed)
    model = PaliGemma(demo_config(vocab_size))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                continue  # LayerNorm ones, RMSNorm zeros (1 + w), biases as below
            fan_in = parameter[0].numel()
            std = 0.03 if "embed_tokens" in name else fan_in**-0.5
            parameter.normal_(0.0, std, generator=generator)
        for name, parameter in model.named_parameters():
            if name.endswith("bias") and "norm" not in name:
                parameter.zero_()
            # Residual branches start small, so that the stream keeps patch content and position.
            if name.endswith(
                ("out_proj.weight", "fc2.weight", "o_proj.weight", "down_proj.weight")
            ):
                parameter.mul_(0.3)
        _start_tower(model)
        _start_locations(model.language_model.embed_tokens, loc_start)
    return model


def whiten_patches(model: PaliGemma, pictures: np.ndarray) -> None:
    """Starts the patch embedding with the whitened principal components of real patches.

    pictures: (N, P, P, 3) uint8. A random projection shows little but the mean colour of a patch;
    whitened, edges are as loud as colours from the first step on.
    """
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1.0
    patches = F.unfold(pixels, PATCH_SIZE, stride=PATCH_SIZE).transpose(1, 2).flatten(0, 1)
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh((patches - mean).T @ (patches - mean) / len(patches))
    embedding = model.vision_tower.embeddings.patch_embedding
    count = embedding.out_channels - POSITION_DIMS
    values, vectors = values[-count:].flip(0), vectors[:, -count:].flip(1)
    whitening = (vectors / (values + values[-1]).sqrt()).T  # (count, patch)
    with torch.no_grad():
        embedding.weight[POSITION_DIMS:] = whitening.reshape(count, *embedding.weight.shape[1:])
        assert embedding.bias is not None
        embedding.bias[POSITION_DIMS:] = -whitening @ mean


def start_pointing(
    model: PaliGemma, center_direction: Tensor, class_ids: list[int],
    class_of: dict[int, int], pictures: np.ndarray,
) -> None:  # fmt: skip
    """Starts the decoder with the habit of pointing at what is asked for.

    The tower has learned to put the word embedding of its class into each image token, so words and
    patches can be compared at once. Layer 0, head 0: every text token fetches the class word of its
    prompt. Layers 1 and 2: text tokens look at the image tokens that carry this class, those in the
    middle of an object first, and layer 1 copies what stands there. Image tokens look at no text.

    center_direction: (D,) of the dense question for the middle of an object; class_of: class index
    of all tokens that name one: plurals begin near their class; pictures: (N, P, P, 3) uint8 to
    measure image tokens on.
    """
    with torch.no_grad():
        rows = model.language_model.embed_tokens.weight
        for token, index in class_of.items():
            if token not in class_ids:
                rows[token] = rows[class_ids[index]] + 0.7 * rows[token]
        pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1.0
        image = _normed(model.encode_image(pixels).flatten(0, 1))
        embeddings = model.language_model.embed_tokens.weight
        # Mark all text with the direction that image tokens use least.
        mark = torch.linalg.eigh(image.T @ image).eigenvectors[:, 0]
        embeddings += TEXT_MARK * mark
        words = _normed(embeddings)
        is_text = mark / (words @ mark).mean()
        classes = words[class_ids]
        basis = torch.linalg.svd(classes - classes.mean(0), full_matrices=False).Vh[:23]
        named = sorted(class_of)
        others = sorted(set(range(len(words))) - set(named))
        is_word = _direction(words[named], torch.cat((words[others], image)))
        center = center_direction / (image @ center_direction).std()
        is_image = _direction(image, words)
        # The embeddings have grown in the tower stage: answers begin unsure instead of wrong.
        model.language_model.norm.weight.fill_(-0.7)
        layers: list[Any] = list(model.language_model.layers)
        for layer in layers:
            _start_apart(layer.self_attn, is_image, is_text)
        _start_fetching(layers[0].self_attn, is_text, is_word, basis)
        generator = torch.Generator().manual_seed(11)
        size = len(basis.T)
        turn = torch.linalg.qr(torch.randn(size, size, generator=generator)).Q
        for layer in layers[1:3]:
            _start_looking(layer.self_attn, is_text, 0.015 * center - is_text, basis)
        layers[1].self_attn.v_proj.weight.copy_(turn)
        layers[1].self_attn.o_proj.weight.copy_(0.5 * turn.T)


def _start_apart(attention: Any, is_image: Tensor, is_text: Tensor) -> None:
    """All heads: image tokens look at no text.

    So the full prefix mask of use begins as the mask of the packed prompts, where they cannot.
    """
    half = attention.head_dim // 2
    for head in range(attention.num_heads):
        dim = head * attention.head_dim + half - 13  # the slowest pair that _slow_dims leaves
        for weight in (attention.q_proj.weight, attention.k_proj.weight):
            weight[[dim, dim + half]] = 0.0
        attention.q_proj.weight[dim] = -9.0 * is_image
        attention.k_proj.weight[dim] = 9.0 * is_text


def _start_fetching(attention: Any, is_text: Tensor, is_word: Tensor, basis: Tensor) -> None:
    """Head 0: text tokens look at the class words of their prompt and copy the class."""
    head = slice(0, attention.head_dim)
    for weight in (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight):
        weight[head] *= 0.1
    dim = _slow_dims(attention.head_dim)[-1]
    attention.q_proj.weight[dim] = 9.0 * is_text
    attention.k_proj.weight[dim] = 9.0 * is_word
    attention.v_proj.weight[: len(basis)] = basis
    attention.o_proj.weight[:, head] *= 0.1
    attention.o_proj.weight[:, : len(basis)] = 0.7 * basis.T


def _start_looking(attention: Any, is_text: Tensor, appeal: Tensor, basis: Tensor) -> None:
    """All heads: text tokens look where their class is, but at no text, which carries it too."""
    dims = torch.tensor(_slow_dims(attention.head_dim))
    for head in range(attention.num_heads):
        rows = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
        at = head * attention.head_dim + dims
        for weight in (attention.q_proj.weight, attention.k_proj.weight):
            weight[rows] *= 0.1
            weight[at[:-1]] = basis
        attention.q_proj.weight[at[-1]] = 24.0 * is_text
        attention.k_proj.weight[at[-1]] = 24.0 * appeal


def _slow_dims(head_dim: int) -> list[int]:
    """24 dims of the slow RoPE pairs (turning less than half a radian over a prompt)."""
    slow = range(head_dim // 2 - 12, head_dim // 2)
    return [*slow, *(head_dim // 2 + index for index in slow)]


def _normed(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


def _direction(ones: Tensor, zeros: Tensor) -> Tensor:
    """(D,) whose product is near 1 for the rows of `ones` and near 0 for those of `zeros`."""
    x = torch.cat((ones, zeros))
    y = torch.cat((torch.ones(len(ones)), torch.zeros(len(zeros))))
    weight = torch.where(y > 0, 1 / len(ones), 1 / len(zeros))
    gram = x.T @ (weight[:, None] * x) + 0.01 * torch.eye(x.shape[1])
    return torch.linalg.solve(gram, x.T @ (weight * y))


def _start_tower(model: PaliGemma) -> None:
    """2-D sinusoidal positions in the first dims; heads that look at fixed offsets of them."""
    tower = model.vision_tower
    frequencies = torch.linspace(0.25, 2.0, POSITION_DIMS // 4)  # radians a patch
    rows, columns = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
    x = columns.reshape(-1, 1) * frequencies
    y = rows.reshape(-1, 1) * frequencies
    table = torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), 1)  # (S, POSITION_DIMS)
    tower.embeddings.position_embedding.weight.zero_()
    tower.embeddings.position_embedding.weight[:, :POSITION_DIMS] = table
    tower.embeddings.patch_embedding.weight[:POSITION_DIMS] *= 0.1
    for index, layer in enumerate(tower.encoder.layers):
        assert isinstance(layer, EncoderLayer)
        attention = layer.self_attn
        head_dim = attention.q_proj.weight.shape[0] // attention.num_heads
        offsets = ODD_OFFSETS if index % 2 else EVEN_OFFSETS
        for head in range(attention.num_heads):
            rows_of_head = slice(head * head_dim, (head + 1) * head_dim)
            dx, dy = offsets[head % len(offsets)]
            attention.k_proj.weight[rows_of_head] *= 0.15
            attention.q_proj.weight[rows_of_head] *= 0.15
            key = torch.eye(POSITION_DIMS)[:head_dim]
            query = _shift(frequencies, dx, dy)[:head_dim]
            sharpness = 1.6
            attention.k_proj.weight[rows_of_head, :POSITION_DIMS] += sharpness * key
            attention.q_proj.weight[rows_of_head, :POSITION_DIMS] += sharpness * query


def _shift(frequencies: Tensor, dx: float, dy: float) -> Tensor:
    """The matrix from the position features of a patch to those of its (dx, dy) neighbour."""
    blocks = []
    for distance in (dx, dy):
        cos, sin = (
            torch.diag((frequencies * distance).cos()),
            torch.diag((frequencies * distance).sin()),
        )
        # sin(a + b) = sin a cos b + cos a sin b; cos(a + b) = cos a cos b − sin a sin b
        blocks.append(torch.cat((torch.cat((cos, sin), 1), torch.cat((-sin, cos), 1)), 0))
    return torch.block_diag(*blocks)


def _start_locations(embedding: nn.Embedding, loc_start: int) -> None:
    """Sines and cosines of the coordinate, so that neighbouring bins start as neighbours."""
    size = embedding.embedding_dim
    coordinate = torch.arange(1024)[:, None] / 1024
    waves = torch.arange(1, size // 4 + 1) * math.pi  # half a period … size/8 periods
    strength = (torch.arange(1, size // 4 + 1) / 8.0 + 1.0).rsqrt()
    features = torch.cat(
        ((coordinate * waves).sin() * strength, (coordinate * waves).cos() * strength), 1
    )
    generator = torch.Generator().manual_seed(7)
    mix = torch.linalg.qr(torch.randn(size, features.shape[1], generator=generator)).Q
    rows = features @ mix.T
    rows = rows / rows.norm(dim=1).mean() * (0.03 * size**0.5)
    embedding.weight[loc_start : loc_start + 1024] = rows
