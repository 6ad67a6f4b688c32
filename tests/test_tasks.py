import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from word_vocabulary import WordVocabulary

from vlmtasks.errors import InputError
from vlmtasks.generation import Generation
from vlmtasks.tasks import ANSWER, CAPTION, CAPTION_BOX, DETECT, OCR, QUESTION, SEGMENT, TASKS

WORDS = WordVocabulary(" cat", " dog", " stop", " sign", " tree")
VGA = (640, 480)
CAT = "<loc0256><loc0128><loc0768><loc0512>"
DOG = "<loc0100><loc0200><loc0300><loc0400>"
CAT_BOX = [80, 120, 320, 360]
DOG_BOX = [125, 46.875, 250, 140.625]
CODES = tuple(range(16))
SEG = "".join(f"<seg{code:03d}>" for code in CODES)


class Codec:
    """Decodes to a map of the first code / 127, and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def decode(self, codes):
        self.asked.append(codes)
        return np.repeat(codes[:, :1] / 127, 64 * 64, axis=1).reshape(-1, 64, 64).astype(np.float32)


def text(answer, finish_reason="stop"):
    return Generation(answer, (), (), finish_reason)


def ids(*parts, finish_reason="stop"):
    """A generation of (ids, probability) parts."""
    token_ids = [token_id for part, _ in parts for token_id in part]
    logprobs = [math.log(probability) for part, probability in parts for _ in part]
    return Generation(WORDS.decode(token_ids), tuple(token_ids), tuple(logprobs), finish_reason)


# --- every task ----------------------------------------------------------------------------------


def test_registry():
    assert list(TASKS) == [
        "caption",
        "answer",
        "question",
        "ocr",
        "detect",
        "segment",
        "caption_box",
    ]
    assert all(task.max_new_tokens >= 48 for task in TASKS.values())
    with pytest.raises(TypeError):
        TASKS["other"] = DETECT


@pytest.mark.parametrize(
    ("task", "arguments", "prompt"),
    [
        (CAPTION, {"lang": "de", "style": "describe"}, "describe de"),
        (CAPTION, {}, "caption en"),
        (ANSWER, {"question": "how many?", "lang": "en"}, "answer en how many?"),
        (QUESTION, {"answer": "two"}, "question en two"),
        (OCR, {}, "ocr"),
        (DETECT, {"labels": ["cat", "dog"]}, "detect cat ; dog"),
        (SEGMENT, {"labels": "cat"}, "segment cat"),
        (CAPTION_BOX, {"loc_yxyx": (1, 2, 3, 4)}, "caption <loc0001><loc0002><loc0003><loc0004>"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_prompt(task, arguments, prompt):
    assert task.prompt(**arguments) == prompt


@pytest.mark.parametrize(
    "task", [CAPTION, ANSWER, QUESTION, OCR, CAPTION_BOX], ids=lambda t: t.name
)
def test_text_is_stripped(task):
    assert task.parse(text(" a cat \n")) == "a cat"


# --- detect --------------------------------------------------------------------------------------


def test_detect_from_text():
    found = DETECT.parse(text(f"{CAT} cat ; {DOG} dog ; <loc0001> x"), image_size=VGA)
    assert found.labels == ("cat", "dog")
    assert found.boxes_xyxy.tolist() == [CAT_BOX, DOG_BOX]
    assert found.scores.tolist() == [1, 1]
    assert found.image_size == VGA
    assert found.masks is None
    assert found.finish_reason == "stop"
    assert [record.problem for record in found.dropped] == ["bad box count"]
    assert found.text.startswith("<loc0256>")


def test_score_is_the_geometric_mean_of_the_location_tokens():
    generation = ids(
        (WORDS.locs(256, 128), 0.9),
        (WORDS.locs(768, 512), 0.4),
        (WORDS.ids(" cat", " ;"), 0.1),
        (WORDS.locs(100, 200, 300, 400), 0.25),
        (WORDS.ids(" dog"), 1.0),
    )
    found = DETECT.parse(generation, image_size=VGA, vocabulary=WORDS)
    assert found.labels == ("cat", "dog")
    np.testing.assert_allclose(found.scores, [0.6, 0.25], rtol=1e-6)


def test_score_of_ids_without_probabilities_is_one():
    generation = Generation("", tuple(WORDS.locs(1, 2, 3, 4)), (), "stop")
    assert DETECT.parse(generation, image_size=VGA, vocabulary=WORDS).scores.tolist() == [1]


def test_scale():
    answer = text("<loc0000><loc0000><loc1023><loc1023> cat")
    assert DETECT.parse(answer, image_size=VGA, scale=1023).boxes_xyxy.tolist() == [
        [0, 0, 640, 480]
    ]
    assert DETECT.parse(answer, image_size=VGA).boxes_xyxy.tolist() == [[0, 0, 639.375, 479.53125]]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("cat", "cat"), (["Stop Sign"], "Stop Sign"), ("cat ; dog", ""), (None, "")],
    ids=["one", "one-in-a-list", "two", "none"],
)
def test_p05_a_single_class_names_what_has_no_label(labels, expected):
    found = DETECT.parse(text(CAT), image_size=VGA, labels=labels)
    assert found.labels == (expected,)


def test_a_label_of_the_model_stays():
    assert DETECT.parse(text(f"{CAT} dog"), image_size=VGA, labels="cat").labels == ("dog",)


@pytest.mark.parametrize(
    ("answer", "labels", "good", "problems"),
    [
        pytest.param(
            f"{CAT} cat ; {DOG} do", ["cat", "dog"], ("cat",), ["truncated"], id="cut-label"
        ),
        pytest.param(f"{CAT} cat ; {DOG} dog", ["cat", "dog"], ("cat", "dog"), [], id="asked"),
        pytest.param(f"{CAT} cat ; {DOG} DOG ", ["cat", "Dog"], ("cat", "DOG"), [], id="case"),
        pytest.param(f"{CAT} cat ; {DOG}", ["cat", "dog"], ("cat",), ["truncated"], id="no-label"),
        pytest.param(
            f"{CAT} cat ; {DOG} do ;", ["cat"], ("cat", "do"), [], id="ended-by-separator"
        ),
        pytest.param(f"{CAT} cat ; {DOG} do", None, ("cat",), ["truncated"], id="nothing-asked"),
        pytest.param(f"{CAT} cat ; <loc0001>", ["cat"], ("cat",), ["truncated"], id="P07-cut-box"),
        pytest.param(f"{CAT} cat ; ", ["dog"], ("cat",), [], id="separator"),
        pytest.param("no cats here", ["dog"], (), [], id="words"),
        pytest.param("", ["dog"], (), [], id="nothing"),
    ],
)
@pytest.mark.parametrize("form", ["text", "ids"])
def test_g10_cut_answers(form, answer, labels, good, problems):
    generation, vocabulary = text(answer, "length"), None
    if form == "ids":
        letters = sorted(set(answer) - set("<>;\n"))
        vocabulary = WordVocabulary(*letters)
        generation = Generation(answer, tuple(spelled(answer, vocabulary)), (), "length")
    found = DETECT.parse(generation, image_size=VGA, labels=labels, vocabulary=vocabulary)
    assert found.labels == good
    assert [record.problem for record in found.dropped] == problems
    assert found.finish_reason == "length"


def spelled(answer, vocabulary):
    """Ids of an answer: loc tokens, separators, single letters."""
    place = 0
    while place < len(answer):
        length = 9 if answer[place] == "<" else 2 if answer[place : place + 2] == " ;" else 1
        piece = answer[place : place + length]
        yield vocabulary.tokens.index(piece if piece != ";" else " ;")
        place += length


def test_the_same_answer_that_ended_is_kept():
    found = DETECT.parse(text(f"{CAT} cat ; {DOG} do"), image_size=VGA, labels=["cat", "dog"])
    assert found.labels == ("cat", "do")


@pytest.mark.parametrize("labels", [[], "", 3, [None]], ids=repr)
def test_wrong_classes_raise(labels):
    with pytest.raises(InputError):
        DETECT.parse(text(CAT), image_size=VGA, labels=labels)


# --- segment -------------------------------------------------------------------------------------


def test_segment():
    codec = Codec()
    answer = f"{CAT}{SEG.replace('000', '127')} cat ; {DOG} dog ; {DOG}{SEG} pig ; {DOG}<seg001> x"
    found = SEGMENT.parse(text(answer), image_size=VGA, codec=codec)
    assert found.labels == ("cat", "dog", "pig")
    assert [asked.tolist() for asked in codec.asked] == [[[127, *CODES[1:]], [*CODES]]]
    assert codec.asked[0].dtype == np.int64
    assert [found.masks.has_mask(i) for i in range(3)] == [True, False, True]
    assert [found.masks.area(i) for i in range(3)] == [57600, 0, 0]
    assert [record.problem for record in found.dropped] == ["bad code count"]


def test_segment_scores_and_ids():
    generation = ids(
        (WORDS.locs(256, 128, 768, 512), 0.5), (WORDS.segs(*CODES), 0.1), (WORDS.ids(" cat"), 0.2)
    )
    found = SEGMENT.parse(generation, image_size=VGA, codec=Codec(), vocabulary=WORDS)
    np.testing.assert_allclose(found.scores, [0.5], rtol=1e-6)
    assert found.masks.has_mask(0)


def test_segment_finds_nothing():
    codec = Codec()
    found = SEGMENT.parse(text("no"), image_size=VGA, codec=codec)
    assert len(found) == len(found.masks) == 0
    assert not codec.asked


def test_segment_refcoco_form_has_no_label():
    found = SEGMENT.parse(
        text(CAT + SEG), image_size=VGA, codec=Codec(), labels="the dog on the left"
    )
    assert found.labels == ("the dog on the left",)
    assert found.masks.has_mask(0)


# --- anything ------------------------------------------------------------------------------------


@given(
    st.lists(
        st.integers(-1, WORDS.size) | st.sampled_from(WORDS.locs(1, 9) + WORDS.segs(3)), max_size=60
    ),
    st.sampled_from(["stop", "length"]),
    st.sampled_from([None, "cat", ["cat", "dog"]]),
)
def test_any_answer_gives_detections(token_ids, finish_reason, labels):
    generation = Generation("", tuple(token_ids), (-1.0,) * len(token_ids), finish_reason)
    for task, more in ((DETECT, {}), (SEGMENT, {"codec": Codec()})):
        found = task.parse(generation, image_size=VGA, labels=labels, vocabulary=WORDS, **more)
        assert all(0 < score <= 1 for score in found.scores)
        assert all(record.problem for record in found.dropped)
