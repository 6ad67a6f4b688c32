import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from word_vocabulary import WordVocabulary

from vlmtasks.errors import InputError
from vlmtasks.tokens import (
    PROBLEMS,
    ParsedObject,
    decode_box,
    encode_box,
    format_object,
    format_objects,
    parse_objects,
)

CAT = "<loc0256><loc0128><loc0768><loc0512>"
DOG = "<loc0100><loc0200><loc0300><loc0400>"
VGA = (640, 480)
CODES = (8, 104, 3, 92, 77, 10, 54, 120, 0, 127, 63, 41, 5, 99, 31, 70)
WORDS = WordVocabulary(" cat", " dog", " stop", " sign;", "<", "loc", "0001", ">", "\\xe7", "\\x8c",
                       "\\xab", "one\ntwo")  # fmt: skip


def test_record_holds_every_field():
    assert parse_objects(f"a {CAT} cat", VGA) == [
        ParsedObject("cat", (256, 128, 768, 512), (80.0, 120.0, 320.0, 360.0), None, None, (2, 42))
    ]


def test_scale_1023_reaches_the_far_edge():
    text = "<loc0000><loc0000><loc1023><loc1023>"
    assert parse_objects(text, VGA)[0].box_xyxy == (0.0, 0.0, 639.375, 479.53125)
    assert parse_objects(text, VGA, scale=1023)[0].box_xyxy == (0.0, 0.0, 640.0, 480.0)


# --- bins ↔ pixels -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("box", "size", "scale", "bins"),
    [
        pytest.param((80, 120, 320, 360), VGA, 1024, (256, 128, 768, 512), id="F01"),
        pytest.param((80, 120, 320, 360), VGA, 1023, (256, 128, 767, 512), id="F01-1023"),
        pytest.param((0, 0, 640, 480), VGA, 1024, (0, 0, 1023, 1023), id="F03-full"),
        pytest.param((75, 60, 175, 110), (100, 80), 1024, (768, 768, 1023, 1023), id="F03-right"),
        pytest.param((-10, -5, 25, 20), (100, 80), 1024, (0, 0, 256, 256), id="F03-left"),
        pytest.param((-9, -9, -1, -1), (100, 80), 1024, (0, 0, 0, 0), id="outside"),
        pytest.param((0.5, 1.5, 2.5, 3.5), (1024, 1024), 1024, (2, 0, 4, 2), id="half-to-even"),
        pytest.param((1e300, 0, 1e300, 1), (10, 10), 1024, (0, 1023, 102, 1023), id="huge"),
    ],
)
def test_encode_box(box, size, scale, bins):
    assert encode_box(box, size, scale) == bins
    assert encode_box(np.array(box, dtype=np.float64), size, scale) == bins


def test_decode_box_is_not_rounded():
    assert decode_box((0, 512, 1023, 513), (2000, 10)) == (1000.0, 0.0, 1001.953125, 9.990234375)
    assert decode_box((500, 500, 501, 501), VGA) == (312.5, 234.375, 313.125, 234.84375)


@pytest.mark.parametrize("scale", [1024, 1023])
def test_f16_round_trip_is_within_half_a_bin(scale):
    generator = random.Random(0)
    for _ in range(20_000):
        x = generator.uniform(0, 1280)
        _, _, _, bin_ = encode_box((0, 0, x, 1), (1280, 720), scale)
        back = decode_box((0, 0, 1, bin_), (1280, 720), scale)[2]
        inside = x <= 1279.375 or scale == 1023
        assert abs(back - x) <= (640 / scale + 1e-9 if inside else 1.25)


@given(
    st.lists(st.integers(0, 1023), min_size=4, max_size=4),
    st.integers(1, 10_000),
    st.integers(1, 10_000),
    st.sampled_from([1024, 1023]),
)
def test_bins_survive_pixels(bins, width, height, scale):
    y0, y1 = sorted(bins[::2])
    x0, x1 = sorted(bins[1::2])
    box = decode_box((y0, x0, y1, x1), (width, height), scale)
    assert encode_box(box, (width, height), scale) == (y0, x0, y1, x1)


@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 1),
        (0, 0, 1, float("nan")),
        (0, 0, float("inf"), 1),
        (5, 0, 1, 1),
        (0, 5, 1, 1),
        "abcd",
        None,
        (0, 0, 1, None),
        [(0, 0, 1, 1)],
    ],
    ids=repr,
)
def test_encode_box_refuses(box):
    with pytest.raises(InputError, match="box_xyxy"):
        encode_box(box, VGA)


