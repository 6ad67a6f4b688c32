"""The engine against transformers, on random small models of both families.

    python benchmarks/parity.py [--configs 60] [--seed N] [--out docs/parity.md]

Each configuration is drawn anew (widths, heads, key/value heads, layers, head_dim, resolution,
vocabulary padding, soft-caps, sliding window, tied or own head, pictures a prompt), filled with
random weights, and run by both. The tests of `tests/test_parity_*.py` call the same functions.
"""

import argparse
import math
import os
import platform
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image, ImageDraw
from torch import Tensor
from tqdm import tqdm
from transformers import PaliGemmaConfig as ReferenceConfig
from transformers import PaliGemmaForConditionalGeneration as Reference
from transformers import PaliGemmaProcessor, PreTrainedTokenizerFast
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from vlmtasks.engine.checkpoints import build_network
from vlmtasks.engine.config import GemmaConfig, PaliGemmaConfig, SiglipVisionConfig
from vlmtasks.engine.decoding import decode_steps
from vlmtasks.engine.decoding_options import DecodingOptions
from vlmtasks.engine.key_names import rename_all
from vlmtasks.engine.paligemma import PaliGemma
from vlmtasks.engine.pixels import PixelConfig, to_pixels
from vlmtasks.engine.prompt_ids import PaddedIds, pad_ids, prompt_ids
from vlmtasks.engine.random_weights import draw_weights
from vlmtasks.engine.token_choice import TokenLimits
from vlmtasks.engine.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER = (
    Path(os.environ.get("VLMTASKS_TEST_DATA", ROOT.parent / "shared" / "data"))
    / "gemma-tokenizer"
    / "tokenizer.json"
)
NEW_TOKENS = 40
BOUND = 1e-4
BFLOAT16_BOUND = 1.5  # times the reference's own error
NEAR_TIE = 2 * BOUND  # two logits this close may come out in either order


@dataclass(frozen=True)
class Case:
    """One configuration with its weights' seed and a prompt for it.

    text_ids: the prompt behind the image tokens. pictures: pictures of the prompt.
    """

    config: PaliGemmaConfig
    seed: int
    text_ids: tuple[int, ...]
    pictures: int

    @property
    def ids(self) -> list[int]:
        tokens = self.pictures * self.config.vision_config.num_image_tokens
        return [self.config.image_token_index] * tokens + list(self.text_ids)


def draw_case(seed: int, index: int) -> Case:
    """The case `index` of a run; families alternate."""
    rng = random.Random(f"{seed}-{index}")
    vision_heads = rng.choice((1, 2, 3, 4))
    patch = rng.choice((2, 4, 7, 8))
    vision = SiglipVisionConfig(
        hidden_size=vision_heads * rng.choice((4, 8, 12, 18)),
        intermediate_size=rng.randint(20, 90),
        num_hidden_layers=rng.randint(1, 3),
        num_attention_heads=vision_heads,
        image_size=patch * rng.randint(2, 5) + rng.choice((0, 0, 1)),
        patch_size=patch,
        layer_norm_eps=rng.choice((1e-6, 1e-5)),
        hidden_act=rng.choice(("gelu_pytorch_tanh", "gelu_pytorch_tanh", "gelu")),
    )
    words = rng.randint(60, 300)
    config = PaliGemmaConfig(
        vision_config=vision,
        text_config=_draw_decoder(rng, index, words + 1 + rng.randint(0, 63)),
        image_token_index=words,
        tie_word_embeddings=rng.random() < 0.7,
    )
    text = tuple(rng.randrange(words) for _ in range(rng.randint(2, 12)))
    return Case(config, rng.getrandbits(32), text, rng.choice((1, 1, 1, 2, 3)))


