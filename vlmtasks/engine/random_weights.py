"""Weights for networks that nobody trained, as comparisons and tests need them.

At the usual scale of random weights the tied head echoes the last token, and comparisons pass by
accident. Here the layers decide: embeddings are small (0.03) and matrices large (2 / √fan-in). Only
queries and keys stay a little below: beyond, attention saturates and magnifies rounding.
"""

import torch
from torch import nn


@torch.no_grad()
def draw_weights(network: nn.Module, seed: int = 0) -> None:
    """Fills a PaliGemma in place, ours or transformers'; norms get values near neutral."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "embed_tokens" in name or "lm_head" in name:
            parameter.copy_(noise * 0.03)
        elif parameter.dim() > 1:
            scale = 1.7 if "q_proj" in name or "k_proj" in name else 2
            parameter.copy_(noise * scale / parameter[0].numel() ** 0.5)
        elif name.endswith("weight") and ("layer_norm" in name or "post_layernorm" in name):
            parameter.copy_(noise * 0.1 + 1)  # LayerNorm multiplies by w, RMSNorm by 1 + w
        else:
            parameter.copy_(noise * 0.1)
