"""Losses of the decoder over prompts and answers.

Letters: B pictures, S image tokens, R prompts of one picture, L tokens, D width, V vocabulary.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vlmtasks.demo.dense import LOC_CHOICES
from vlmtasks.demo.vocabulary import DemoVocabulary, PromptIds
from vlmtasks.engine.gemma import DecoderLayer, grouped_attention, rope_tables, rotate
from vlmtasks.engine.paligemma import PaliGemma, prefix_mask

SEG_WEIGHT = 1.0  # sixteen codes a mask are most of an answer, and the hardest part of it
# An empty answer is one token, a box begins with one of many bins: at even odds the end would win.
END_WORTH = 0.5
WORD_WEIGHT = 2.0  # an answer in words is often a single token
PACKED_TOKENS = 160  # of all prompts and answers about one picture
POINTING = ((2, 0), (2, 1), (3, 0))  # (layer, head) whose attention is taught where to look
LENGTH_STEP = 40  # lengths of single prompts are padded to multiples of this
REACH = 4  # location labels spread over this many taught bins to each side


def packed_loss(
    model: PaliGemma,
    image_tokens: Tensor,
    prompts: list[list[PromptIds]],
    vocabulary: DemoVocabulary,
    spread: float,
    apply: Callable[..., Tensor] | None = None,
) -> dict[str, Tensor]:
    """All prompts of a picture in one sequence behind its image tokens (B, S, D).

    Image tokens see image tokens only, prompts do not see each other.
    apply: a compiled `packed_layer`.
    """
    S = image_tokens.shape[1]
    longest = max(sum(len(p.prefix) + len(p.suffix) for p in row) for row in prompts)
    longest = max(longest, PACKED_TOKENS)  # one shape, so that compiled layers serve all batches
    shape = (len(prompts), longest)
    ids, owner = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
    is_prefix, positions = np.zeros(shape, bool), np.zeros(shape, np.int64)
    wanted, worth = np.full(shape, -100, np.int64), np.ones(shape, np.float32)
    looks = np.zeros((*shape, S), bool)
    for b, row in enumerate(prompts):
        start = 0
        for number, prompt in enumerate(row):
            both = prompt.fed
            at = slice(start, start + len(both))
            ids[b, at], owner[b, at] = both, number
            positions[b, at] = S + np.arange(len(both))
            is_prefix[b, start : start + len(prompt.prefix)] = True
            last = start + len(prompt.prefix) - 1
            wanted[b, last : last + len(prompt.suffix)] = prompt.suffix
            worth[b, last + len(prompt.suffix) - 1] = end_worth(prompt)
            for offset, patches in enumerate(prompt.points):
                looks[b, last + offset, list(patches)] = True
            start += len(both)
    owner_t, prefix_t = torch.from_numpy(owner), torch.from_numpy(is_prefix)
    mask = torch.ones(shape[0], longest, S + longest, dtype=torch.bool)
    own = owner_t[:, :, None] == owner_t[:, None, :]
    mask[:, :, S:] = prefix_mask(prefix_t, torch.ones_like(prefix_t)) & own
    # prefix_mask lets all prefixes see each other; `own` keeps them apart
    x = torch.cat((image_tokens, model.language_model.embed(torch.from_numpy(ids))), 1)
    image_positions = np.broadcast_to(np.arange(S), (shape[0], S))
    where = torch.from_numpy(np.concatenate((image_positions, positions), 1))
    hidden, point = _run(
        model, x, where, mask[:, None], torch.from_numpy(looks), apply or packed_layer
    )
    losses = token_loss(
        model, hidden, torch.from_numpy(wanted), torch.from_numpy(worth), vocabulary, spread
    )
    return losses | {"point": point}


def packed_layer(
    layer: DecoderLayer, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, is_last: bool
) -> Tensor:
    """A Gemma 1 layer over image tokens and packed prompts, which image tokens do not see.

    x: (B, S + L, D); mask: (B, 1, L, S + L), what text sees. The scores of images with text are not
    computed. Returns (B, S + L, D), of the last layer the text's (B, L, D).
    """
    L = mask.shape[2]
    S = x.shape[1] - L
    attention = layer.self_attn
    normed = layer.input_layernorm(x)
    asking = slice(S if is_last else 0, None)
    q = _heads(attention.q_proj(normed[:, asking]), attention.num_heads)
    k = rotate(_heads(attention.k_proj(normed), attention.num_kv_heads), cos, sin)
    v = _heads(attention.v_proj(normed), attention.num_kv_heads)
    q = rotate(q, cos[:, :, asking], sin[:, :, asking])
    scale, softcap = attention.scale, attention.softcap
    mixed = grouped_attention(q[:, :, -L:], k, v, mask, scale, softcap)
    if not is_last:
        all_seen = torch.ones(1, 1, 1, S, dtype=torch.bool)
        image = q[:, :, :S], k[:, :, :S], v[:, :, :S]
        mixed = torch.cat((grouped_attention(*image, all_seen, scale, softcap), mixed), 2)
    x = x[:, asking] + attention.o_proj(mixed.transpose(1, 2).flatten(2))
    return x + layer.mlp(layer.post_attention_layernorm(x))


def _heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(2, (count, -1)).transpose(1, 2)


def whole_layer(
    layer: DecoderLayer, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, is_last: bool
) -> Tensor:
    """The layer as in use; mask: (B, 1, S + L, S + L)."""
    return layer(x, cos, sin, mask, None, None)


def prefix_loss(
    model: PaliGemma,
    image_tokens: Tensor,
    prompts: list[list[PromptIds]],
    vocabulary: DemoVocabulary,
    spread: float,
) -> dict[str, Tensor]:
    """PaliGemma's own form: one prompt a sequence, image and prefix see each other both ways."""
    S = image_tokens.shape[1]
    flat = [prompt for row in prompts for prompt in row]
    rows = torch.tensor([b for b, row in enumerate(prompts) for _ in row])
    longest = max(len(p.prefix) + len(p.suffix) for p in flat)
    longest = -(-longest // LENGTH_STEP) * LENGTH_STEP  # few shapes, for compiled layers
    ids = np.zeros((len(flat), longest), np.int64)
    is_prefix = np.zeros((len(flat), S + longest), bool)
    valid = np.zeros((len(flat), S + longest), bool)
    wanted = np.full((len(flat), longest), -100, np.int64)
    worth = np.ones((len(flat), longest), np.float32)
    looks = np.zeros((len(flat), longest, S), bool)
    for r, prompt in enumerate(flat):
        both = prompt.fed
        ids[r, : len(both)] = both
        is_prefix[r, : S + len(prompt.prefix)] = True
        valid[r, : S + len(both)] = True
        last = len(prompt.prefix) - 1
        wanted[r, last : len(both) - 1] = prompt.suffix
        worth[r, len(both) - 2] = end_worth(prompt)
        for offset, patches in enumerate(prompt.points):
            looks[r, last + offset, list(patches)] = True
    mask = prefix_mask(torch.from_numpy(is_prefix), torch.from_numpy(valid))
    text = model.language_model.embed(torch.from_numpy(ids))
    x = torch.cat((image_tokens[rows], text), 1)
    positions = torch.arange(S + longest).expand(len(flat), -1)
    hidden, point = _run(model, x, positions, mask[:, None], torch.from_numpy(looks), whole_layer)
    losses = token_loss(
        model, hidden, torch.from_numpy(wanted), torch.from_numpy(worth), vocabulary, spread
    )
    return losses | {"point": point}


def _run(
    model: PaliGemma, x: Tensor, positions: Tensor, mask: Tensor, looks: Tensor,
    apply: Callable[..., Tensor],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Hidden states (B, L, D) of the text, and how far its attention is from where it should look.

    x: (B, S + L, D), the image first; looks: (B, L, S) bool, the patches that a token is about.
    """
    S = looks.shape[2]
    decoder = model.language_model
    config = decoder.config
    cos, sin = rope_tables(positions, config.head_dim, config.rope_theta)
    asked = looks.any(2)
    losses = []
    for index, layer in enumerate(decoder.layers):
        heads = [head for at, head in POINTING if at == index]
        if heads and asked.any():
            assert isinstance(layer, DecoderLayer)
            losses += [_pointing_loss(layer, x, cos, sin, looks, asked, S, head) for head in heads]
        x = apply(layer, x, cos, sin, mask, index == len(decoder.layers) - 1)
    point = torch.stack(losses).mean() if losses else x.new_zeros(())
    return decoder.norm(x[:, -looks.shape[1] :]), point


def _pointing_loss(
    layer: DecoderLayer, x: Tensor, cos: Tensor, sin: Tensor, looks: Tensor, asked: Tensor,
    S: int, head: int,
) -> Tensor:  # fmt: skip
    """−log of the attention, within the image, that falls on the right patches."""
    attention = layer.self_attn
    rows = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
    normed = layer.input_layernorm(x)
    key = F.linear(normed[:, :S], attention.k_proj.weight[rows])[:, None]
    query = F.linear(normed[:, S:], attention.q_proj.weight[rows])[:, None]
    key = rotate(key, cos[:, :, :S], sin[:, :, :S])[:, 0]
    query = rotate(query, cos[:, :, S:], sin[:, :, S:])[:, 0]
    log_p = (attention.scale * query @ key.transpose(1, 2)).float().log_softmax(-1)  # (B, L, S)
    on_target = log_p[asked].masked_fill(~looks[asked], -torch.inf)
    return -on_target.logsumexp(-1).mean()


def end_worth(prompt: PromptIds) -> float:
    """Weight of an answer's end token."""
    return END_WORTH if prompt.task in ("detect", "segment") else 1.0


def token_loss(
    model: PaliGemma, hidden: Tensor, wanted: Tensor, worth: Tensor, vocabulary: DemoVocabulary,
    spread: float,
) -> dict[str, Tensor]:  # fmt: skip
    """Mean cross-entropy of the wanted ids (−100: not asked), each of its own `worth`.

    Location labels are spread. Returns "text" (the loss to minimise) and, for the log, its parts
    "loc", "seg", "word".
    """
    asked = wanted >= 0
    wanted, worth = wanted[asked], worth[asked]
    log_p = model.logits(hidden[asked]).float().log_softmax(-1)
    loss = -log_p.gather(1, wanted[:, None])[:, 0]
    is_loc = (wanted >= vocabulary.loc_start) & (wanted < vocabulary.loc_start + 1024)
    is_seg = (wanted >= vocabulary.seg_start) & (wanted < vocabulary.seg_start + 128)
    if spread > 0 and is_loc.any():
        loss = loss.masked_scatter(
            is_loc,
            _spread_loss(log_p[is_loc], wanted[is_loc] - vocabulary.loc_start, vocabulary, spread),
        )
    weight = worth * torch.where(is_seg, SEG_WEIGHT, torch.where(is_loc, 1.0, WORD_WEIGHT))
    parts = {"text": (loss * weight).sum() / weight.sum()}
    for name, chosen in (("loc", is_loc), ("seg", is_seg), ("word", ~is_loc & ~is_seg)):
        if chosen.any():
            parts[name] = loss[chosen].mean()
    return parts


def _spread_loss(log_p: Tensor, bins: Tensor, vocabulary: DemoVocabulary, spread: float) -> Tensor:
    """log_p: (N, V); bins: (N,) taught bins. Cross-entropy against a bell over the next bins."""
    choices = torch.from_numpy(LOC_CHOICES)
    at = torch.searchsorted(choices, bins)
    steps = torch.arange(-REACH, REACH + 1)
    near = (at[:, None] + steps).clamp(0, len(choices) - 1)
    bell = torch.exp(-0.5 * ((near - at[:, None]) / spread) ** 2)
    bell = bell * ((at[:, None] + steps) == near)
    picked = log_p.gather(1, vocabulary.loc_start + choices[near])
    return -(bell / bell.sum(1, keepdim=True) * picked).sum(1)
