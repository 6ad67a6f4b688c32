"""PaliGemma (arXiv 2407.07726): SigLIP tower, linear projector, Gemma under a prefix-LM mask.

Letters: B rows, S image tokens, P prompt tokens (image included), T suffix tokens, D width,
V rows of the embedding table.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vlmtasks.engine.cache import KeyValueCache
from vlmtasks.engine.config import PaliGemmaConfig
from vlmtasks.engine.gemma import GemmaModel
from vlmtasks.engine.siglip import SiglipVisionModel


class PaliGemma(nn.Module):
    """The network alone: tensors in, tensors out."""

    def __init__(self, config: PaliGemmaConfig) -> None:
        super().__init__()
        self.config = config
        self.vision_tower = SiglipVisionModel(config.vision_config)
        self.multi_modal_projector = Projector(config)
        self.language_model = GemmaModel(config.text_config)
        # Set by the loader when a checkpoint holds a head of its own; None: tied to the embeddings.
        self.lm_head: nn.Linear | None = None

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, image_size, image_size) in −1..1 → image tokens (B, S, D)."""
        return self.multi_modal_projector(self.vision_tower(pixels))

    def embed_prompt(self, ids: Tensor, image_tokens: list[Tensor]) -> Tensor:
        """Prompt ids (B, P) → (B, P, D); row b's `<image>` places take image_tokens[b] (S_b, D)."""
        is_image = ids == self.config.image_token_index
        # The image id may lie beyond the table; its row is overwritten anyway.
        x = self.language_model.embed(ids.masked_fill(is_image, 0))
        for row, tokens in enumerate(image_tokens):
            places = int(is_image[row].sum())
            if places != len(tokens):
                raise ValueError(
                    f"row {row} has {places} <image> ids for {len(tokens)} image tokens"
                )
        return x.masked_scatter(is_image[..., None], torch.cat(image_tokens).to(x.dtype))

    def prefill(
        self, ids: Tensor, valid: Tensor, image_tokens: list[Tensor], slots: int
    ) -> "Prefill":
        """Runs the prompt; every valid prompt token sees every other (prefix-LM).

        ids: (B, P); valid: (B, P) bool, False for padding on either side; slots: cache size.
        Returns the hidden state (B, D) of each row's last valid token, the cache and the position
        (B,) that the first generated token takes.
        """
        positions = (valid.cumsum(1) - 1).clamp(min=0)
        x = self.embed_prompt(ids, image_tokens)
        cache = KeyValueCache(self.config.text_config, len(ids), slots, x.dtype, x.device)
        where = cache.claim(positions, valid)
        # Prefix tokens see the whole prefix even in sliding layers, as in transformers.
        hidden = self.language_model(x, positions, valid[:, None, None], None, cache, where)
        last = (valid * torch.arange(1, ids.shape[1] + 1, device=ids.device)).argmax(1)
        return Prefill(hidden[torch.arange(len(ids), device=ids.device), last], cache, valid.sum(1))

    def decode(self, ids: Tensor, positions: Tensor, cache: KeyValueCache) -> Tensor:
        """One step: ids (B,) at positions (B,) → hidden states (B, D). Extends the cache."""
        positions = positions[:, None]
        where = cache.claim(positions, torch.ones_like(positions, dtype=torch.bool))
        visible = cache.valid[:, None, None, : where.stop]
        window = self.config.text_config.sliding_window
        sliding = None
        if window is not None:
            near = cache.positions[:, : where.stop] > positions - window
            sliding = visible & near[:, None, None]
        x = self.language_model.embed(ids[:, None])
        return self.language_model(x, positions, visible, sliding, cache, where)[:, 0]

    def logits(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Hidden states (…, D) → logits (…, V), or only those of the ids `rows` (R,) → (…, R).

        Gemma 2's final soft-cap is applied where the config has one (greedy is unaffected by it,
        probabilities are not).
        """
        head = self.language_model.embed_tokens if self.lm_head is None else self.lm_head
        weight = head.weight if rows is None else head.weight[rows]
        logits = F.linear(hidden, weight)
        cap = self.config.text_config.final_logit_softcapping
        return logits if cap is None else (logits / cap).tanh() * cap

    def forward(
        self, ids: Tensor, is_prefix: Tensor, valid: Tensor, image_tokens: list[Tensor]
    ) -> Tensor:
        """Whole sequences at once, for training: ids (B, P+T) → logits (B, P+T, V).

        is_prefix, valid: (B, P+T) bool. A token sees all valid prefix tokens and all earlier ones.
        """
        mask = prefix_mask(is_prefix, valid)
        window = self.config.text_config.sliding_window
        sliding = None if window is None else prefix_mask(is_prefix, valid, window)
        positions = (valid.cumsum(1) - 1).clamp(min=0)
        x = self.embed_prompt(ids, image_tokens)
        return self.logits(self.language_model(x, positions, mask[:, None], _unsqueeze(sliding)))


@dataclass
class Prefill:
    """hidden: (B, D) of the last prompt token; next_positions: (B,)."""

    hidden: Tensor
    cache: KeyValueCache
    next_positions: Tensor


class Projector(nn.Module):
    def __init__(self, config: PaliGemmaConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.vision_config.hidden_size, config.text_config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def prefix_mask(is_prefix: Tensor, valid: Tensor, window: int | None = None) -> Tensor:
    """Visibility (B, L, L), query first: bidirectional over the prefix, causal after it.

    is_prefix, valid: (B, L) bool. With `window`, pairs outside the prefix also need to be fewer
    than `window` positions apart.
    """
    index = torch.arange(is_prefix.shape[1], device=is_prefix.device)
    causal = index[:, None] >= index
    if window is not None:
        causal = causal & (index > index[:, None] - window)
    both_prefix = is_prefix[:, :, None] & is_prefix[:, None, :]
    return (causal | both_prefix) & valid[:, None, :]


def _unsqueeze(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask[:, None]