@pytest.mark.parametrize(
    "bins", [(0, 0, 1), (0, 0, 1, 1024), (-1, 0, 1, 1), (0, 0, 1.0, 1), 5, None], ids=repr
)
def test_decode_box_refuses(bins):
    with pytest.raises(InputError, match="loc_yxyx"):
        decode_box(bins, VGA)


# --- sizes (S05) and other arguments -------------------------------------------------------------

BAD_SIZES = [
    (0, 480),
    (640, -200),
    (1000.5, 480),
    (640.0, 480),
    (float("nan"), 480),
    (True, 480),
    (640, False),
    ("640", "480"),
    "ab",
    (640,),
    (480, 640, 3),
    640,
    None,
    [],
    np.zeros((2, 2)),
    np.array([640.0, 480.0]),
]


@pytest.mark.parametrize("size", BAD_SIZES, ids=repr)
def test_s05_bad_size_is_an_error(size):
    with pytest.raises(InputError, match="image_size is"):
        parse_objects(f"{CAT} cat", size)
    with pytest.raises(ValueError, match="image_size is"):
        encode_box((0, 0, 1, 1), size)


@pytest.mark.parametrize(
    "size",
    [(640, 480), [640, 480], np.array([640, 480]), (np.int64(640), np.uint16(480)),
     Image.new("1", (640, 480))],
    ids=["tuple", "list", "array", "numpy-ints", "picture"],
)  # fmt: skip
def test_size_may_be(size):
    assert parse_objects(f"{CAT} cat", size)[0].box_xyxy == (80.0, 120.0, 320.0, 360.0)


def test_small_values_are_bins_not_fractions():
    [found] = parse_objects("<loc0000><loc0000><loc0001><loc0001> cat", (1024, 1024))
    assert found.box_xyxy == (0.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize("scale", [1000, 0, 1.0, True, "1024", None], ids=repr)
def test_bad_scale_is_an_error(scale):
    with pytest.raises(InputError, match="scale is"):
        parse_objects("", VGA, scale=scale)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "it must be a str"),
        (5, "it must be a str"),
        (b"<loc0001>", "decode it to str"),
        ([1.5], "flat sequence of token ids"),
        (["cat"], "flat sequence of token ids"),
        ([[1, 2]], "flat sequence of token ids"),
    ],
    ids=repr,
)
def test_neither_text_nor_ids_is_an_error(answer, message):
    with pytest.raises(InputError, match=message):
        parse_objects(answer, VGA, vocabulary=WORDS)


def test_ids_without_vocabulary_are_an_error():
    with pytest.raises(InputError, match="vocabulary="):
        parse_objects([1, 2, 3], VGA)


# --- writing -------------------------------------------------------------------------------------


def test_format_object_writes_the_training_form():
    assert format_object((256, 128, 768, 512), "cat") == f"{CAT} cat"
    assert format_object((256, 128, 768, 512)) == CAT
    assert format_object(np.array([256, 128, 768, 512]), "cat", [5] * 16) == (
        CAT + "<seg005>" * 16 + " cat"
    )
    assert format_objects([f"{CAT} cat", f"{DOG} dog"]) == f"{CAT} cat ; {DOG} dog"
    assert format_objects([]) == ""


@pytest.mark.parametrize(
    "label",
    ["a;b", "a\nb", "a\r", " a", "a ", "<loc0001>", "a<seg12>", "a<eos>", "a <lo", None, 3],
    ids=repr,
)
def test_format_object_refuses_labels_that_would_not_come_back(label):
    with pytest.raises(InputError, match="label is"):
        format_object((0, 0, 1, 1), label)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        pytest.param(range(15), "15 mask codes", id="M08-15"),
        pytest.param(range(17), "17 mask codes", id="M08-17"),
        pytest.param([0] * 15 + [128], "mask code 128", id="M08-128"),
        pytest.param([0] * 15 + [-1], "mask code -1", id="M08-minus"),
        pytest.param([0.0] * 16, "whole numbers", id="float"),
        pytest.param(3, "whole numbers", id="number"),
    ],
)
def test_format_object_refuses_codes(codes, message):
    with pytest.raises(InputError, match=message):
        format_object((0, 0, 1, 1), "cat", codes)


# --- ids -----------------------------------------------------------------------------------------


