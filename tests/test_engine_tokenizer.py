import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_checkpoints import LOCS, SEGS, tiny_tokenizer, tiny_tokenizer_json
from tokenizers import AddedToken
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.models import BPE

from vlmtasks.engine.streaming import TextStream
from vlmtasks.engine.tokenizer import Tokenizer
from vlmtasks.errors import CheckpointError, MissingFileError

TOKENIZER = Tokenizer(tiny_tokenizer())
MARKERS = ["<image>", "<eos>", "<bos>", "<pad>", "<unk>", "<loc0001>", "<loc1023>", "<seg127>"]


def test_ids_come_from_the_vocabulary():
    raw = tiny_tokenizer()
    assert (TOKENIZER.pad_id, TOKENIZER.eos_id, TOKENIZER.bos_id) == (0, 1, 2)
    assert TOKENIZER.newline_id == raw.token_to_id("\n")
    assert TOKENIZER.loc_start == raw.token_to_id("<loc0000>")
    assert TOKENIZER.seg_start == raw.token_to_id("<seg000>")
    assert TOKENIZER.image_id == raw.token_to_id("<image>") == TOKENIZER.size - 1
    assert TOKENIZER.end_ids == {0, 1, 2}


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("text", ["{}", "what does {} mean?", "{}{}", "<{}>", "{} cat\n", "<<{}"])
def test_markers_in_user_text_are_characters(marker, text):
    text = text.replace("{}", marker)

    ids = TOKENIZER.encode(text)

    special = {TOKENIZER.image_id, *TOKENIZER.end_ids, 3}
    assert not special & set(ids)
    assert max(ids) < TOKENIZER.loc_start
    assert TOKENIZER.decode(ids) == text


@given(st.lists(st.sampled_from([*MARKERS, "<", ">", "loc0001>", "a", " ", "\n", "é", "猫"])))
def test_any_text_comes_back_without_special_ids(pieces):
    text = "".join(pieces)

    ids = TOKENIZER.encode(text)

    assert all(3 < i < TOKENIZER.loc_start for i in ids)
    assert TOKENIZER.decode(ids) == text


def test_location_tokens_on_request():
    ids = TOKENIZER.encode("<loc0000><loc1023> <seg001><image>", location_tokens=True)

    assert ids[:2] == [TOKENIZER.loc_start, TOKENIZER.loc_start + 1023]
    assert max(ids[2:]) < TOKENIZER.loc_start


@pytest.mark.parametrize("text", ["<loc1024>", "<loc12>", "<LOC0001>", "<loc00001>"])
def test_what_is_no_location_token_stays_text(text):
    ids = TOKENIZER.encode(text, location_tokens=True)

    assert max(ids) < TOKENIZER.loc_start
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], ""),
        ([2, 1, 0, 3], ""),
        ([TOKENIZER.size - 1], ""),  # <image>
        ([TOKENIZER.size, TOKENIZER.size + 5, 10**9, -1], ""),
        ([TOKENIZER.loc_start + 7, TOKENIZER.seg_start + 9, 1], "<loc0007><seg009>"),
    ],
    ids=["nothing", "end tokens", "image", "outside", "loc and seg"],
)
def test_decode(ids, text):
    assert TOKENIZER.decode(ids) == text


def test_location_tokens_that_the_file_calls_special_are_text():
    data = json.loads(tiny_tokenizer_json())
    for token in data["added_tokens"]:
        token["special"] = True
    tokenizer = Tokenizer(HuggingFaceTokenizer.from_str(json.dumps(data)))
    ids = [tokenizer.loc_start + 7, 3, tokenizer.seg_start]
    assert tokenizer.decode(ids) == "<loc0007><seg000>"
    assert tokenizer.encode("<loc0007>", location_tokens=True) == ids[:1]
    assert max(tokenizer.encode("<loc0007>")) < tokenizer.loc_start


def test_decode_keeps_blanks():
    ids = [TOKENIZER.loc_start, *TOKENIZER.encode(" cat ; "), TOKENIZER.loc_start + 1]
    assert TOKENIZER.decode(ids) == "<loc0000> cat ; <loc0001>"


@pytest.mark.parametrize("text", ["a 猫 sits", "🙂", "é猫", "<loc0001> cat", ""])
def test_stream_adds_up(text):
    stream = TextStream(TOKENIZER)
    pieces = [stream.add(i) for i in TOKENIZER.encode(text, location_tokens=True)]

    assert "".join(pieces) + stream.finish() == text
    assert not any("�" in piece for piece in pieces)


@given(st.lists(st.integers(0, TOKENIZER.size - 1), max_size=40))
def test_stream_of_any_ids_equals_decode(ids):
    stream = TextStream(TOKENIZER)
    assert "".join(map(stream.add, ids)) + stream.finish() == TOKENIZER.decode(ids)


def test_file_is_read(tmp_path):
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_file(tmp_path / "tokenizer.json").size == TOKENIZER.size


def test_settings_of_the_file_cut_and_pad_nothing(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = Tokenizer.from_file(tmp_path / "tokenizer.json").encode("detect cat ; dog")
    assert ids == TOKENIZER.encode("detect cat ; dog")
    assert len(ids) > 3


def test_no_file(tmp_path):
    with pytest.raises(MissingFileError, match=r"holds no tokenizer\.json$"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


def test_sentencepiece_alone_says_how_to_convert(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(MissingFileError, match="convert it once"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": {"type": "BPE"}}', "\x00"])
def test_damaged_file(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="not a readable tokenizer"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


def _bare(*extra: str) -> HuggingFaceTokenizer:
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "\n", "a", "b"]
    tokenizer = HuggingFaceTokenizer(
        BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>")
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in extra])
    return tokenizer


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ((), "no token <loc0000>.*bare Gemma"),
        (LOCS, "no token <seg000>"),
        (LOCS[:-1], "no token <loc1023>"),
        ((*LOCS[:5], "x", *LOCS[5:], *SEGS), "<loc0005> has id 13, expected 12"),
        ((*LOCS, *reversed(SEGS)), "<seg001> has id .* must be consecutive"),
    ],
    ids=["bare", "no seg", "one short", "gap", "reversed"],
)
def test_vocabulary_that_is_no_paligemma(extra, message):
    with pytest.raises(CheckpointError, match=message):
        Tokenizer(_bare(*extra))


def test_newline_must_be_one_token():
    tokenizer = HuggingFaceTokenizer(
        BPE({"<pad>": 0, "<eos>": 1, "<bos>": 2, "a": 3}, [], unk_token=None)
    )
    with pytest.raises(CheckpointError, match="encodes a newline as 0 ids"):
        Tokenizer(tokenizer)
