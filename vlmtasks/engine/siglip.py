"""SigLIP vision tower (arXiv 2303.15343, So400m shape in PaliGemma), without pooling head.

Letters: B pictures, C channels, P side of the model input in pixels, S = (P / patch)² image tokens
in row-major order, D width, h heads. Attribute names are the keys of a Hugging Face checkpoint.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vlmtasks.engine.activations import activation
from vlmtasks.engine.config import SiglipVisionConfig


class SiglipVisionModel(nn.Module):
    """Pixels (B, C, P, P) in −1..1 → features (B, S, D)."""

    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embeddings(pixels)
        for layer in self.encoder.layers:
            x = layer(x)
        return self.post_layernorm(x)


class Embeddings(nn.Module):
    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(
            config.num_channels,
            config.hidden_size,
            kernel_size=config.patch_size,
            stride=config.patch_size,
        )
        self.position_embedding = nn.Embedding(config.num_image_tokens, config.hidden_size)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patch_embedding(pixels.to(self.patch_embedding.weight.dtype))
        # (B, D, rows, columns) → (B, S, D)
        return patches.flatten(2).transpose(1, 2) + self.position_embedding.weight


class Encoder(nn.Module):
    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_hidden_layers))


class EncoderLayer(nn.Module):
    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.self_attn = Attention(config)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class Attention(nn.Module):
    """Full attention: every patch sees every patch."""

    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        B, S, D = x.shape
        q, k, v = (
            project(x).view(B, S, self.num_heads, -1).transpose(1, 2)  # (B, h, S, D / h)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if torch.is_grad_enabled():
            # The backward pass of the fused kernel is slow on CPU; two products are not.
            weights = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
            mixed = weights.softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(mixed.transpose(1, 2).reshape(B, S, D))


class MLP(nn.Module):
    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        self.activation = activation(config.hidden_act)
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))