def test_ids_give_the_same_objects_as_text():
    ids = [
        *WORDS.locs(256, 128, 768, 512),
        *WORDS.segs(*CODES),
        *WORDS.ids(" stop", " cat", " ;"),
        *WORDS.locs(100, 200, 300, 400),
        *WORDS.ids(" dog", "<eos>", "<pad>"),
    ]
    first, second = parse_objects(ids, VGA, vocabulary=WORDS)
    assert first == ParsedObject(
        "stop cat", (256, 128, 768, 512), (80.0, 120.0, 320.0, 360.0), CODES, None, (0, 22)
    )
    assert second == ParsedObject(
        "dog", (100, 200, 300, 400), (125.0, 46.875, 250.0, 140.625), None, None, (23, 28)
    )


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        pytest.param(WORDS.locs(1, 2, 3, 4) + WORDS.ids(" stop", " sign;", " cat"),
                     [("stop sign", None, (0, 6))], id="separator-inside-a-token"),
        pytest.param(WORDS.locs(1, 2, 3, 4) + WORDS.ids("one\ntwo"),
                     [("one", None, (0, 5))], id="line-end-inside-a-token"),
        pytest.param(WORDS.locs(1, 2, 3, 4) + WORDS.ids("\\xe7", "\\x8c", "\\xab", " ;", " dog"),
                     [("猫", None, (0, 7))], id="one-letter-in-three-tokens"),
        pytest.param(WORDS.locs(1, 2, 3, 4) + WORDS.ids("\\xe7", "\\x8c"),
                     [("\ufffd", None, (0, 6))], id="letter-cut"),
        pytest.param(WORDS.ids("<", "loc", "0001", ">") * 4 + WORDS.ids(" cat"), [],
                     id="loc-spelled-out"),
        pytest.param(WORDS.locs(1, 2, 3, 4) + WORDS.ids(" cat", "<", "loc", "0001", ">"),
                     [("cat<loc0001>", None, (0, 9))], id="loc-spelled-out-in-label"),
        pytest.param(WORDS.locs(1, 2, 3, 4) + WORDS.ids(" cat", "<", "loc"),
                     [("cat<loc", None, (0, 7))], id="letters-at-end-are-no-cut-token"),
        pytest.param([-5, 10**12, *WORDS.locs(1, 2), -1, *WORDS.locs(3, 4), WORDS.size + 3,
                      *WORDS.ids(" cat")], [("cat", None, (2, 9))], id="ids-without-meaning"),
        pytest.param(WORDS.locs(1, 2, 3, 4) + WORDS.ids(" cat", "<eos>", " dog"),
                     [("cat", None, (0, 5))], id="eos-ends-a-label"),
        pytest.param(WORDS.ids(" dog", " ;") + WORDS.locs(1, 2, 3),
                     [("", "truncated", (2, 5))], id="cut-in-box"),
        pytest.param(WORDS.locs(1, 2, 3, 4) + WORDS.segs(*range(9)),
                     [("", "truncated", (0, 13))], id="cut-in-codes"),
        pytest.param(WORDS.locs(1, 2, 3) + WORDS.ids("<eos>"),
                     [("", "bad box count", (0, 3))], id="ended-in-box"),
        pytest.param(WORDS.segs(*range(16)), [("", "codes without a box", (0, 16))], id="no-box"),
        pytest.param([], [], id="nothing"),
        pytest.param([0, 1, 2, 1, 0], [], id="specials-only"),
    ],
)  # fmt: skip
def test_ids(ids, expected):
    found = parse_objects(ids, VGA, vocabulary=WORDS)
    assert [(o.label, o.problem, o.span) for o in found] == expected


def test_ids_may_be_an_array():
    ids = np.array(WORDS.locs(1, 2, 3, 4) + WORDS.ids(" cat"))
    assert parse_objects(ids, VGA, vocabulary=WORDS)[0].label == "cat"
    assert parse_objects(iter(ids), VGA, vocabulary=WORDS)[0].label == "cat"


def test_ids_of_the_real_tokenizer(shared_data):
    tokenizers = pytest.importorskip("tokenizers")
    from vlmtasks.engine.tokenizer import Tokenizer

    gemma = tokenizers.Tokenizer.from_file(str(shared_data / "gemma-tokenizer" / "tokenizer.json"))
    gemma.add_tokens([f"<loc{number:04d}>" for number in range(1024)])
    gemma.add_tokens([f"<seg{number:03d}>" for number in range(128)])
    vocabulary = Tokenizer(gemma)
    segs = "".join(f"<seg{code:03d}>" for code in CODES)
    answer = f"Sure:\n{CAT}{segs} 猫𠮷 ; {DOG} St. John's / R&D, (left);{DOG}größe 🐱\n{DOG}"
    ids = gemma.encode(answer, add_special_tokens=False).ids
    from_text = parse_objects(answer, VGA)
    from_ids = parse_objects(ids, VGA, vocabulary=vocabulary)
    assert [o.label for o in from_ids] == ["猫𠮷", "St. John's / R&D, (left)", "größe 🐱", ""]
    for one, other in zip(from_text, from_ids, strict=True):
        assert (one.label, one.box_xyxy, one.mask_codes) == (
            other.label, other.box_xyxy, other.mask_codes
        )  # fmt: skip
        start, stop = other.span
        assert answer[slice(*one.span)] in vocabulary.decode(ids[start:stop])