def _draw_decoder(rng: random.Random, index: int, vocab_size: int) -> GemmaConfig:
    groups = rng.choice((1, 2, 3))
    heads = groups * rng.choice((1, 2, 4))
    head_dim = rng.choice((4, 8, 16, 32))
    is_gemma2 = index % 2 == 1
    extra = {}
    if is_gemma2:
        extra = {
            "query_pre_attn_scalar": head_dim * rng.choice((4, 8, 9, 32)) // 8,
            "attn_logit_softcapping": rng.choice((5.0, 50.0, None)),
            "final_logit_softcapping": rng.choice((2.0, 30.0, None)),
            "sliding_window": rng.choice((3, 7, 20, 40, 4096)),
        }
    return GemmaConfig(
        model_type="gemma2" if is_gemma2 else "gemma",
        vocab_size=vocab_size,
        hidden_size=heads * rng.randint(-(-16 // heads), 96 // heads),
        intermediate_size=rng.randint(20, 120),
        num_hidden_layers=rng.randint(1, 4),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=head_dim,
        max_position_embeddings=1024,
        rms_norm_eps=rng.choice((1e-6, 1e-5)),
        rope_theta=rng.choice((10000.0, 500.0)),
        **extra,
    )


def reference_model(case: Case) -> Reference:
    """transformers' model in float32 and eval mode, with drawn weights."""
    settings = {**case.config.to_dict(), "attn_implementation": "eager"}
    config = ReferenceConfig(**settings)
    torch.manual_seed(case.seed)
    model = Reference(config).eval().requires_grad_(False)
    draw_weights(model, case.seed)
    return model


def our_model(
    reference: Reference, config: PaliGemmaConfig, dtype: torch.dtype = torch.float32
) -> PaliGemma:
    """Our network with the reference's weights, through the loader."""
    state = reference.state_dict()
    tensors = {name: state[key] for name, key in rename_all(state).items()}
    if config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return build_network(config, tensors, torch.device("cpu"), dtype, "the reference")


def draw_pixels(case: Case) -> Tensor:
    side = case.config.vision_config.image_size
    generator = torch.Generator().manual_seed(case.seed + 1)
    return torch.rand(case.pictures, 3, side, side, generator=generator) * 2 - 1


@torch.inference_mode()
def compare_stages(case: Case, reference: Reference, ours: PaliGemma) -> dict[str, float]:
    """Largest absolute difference of each stage, each fed with the same input."""
    pixels = draw_pixels(case)
    theirs = reference.model
    features = theirs.vision_tower(pixels).last_hidden_state
    generator = torch.Generator().manual_seed(case.seed + 2)
    ids = torch.randint(case.config.image_token_index, (1, 50), generator=generator)
    # Text alone, causal: this is where a tiny sliding window cuts.
    hidden = theirs.language_model(input_ids=ids).last_hidden_state
    window = case.config.text_config.sliding_window
    steps = torch.arange(50)
    causal = (steps[:, None] >= steps)[None, None]
    near = None if window is None else causal & (steps > steps[:, None] - window)
    ours_hidden = ours.language_model(ours.language_model.embed(ids), steps[None], causal, near)
    return {
        "vision tower": gap(ours.vision_tower(pixels), features),
        "projector": gap(
            ours.multi_modal_projector(features), theirs.multi_modal_projector(features)
        ),
        "decoder": gap(ours_hidden, hidden),
        "logits": gap(ours.logits(hidden), _reference_logits(reference, hidden)),
    }


def _reference_logits(reference: Reference, hidden: Tensor) -> Tensor:
    """The head as transformers' forward applies it."""
    logits = reference.lm_head(hidden)
    cap = getattr(reference.config.text_config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


@dataclass(frozen=True)
class Trace:
    """What a model said: logits (T, V) of each step and the greedy ids (T,)."""

    logits: Tensor
    ids: list[int]


def reference_trace(case: Case, reference: Reference) -> Trace:
    """transformers' own `generate`, greedy; <image> is suppressed, as our engine does."""
    ids = torch.tensor([case.ids])
    out = reference.generate(  # pyright: ignore[reportAttributeAccessIssue]
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        token_type_ids=torch.zeros_like(ids),
        pixel_values=draw_pixels(case).to(reference.dtype),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        suppress_tokens=[case.config.image_token_index],
        output_logits=True,
        return_dict_in_generate=True,
    )
    return Trace(torch.cat(out.logits), out.sequences[0, ids.shape[1] :].tolist())


@torch.inference_mode()
def our_logits(case: Case, ours: PaliGemma, forced: Sequence[int]) -> Tensor:
    """Our logits (T, V) along the ids `forced` (T,): prefill, then one step a token."""
    prompt = pad_ids([case.ids], 0, "cpu")
    result = ours.prefill(prompt.ids, prompt.valid, image_tokens(case, ours), 1000)
    hidden, position = result.hidden, result.next_positions
    rows = [ours.logits(hidden)]
    for token in forced[:-1]:
        hidden = ours.decode(torch.tensor([token]), position, result.cache)
        position = position + 1
        rows.append(ours.logits(hidden))
    return torch.cat(rows)


@torch.inference_mode()
def image_tokens(case: Case, ours: PaliGemma) -> list[Tensor]:
    return [ours.encode_image(draw_pixels(case)).flatten(0, 1)]


def our_greedy(case: Case, ours: PaliGemma, prompts: PaddedIds, images: list[Tensor]) -> list:
    """The greedy ids of each row, through the engine's own decoding."""
    rows = torch.arange(case.config.text_config.vocab_size)
    limits = TokenLimits(frozenset(), rows != case.config.image_token_index)
    options = DecodingOptions(NEW_TOKENS)
    answers: list[list[int]] = [[] for _ in range(len(prompts.ids))]
    for steps in decode_steps(ours, prompts, images, options, limits):
        for step in steps:
            answers[step.row].append(step.token_id)
    return answers


def same_greedy(ours: Sequence[int], theirs: Trace, image_id: int) -> bool:
    """Equal ids, up to the first step where the reference has two best tokens, if any."""
    logits = theirs.logits.float().clone()
    logits[:, image_id] = -math.inf
    best = logits.topk(2).values
    for step, (mine, their) in enumerate(zip(ours, theirs.ids, strict=True)):
        if float(best[step, 0] - best[step, 1]) < NEAR_TIE:
            return True
        if mine != their:
            return False
    return True


@torch.inference_mode()
def compare_ragged(case: Case, ours: PaliGemma) -> dict[str, float]:
    """Rows of different length in one batch against the same rows alone, both padding sides."""
    tokens = image_tokens(case, ours)[0]
    start = case.pictures * case.config.vision_config.num_image_tokens
    rows = [case.ids, case.ids[:-1], case.ids[: start + 1], case.ids + case.ids[start:]]
    alone = [_last_logits(ours, [row], [tokens], "right") for row in rows]
    return {
        f"ragged, {side} padding": gap(
            _last_logits(ours, rows, [tokens] * len(rows), side), torch.cat(alone, 1)
        )
        for side in ("left", "right")
    }


def _last_logits(
    ours: PaliGemma, rows: Sequence[Sequence[int]], tokens: list[Tensor], side: str
) -> Tensor:
    """Logits (3, B, V) of the prompt and of two decode steps with fixed tokens."""
    prompts = pad_ids(rows, 0, "cpu", side)
    result = ours.prefill(prompts.ids, prompts.valid, tokens, prompts.ids.shape[1] + 2)
    logits = [ours.logits(result.hidden)]
    for step, token in enumerate((5, 7)):
        ids = torch.full((len(rows),), token)
        hidden = ours.decode(ids, result.next_positions + step, result.cache)
        logits.append(ours.logits(hidden))
    return torch.stack(logits)


def compare_bfloat16(seed: int, cases: int) -> float:
    """Mean distance of our bfloat16 logits from float32, as a multiple of transformers' own."""
    distances = [_bfloat16_distances(draw_case(seed, index)) for index in range(cases)]
    return sum(ours for ours, _ in distances) / sum(theirs for _, theirs in distances)


def _bfloat16_distances(case: Case) -> tuple[float, float]:
    reference = reference_model(case)
    exact = reference_trace(case, reference).logits[:1]
    half: Reference = reference.bfloat16()
    ours = our_logits(case, our_model(half, case.config, torch.bfloat16), [0])
    theirs = reference_trace(case, half).logits[:1]
    return (
        float((ours.float() - exact).abs().mean()),
        float((theirs.float() - exact).abs().mean()),
    )


def gap(mine: Tensor, theirs: Tensor) -> float:
    if mine.shape != theirs.shape:
        raise ValueError(f"shapes differ: {tuple(mine.shape)}, {tuple(theirs.shape)}")
    return float((mine.float() - theirs.float()).abs().max())


def draw_pictures(seed: int, count: int) -> list[Image.Image]:
    """RGB pictures of many shapes: noise, gradients and drawings, 1 to 700 pixels a side."""
    rng = np.random.default_rng(seed)
    pictures = []
    for index in range(count):
        width, height = (int(side) for side in rng.integers(1, 700, 2))
        if index % 3 == 0:
            array = rng.integers(0, 256, (height, width, 3), np.uint8)
        else:
            ramp = np.linspace(0, 255, width)[None, :, None] * rng.random((height, 1, 3))
            array = ramp.astype(np.uint8)
        picture = Image.fromarray(array)
        if index % 3 == 2:
            draw = ImageDraw.Draw(picture)
            draw.ellipse((width // 4, height // 4, width, height), fill=(250, 20, 90))
        pictures.append(picture)
    return pictures


def compare_pixels(pictures: Sequence[Image.Image], side: int) -> float:
    """Largest difference from transformers' PIL image processor, in grey levels of 0..255."""
    processor = SiglipImageProcessorPil(
        size={"height": side, "width": side}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    theirs = np.stack(processor(list(pictures))["pixel_values"])
    ours = to_pixels(pictures, PixelConfig(side)).numpy()
    return float(np.abs(ours - theirs).max() * 127.5)


# One prompt and more a language: captions, questions, lists, marks, digits, emoji, rare scripts.
PROMPTS = (
    ("en", "caption en"),
    ("en", "detect cat ; dog ; stop sign"),
    ("en", "answer en How many red cars are parked on the left side?"),
    ("en", "segment the person's left hand (raised)"),
    ("en", "describe en, with 3.14 & 1,000,000 — and 🙂👩‍👩‍👧"),
    ("en", "Question: what is it?\nOptions: (A) a cat  (B) a dog\nAnswer:"),
    ("de", "caption de"),
    ("de", "answer de Wie viele Äpfel hängen größtenteils über der Straße?"),
    ("fr", "answer fr Où est-ce que l'élève s'est assis ?"),
    ("es", "answer es ¿Cuántos niños están jugando en la montaña?"),
    ("pt", "answer pt Quantas maçãs há no chão, não contando as verdes?"),
    ("ru", "answer ru Сколько кошек сидит на подоконнике?"),
    ("zh", "answer zh 图片里有多少只猫？"),
    ("ja", "answer ja 左側の人は何を持っていますか？"),
    ("ko", "answer ko 사진에 고양이가 몇 마리 있나요?"),
    ("ar", "answer ar كم عدد القطط في الصورة؟"),
    ("hi", "answer hi तस्वीर में कितनी बिल्लियाँ हैं?"),
    ("th", "answer th ในภาพมีแมวกี่ตัว"),
    ("tr", "answer tr Fotoğrafta kaç çocuk güneşin altında oturuyor?"),
    ("el", "caption el"),
    ("he", "answer he כמה חתולים יש בתמונה?"),
)


def reference_processor(
    tokenizer: tokenizers.Tokenizer, side: int, patch: int
) -> PaliGemmaProcessor:
    """transformers' processor over `paligemma_tokenizer`."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )
    pictures = SiglipImageProcessorPil(
        size={"height": side, "width": side}, image_seq_length=(side // patch) ** 2
    )
    return PaliGemmaProcessor(pictures, fast)


def paligemma_tokenizer(tokenizer_file: Path) -> tokenizers.Tokenizer:
    """Gemma's tokenizer with 1024 loc, 128 seg and <image>, as PaliGemma checkpoints hold it."""
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    plain = [f"<loc{index:04d}>" for index in range(1024)]
    plain += [f"<seg{index:03d}>" for index in range(128)]
    tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in plain])
    tokenizer.add_special_tokens([tokenizers.AddedToken("<image>", normalized=False, special=True)])
    return tokenizer


def compare_token_ids(tokenizer_file: Path) -> int:
    """How many of PROMPTS get other ids than from transformers' processor."""
    tokenizer = paligemma_tokenizer(tokenizer_file)
    processor = reference_processor(tokenizer, 28, 14)
    ours = Tokenizer(tokenizer)
    picture = Image.new("RGB", (5, 5))
    different = 0
    for _, prompt in PROMPTS:
        theirs = processor(images=picture, text=prompt)["input_ids"][0]
        different += list(theirs) != prompt_ids(ours, prompt, 4, 257152)
    return different


@dataclass
class Row:
    """One line of the table: what, how often, the largest difference."""

    what: str
    allowed: float
    count: int = 0
    largest: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.largest = max(self.largest, value)


@dataclass
class Table:
    """All lines, in order of their first appearance."""

    rows: dict[str, Row] = field(default_factory=dict)

    def add(self, what: str, value: float, allowed: float = BOUND) -> None:
        self.rows.setdefault(what, Row(what, allowed)).add(value)


def compare_case(case: Case, table: Table) -> None:
    """All comparisons of one configuration, into the table."""
    reference = reference_model(case)
    ours = our_model(reference, case.config)
    for stage, value in compare_stages(case, reference, ours).items():
        table.add(f"{stage} alone", value)
    trace = reference_trace(case, reference)
    logits = our_logits(case, ours, trace.ids)
    table.add("whole model, logits of the prompt", gap(logits[0], trace.logits[0]))
    table.add(
        f"whole model, logits of decode steps 1–{NEW_TOKENS - 1}", gap(logits[1:], trace.logits[1:])
    )
    prompt = pad_ids([case.ids], 0, "cpu")
    (ids,) = our_greedy(case, ours, prompt, image_tokens(case, ours))
    same = same_greedy(ids, trace, case.config.image_token_index)
    table.add(f"{NEW_TOKENS} greedy ids, answers that differ", float(not same), 0)
    for what, value in compare_ragged(case, ours).items():
        table.add(what, value)


def report(table: Table, seed: int, configs: int) -> str:
    """The Markdown of docs/parity.md."""
    lines = [
        "# Parity with transformers",
        "",
        "Written by `python benchmarks/parity.py`; the same comparisons run in `make test` with a",
        "fresh seed each time. Both sides get the same random weights. Differences are absolute,",
        "the largest over all numbers of all configurations; float32 unless a line says otherwise.",
        "",
        f"{configs} configurations, half PaliGemma 1 and half PaliGemma 2, seed {seed}; "
        f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}.",
        "",
        "| compared | times | largest difference | bound |",
        "|---|---|---|---|",
    ]
    for row in table.rows.values():
        lines.append(f"| {row.what} | {row.count} | {row.largest:.2g} | {row.allowed:g} |")
    return "\n".join([*lines, "", NOTES])


NOTES = """\
Drawn anew for each configuration: widths, query and key/value heads, head_dim (independent of
width / heads), layers, patch and picture size, norm epsilons, RoPE base, vocabulary padding, tied
or own head, one to three pictures a prompt, prompt length; for PaliGemma 2 also
query_pre_attn_scalar, both soft-caps (or none) and a sliding window down to 3 tokens.

- Pixels: against transformers' PIL image processor, in grey levels of 0..255.
- Token ids: against transformers' PaliGemmaProcessor over Gemma's real tokenizer, in sixteen
  languages.
- The decoder alone runs 50 tokens of causal text, where the sliding window cuts. The whole model
  runs against transformers' own `generate`.
- Greedy ids are compared up to a step at which the reference's two best logits are closer than
  2e-4, where either is right.
- Ragged: four rows of different length in one batch, against each of them alone.
- bfloat16: mean distance of the logits from the float32 reference, ours as a multiple of
  transformers'. Single numbers have no bound: two right orders of summation differ by more.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the engine with transformers.")
    parser.add_argument("--configs", type=int, default=60, help="how many configurations")
    parser.add_argument("--seed", type=int, default=None, help="default: a fresh one")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "parity.md")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="Gemma's tokenizer.json")
    arguments = parser.parse_args()
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    table = Table()
    pictures = draw_pictures(seed, 60)
    table.add("pixels of 60 pictures, grey levels", compare_pixels(pictures, 224), 1)
    if arguments.tokenizer.is_file():
        table.add(
            f"token ids of {len(PROMPTS)} prompts, prompts that differ",
            compare_token_ids(arguments.tokenizer),
            0,
        )
    for index in tqdm(range(arguments.configs), desc=f"seed {seed}"):
        compare_case(draw_case(seed, index), table)
    cases = min(arguments.configs, 20)
    ratio = compare_bfloat16(seed, cases)
    table.add(f"bfloat16, mean error of {cases} as a multiple of theirs", ratio, BFLOAT16_BOUND)
    arguments.out.write_text(report(table, seed, arguments.configs), "utf-8")


if __name__ == "__main__":
    main()
