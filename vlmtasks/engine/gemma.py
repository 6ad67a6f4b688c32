"""Gemma 1 and Gemma 2 decoders (arXiv 2403.08295, 2408.00118).

Letters: B rows, T new tokens, K keys, D width, h query heads, g key/value heads, d head_dim.
Attribute names are the keys of a Hugging Face checkpoint.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vlmtasks.engine.activations import activation
from vlmtasks.engine.cache import KeyValueCache
from vlmtasks.engine.config import GemmaConfig


class GemmaModel(nn.Module):
    """Embedded tokens (B, T, D) → hidden states (B, T, D) after the final norm."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids (B, T) → (B, T, D), scaled by √D. Image features are NOT scaled (facts §4.4).

        The constant is rounded to the dtype of the weights, as in the reference.
        """
        weight = self.embed_tokens.weight
        scale = torch.tensor(self.config.hidden_size**0.5, dtype=weight.dtype, device=weight.device)
        return F.embedding(ids, weight) * scale

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor,
        sliding_mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        where: slice | None = None,
    ) -> Tensor:
        """Runs all layers.

        x: (B, T, D); positions: (B, T) int64.
        mask: bool, broadcastable to (B, 1, T, K), True where the key is visible.
        sliding_mask: the same for sliding-window layers; None: `mask` serves all layers.
        cache, where: where the keys of these tokens go; K then counts all cached keys.
        """
        cos, sin = rope_tables(positions, self.config.head_dim, self.config.rope_theta)
        for index, layer in enumerate(self.layers):
            slides = self.config.slides(index) and sliding_mask is not None
            x = layer(x, cos, sin, sliding_mask if slides else mask, cache, where)
        return self.norm(x)


class RMSNorm(nn.Module):
    """x / rms(x) · (1 + weight), in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * (1.0 + self.weight.float())).to(x.dtype)


class DecoderLayer(nn.Module):
    """Gemma 1: norms before attention and MLP. Gemma 2: norms after both as well."""

    def __init__(self, config: GemmaConfig, index: int) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = Attention(config, index)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(size, eps)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.is_gemma2 = config.model_type == "gemma2"
        if self.is_gemma2:
            self.pre_feedforward_layernorm = RMSNorm(size, eps)
            self.post_feedforward_layernorm = RMSNorm(size, eps)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        cache: KeyValueCache | None,
        where: slice | None,
    ) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), cos, sin, mask, cache, where)
        if self.is_gemma2:
            x = x + self.post_attention_layernorm(attended)
            return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Attention(nn.Module):
    def __init__(self, config: GemmaConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.scale = config.query_scale
        self.softcap = config.attn_logit_softcapping
        size = config.hidden_size
        self.q_proj = nn.Linear(size, self.num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(size, self.num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(size, self.num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, size, bias=False)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        cache: KeyValueCache | None,
        where: slice | None,
    ) -> Tensor:
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)  # (B, h, T, d)
        k = self.k_proj(x).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None and where is not None:
            k, v = cache.write(self.index, where, k, v)
        mixed = grouped_attention(q, k, v, mask, self.scale, self.softcap)
        return self.o_proj(mixed.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    """GeGLU."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.activation = activation(config.hidden_act)
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


def rope_tables(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each (B, 1, T, d / 2) float32, for positions (B, T) (arXiv 2104.09864)."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
    angles = positions[:, None, :, None].float() * (1.0 / theta**exponents)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pairs (i, i + d/2) of x (B, heads, T, d), in float32."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def grouped_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float | None
) -> Tensor:
    """Attention of h query heads over g key/value heads without repeating the latter.

    q: (B, h, T, d); k, v: (B, g, K, d); mask: bool broadcastable to (B, 1, T, K).
    Softcap s·tanh(x/s) comes after scaling and before the mask. Returns (B, h, T, d).
    """
    B, h, T, d = q.shape
    g, K = k.shape[1], k.shape[2]
    if softcap is None and not torch.is_grad_enabled() and (T == 1 or h == g or mask.shape[2] == 1):
        # The heads of a group become rows of one head: same keys, same mask.
        rows = q.reshape(B, g, h // g * T, d)
        mixed = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask, scale=scale)
        return mixed.reshape(B, h, T, d)
    rows = q.reshape(B, g, h // g * T, d) * scale
    scores = (rows @ k.transpose(2, 3)).view(B, g, h // g, T, K)
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    scores = scores.masked_fill(~mask[:, :, None], torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    return (weights.view(B, g, h // g * T, K) @ v).view(B, h, T, d)