# --- properties ----------------------------------------------------------------------------------

BINS = st.integers(0, 1023)
LABELS = st.text(max_size=20).map(lambda text: re.sub("[<;\r\n]", "", text).strip())


@st.composite
def objects(draw):
    y0, y1 = sorted(draw(st.lists(BINS, min_size=2, max_size=2, unique=True)))
    x0, x1 = sorted(draw(st.lists(BINS, min_size=2, max_size=2, unique=True)))
    codes = draw(st.none() | st.lists(st.integers(0, 127), min_size=16, max_size=16).map(tuple))
    return (y0, x0, y1, x1), draw(LABELS), codes


@given(st.lists(objects(), max_size=5), st.sampled_from([1024, 1023]))
def test_what_is_written_is_read_back(written, scale):
    text = format_objects(format_object(*one) for one in written)
    found = parse_objects(text, VGA, scale=scale)
    assert [(o.loc_yxyx, o.label, o.mask_codes) for o in found] == written
    assert [o.box_xyxy for o in found] == [decode_box(bins, VGA, scale) for bins, _, _ in written]
    assert all(o.problem is None for o in found)


FRAGMENTS = st.one_of(
    BINS.map("<loc{:04d}>".format),
    st.integers(0, 127).map("<seg{:03d}>".format),
    st.sampled_from([" ; ", ";", "\n", "\r", " ", "<eos>", "<pad>", "<", "<loc", "<loc1024>", "loc",
                     "<seg12>", "<seg999>", ">", "cat", "<image>", "٠", "\x00", "\u2028"]),
    st.text(max_size=5),
)  # fmt: skip


@given(st.lists(FRAGMENTS, max_size=30).map("".join))
def test_any_text_parses(text):
    stop = 0
    for found in parse_objects(text, VGA):
        assert stop <= found.span[0] < found.span[1] <= len(text)
        stop = found.span[1]
        assert found.problem is None or found.problem in PROBLEMS
        if found.problem is None:
            assert len(found.loc_yxyx) == 4
            assert found.box_xyxy == decode_box(found.loc_yxyx, VGA)
            x0, y0, x1, y1 = found.box_xyxy
            assert x1 > x0 and y1 > y0
            assert found.mask_codes is None or len(found.mask_codes) == 16
            assert found.label == found.label.strip()
            assert not re.search("[;\r\n]", found.label)


@given(st.lists(st.integers(-3, WORDS.size + 3) | st.sampled_from(WORDS.locs(1, 2, 3, 4)),
                max_size=40))  # fmt: skip
def test_any_ids_parse(ids):
    stop = 0
    for found in parse_objects(ids, VGA, vocabulary=WORDS):
        assert stop <= found.span[0] < found.span[1] <= len(ids)
        stop = found.span[1]


@given(st.lists(objects(), min_size=1, max_size=4), st.data())
def test_cut_text_keeps_what_came_before(written, data):
    text = format_objects(format_object(*one) for one in written)
    cut_at = data.draw(st.integers(0, len(text)))
    whole = parse_objects(text, VGA)
    kept = [o for o in parse_objects(text[:cut_at], VGA) if o.problem is None]
    complete = [o for o in whole if o.span[1] <= cut_at]
    assert kept[: len(complete)] == complete
    for last in kept[len(complete) :]:  # at most the record that was cut behind its tokens
        original = whole[len(complete)]
        assert len(kept) == len(complete) + 1
        assert last.loc_yxyx == original.loc_yxyx
        assert original.label.startswith(last.label)


def test_label_keeps_every_cut_of_a_record_apart():
    text = f"{CAT} cat"
    for length in range(len(CAT)):
        assert all(o.problem == "truncated" for o in parse_objects(text[:length], VGA))


@pytest.mark.parametrize(
    ("unit", "records"),
    [
        ("<loc0001>x", 1),
        ("<loc0001>", 0.25),
        ("<loc0256><loc0128><loc0768><loc0512> a;", 1),
        ("<loc0001> ", 0.25),
        ("<seg001>", 0),
        (";", 0),
        (" ", 0),
        ("\n", 0),
        ("<loc", 0),
        ("<loc1", 0),
        ("<loc0001><seg001>", 1),
        ("<loc0001>\n", 1),
        ("<loc>;", 1),
    ],
)
def test_a_long_answer_of_one_kind_parses(unit, records):
    """A pattern that tries a place twice would never end here."""
    count = 30_000
    found = parse_objects(unit * count, VGA)
    assert len(found) == pytest.approx(records * count, abs=1)
