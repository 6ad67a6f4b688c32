"""The reported problems of prompts (T…) that show in the ids and in the network."""

import json
from dataclasses import replace

import pytest
import torch
from tiny_checkpoints import (
    save_folder,
    tiny_network,
    tiny_picture,
    tiny_tokenizer,
    tiny_tokenizer_json,
)
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.processors import TemplateProcessing

from vlmtasks.datasets.loss_layout import training_row
from vlmtasks.engine import Engine
from vlmtasks.engine.prompt_ids import check_length, pad_ids, prompt_ids
from vlmtasks.engine.tokenizer import Tokenizer
from vlmtasks.errors import PromptError

N = 16
IMAGE = tiny_tokenizer().token_to_id("<image>")


def adding_bos() -> HuggingFaceTokenizer:
    """As Gemma's file: the tokenizer itself would put <bos> before every text."""
    tokenizer = HuggingFaceTokenizer.from_str(tiny_tokenizer_json())
    tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    return tokenizer


def with_newline_pieces() -> HuggingFaceTokenizer:
    """A vocabulary that has one piece for two newlines, as Gemma's."""
    data = json.loads(tiny_tokenizer_json())
    data["model"]["vocab"]["\n\n"] = 5000
    data["model"]["merges"].append(["\n", "\n"])
    return HuggingFaceTokenizer.from_str(json.dumps(data))


TOKENIZERS = {"plain": tiny_tokenizer(), "adds bos": adding_bos()}


def ids_of(prefix: str, tokenizer: str = "plain", **options) -> list[int]:
    return prompt_ids(Tokenizer(TOKENIZERS[tokenizer]), prefix, N, IMAGE, **options)


@pytest.mark.parametrize(
    "prefix", ["caption en", "caption en\n", "caption en\r\n", "caption en\n\n\r\n"]
)
def test_t01_one_newline_ends_the_prompt(prefix):
    newline = tiny_tokenizer().token_to_id("\n")
    ids = ids_of(prefix)
    assert ids == ids_of("caption en")
    assert ids[-1] == newline
    assert ids.count(newline) == 1


def test_t01_newline_never_merges_with_the_prefix():
    tokenizer = Tokenizer(with_newline_pieces())
    ids = prompt_ids(tokenizer, "a\n", N, IMAGE)
    assert ids[-1] == tokenizer.newline_id
    assert 5000 not in ids


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_t03_one_bos_behind_the_image_tokens(tokenizer):
    ids = ids_of("detect cat", tokenizer)
    assert ids == ids_of("detect cat")
    assert ids.count(2) == 1
    assert ids[N] == 2
    assert 1 not in ids


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_t03_suffix_has_no_bos(tokenizer):
    suffix = Tokenizer(TOKENIZERS[tokenizer]).encode(
        "<loc0260><loc0419><loc0292><loc0633> cat", location_tokens=True
    )
    assert suffix[0] == tiny_tokenizer().token_to_id("<loc0260>")
    assert 2 not in suffix


@pytest.mark.parametrize("prefix", ["<image>caption en", "what does <image> mean?", "<image>" * 5])
@pytest.mark.parametrize("location_tokens", [False, True])
def test_t05_image_in_the_text_is_no_picture(prefix, location_tokens):
    ids = ids_of(prefix, location_tokens=location_tokens)
    assert ids.count(IMAGE) == N
    row = training_row(ids, [7, 8], eos_id=1)
    assert len(row.labels) == len(row.input_ids) == len(ids) + 3
    assert row.labels == [-100] * len(ids) + [7, 8, 1]


PROMPTS = ["caption en", "answer en how many red cars are parked on the left side?"]


@pytest.mark.parametrize("model_type", ["gemma", "gemma2"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_t08_padding_changes_nothing(model_type, side):
    network = tiny_network(model_type)
    rows = [ids_of(prompt) for prompt in PROMPTS]
    images = [torch.randn(N, 128, generator=torch.Generator().manual_seed(i)) for i in (0, 1)]

    prompts = pad_ids(rows, 0, "cpu", side)
    with torch.inference_mode():
        batch = network.prefill(prompts.ids, prompts.valid, images, prompts.ids.shape[1])
        for index, row in enumerate(rows):
            one = pad_ids([row], 0, "cpu")
            alone = network.prefill(one.ids, one.valid, [images[index]], len(row))
            gap = network.logits(batch.hidden[index]) - network.logits(alone.hidden[0])
            assert gap.abs().max() < 1e-4
            assert batch.next_positions[index] == alone.next_positions[0] == len(row)
            first = batch.cache.valid[index].nonzero()[0]
            assert batch.cache.positions[index, first] == 0


def test_t10_prompt_longer_than_the_context(tmp_path):
    engine = Engine.load(save_folder(tmp_path, tiny_network()), device="cpu")
    images = engine.encode_image([tiny_picture()])
    prompt = "Tell me something. " * 4000

    with pytest.raises(ValueError, match=r"16 image tokens .* 20 new tokens") as caught:
        engine.generate(images, [prompt], max_new_tokens=20)
    assert isinstance(caught.value, PromptError)
    assert f"+ {len(ids_of(prompt)) - N} prompt tokens" in str(caught.value)
    assert "exceed the 512 positions" in str(caught.value)


def test_t10_a_prompt_that_just_fits(tmp_path):
    config = tiny_network().config
    network = tiny_network()
    network.config = replace(
        config, text_config=replace(config.text_config, max_position_embeddings=40)
    )
    engine = Engine.load(save_folder(tmp_path, network), device="cpu")
    images = engine.encode_image([tiny_picture()])
    prompt = "e" * 12  # 16 + 1 + 12 + 1 = 30 tokens

    engine.generate(images, [prompt], max_new_tokens=10)
    with pytest.raises(PromptError, match="= 41 exceed the 40"):
        engine.generate(images, [prompt], max_new_tokens=11)
    check_length(16, 14, 10, 40)


def test_half_a_character_is_refused():
    with pytest.raises(PromptError, match="holds half a character"):
        ids_of("caption \ud83d")


@pytest.mark.parametrize("prefix", [None, 3, b"caption en", ["caption en"]])
def test_a_prompt_is_a_string(prefix):
    with pytest.raises(PromptError, match="must be a string"):
        ids_of(prefix)
