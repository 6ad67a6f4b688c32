"""The demo's tokenizer: ids, whole words, spelled lettering, and what transformers makes of it."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer

from vlmtasks.demo.classes import domain_words
from vlmtasks.demo.tokenizer import added_tokens, build_tokenizer, save_tokenizer, text_tokens

PRINTABLE = "".join(chr(code) for code in range(32, 127)) + "\n"
TOKENIZER = build_tokenizer()


@pytest.fixture
def tokenizer() -> Tokenizer:
    return TOKENIZER


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(path)
    return path


def test_special_tokens_come_first_and_added_ones_last(tokenizer):
    assert [tokenizer.token_to_id(t) for t in ("<pad>", "<eos>", "<bos>", "<unk>")] == [0, 1, 2, 3]
    loc = len(text_tokens())
    expected = {"<loc0000>": loc, "<loc1023>": loc + 1023, "<seg000>": loc + 1024}
    expected |= {"<seg127>": loc + 1151, "<image>": loc + 1152}
    assert {token: tokenizer.token_to_id(token) for token in expected} == expected
    assert tokenizer.get_vocab_size() == loc + 1153 <= 1800
    assert len(added_tokens()) == 1153


@pytest.mark.parametrize("word", domain_words())
def test_domain_word_is_one_token_with_and_without_blank(tokenizer, word):
    assert tokenizer.encode(word).tokens == [word]
    assert tokenizer.encode(f" {word}").tokens == [f"▁{word}"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("detect cat ; dog", ["detect", "▁cat", "▁;", "▁dog"]),
        ("answer en how many cats?", ["answer", "▁en", "▁how", "▁many", "▁cats", "?"]),
        ("a cat, two dogs", ["a", "▁cat", ",", "▁two", "▁dogs"]),
        ("HELLO 12", ["H", "E", "L", "L", "O", "▁", "1", "2"]),
        ("zoo", ["z", "o", "o"]),
        ("cathedral", list("cathedral")),
        ("<loc0001><seg002> cat", ["<loc0001>", "<seg002>", "▁cat"]),
        ("ocr\n", ["ocr", "\n"]),
        ("café", ["c", "a", "f", "<unk>"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tokens_of(tokenizer, text, tokens):
    assert tokenizer.encode(text).tokens == tokens


@given(st.text(alphabet=PRINTABLE, max_size=60))
def test_ascii_survives_encoding_and_decoding(text):
    ids = TOKENIZER.encode(text).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


@given(st.text(alphabet=string.ascii_uppercase + string.digits, min_size=1, max_size=12))
def test_lettering_is_spelled_character_by_character(text):
    assert TOKENIZER.encode(text).tokens == list(text)


def test_decoding_keeps_loc_and_seg_but_not_the_special_tokens(tokenizer):
    text = "<bos><loc0100><seg003> cat<eos>"
    assert tokenizer.decode(tokenizer.encode(text).ids) == "<loc0100><seg003> cat"


def test_transformers_reads_the_folder_as_the_same_tokenizer(folder, tokenizer):
    transformers = pytest.importorskip(
        "transformers", reason="pip install 'vlmtasks[reference]' to compare with it"
    )
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    for text in ("segment key ; guitar", "two cats and OIL 7", "<loc0009> x"):
        ids = loaded(text, add_special_tokens=False)["input_ids"]
        assert ids == tokenizer.encode(text).ids
        assert loaded.decode(ids) == text


def test_transformers_processor_builds_the_prompt(folder, tokenizer):
    transformers = pytest.importorskip(
        "transformers", reason="pip install 'vlmtasks[reference]' to compare with it"
    )
    processor = transformers.PaliGemmaProcessor.from_pretrained(folder)
    picture = Image.new("RGB", (300, 200))
    inputs = processor(images=picture, text="<image>detect cat", return_tensors="np")
    expected = ["<image>"] * 196 + ["<bos>", "detect", "▁cat", "\n"]
    assert inputs["input_ids"][0].tolist() == [tokenizer.token_to_id(t) for t in expected]
    assert inputs["pixel_values"].shape == (1, 3, 224, 224)
