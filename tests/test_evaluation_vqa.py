"""Answers: each rule against worked examples and, where one exists, an independent package."""

import random

import pytest

from vlmtasks.errors import InputError
from vlmtasks.evaluation.vqa import (
    anls,
    as_count,
    counting,
    normalise_answer,
    pope,
    relaxed_match,
    simple_vqa_accuracy,
    vqa_accuracy,
)


@pytest.mark.parametrize(
    ("answer", "truths", "accuracy"),
    [
        pytest.param("yes", ["yes"] * 10, 1.0, id="all-agree"),
        pytest.param("no", ["yes"] * 10, 0.0, id="nobody"),
        pytest.param("a", ["a"] + ["b"] * 9, 0.3, id="normalised-to-nothing"),
        pytest.param("cat", ["cat"] + ["dog"] * 9, 0.3, id="one"),  # 9 × 1/3 + 1 × 0, over 10
        pytest.param("cat", ["cat"] * 2 + ["dog"] * 8, 0.6, id="two"),
        pytest.param("cat", ["cat"] * 3 + ["dog"] * 7, 0.9, id="three"),
        pytest.param("cat", ["cat"] * 4 + ["dog"] * 6, 1.0, id="four"),
        pytest.param("The cat", ["cat"] * 9 + ["dog"], 1.0, id="article"),
        pytest.param("The cat", ["cat"] * 10, 0.0, id="not-normalised-when-all-agree"),
        pytest.param(" yes\n", ["yes"] * 10, 1.0, id="blanks"),
        pytest.param("two", ["2"] * 5 + ["two"] * 5, 1.0, id="number-word"),
    ],
)
def test_vqa_accuracy(answer: str, truths: list[str], accuracy: float) -> None:
    assert vqa_accuracy(answer, truths) == pytest.approx(accuracy)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        pytest.param("The quick, brown fox!", "quick brown fox", id="signs-beside-blanks"),
        pytest.param("black-and-white", "black and white", id="sign-inside"),
        pytest.param("black -and-white", "black andwhite", id="one-beside-a-blank-joins-all"),
        pytest.param("1,000", "1000", id="comma-in-number"),
        pytest.param("1,000 a-b", "1000 ab", id="comma-in-number-joins-all"),
        pytest.param("3.50 dollars.", "3.50 dollars", id="points"),
        pytest.param("None of the two", "0 of 2", id="numbers"),
        pytest.param("dont whats couldnt've", "don't what's couldn't've", id="contractions"),
        pytest.param("somebody'd oclock", "somebodyd o'clock", id="odd-contractions"),
        pytest.param("ten eleven", "10 eleven", id="numbers-end-at-ten"),
        pytest.param("a an the", "", id="articles-only"),
        pytest.param("it's left/right", "it's left right", id="apostrophe-stays"),
    ],
)
def test_normal_form(text: str, normal: str) -> None:
    assert normalise_answer(text) == normal


def test_simple_accuracy() -> None:
    assert simple_vqa_accuracy("A", ["a"]) == 0.0
    assert simple_vqa_accuracy("a", ["a"]) == 1.0
    assert simple_vqa_accuracy("a", ["a", "a", "b"]) == pytest.approx(2 / 3)
    assert simple_vqa_accuracy("a", ["a"] * 5) == 1.0


@pytest.mark.parametrize(
    ("answer", "truths", "score"),
    [
        pytest.param("hello", ["hello"], 1.0, id="equal"),
        pytest.param("helo", ["hello"], 0.8, id="one-of-five"),
        pytest.param("hxxlo", ["hello"], 0.6, id="two-of-five"),
        pytest.param("ab", ["ac"], 0.0, id="half-is-too-far"),
        pytest.param("helo", ["world", "hello"], 0.8, id="best-of-two"),
        pytest.param("Hello", ["hello"], 0.8, id="case-counts"),
        pytest.param("", ["hello"], 0.0, id="no-answer"),
        pytest.param("", [""], 1.0, id="nothing-wanted"),
    ],
)
def test_anls(answer: str, truths: list[str], score: float) -> None:
    assert anls(answer, truths) == pytest.approx(score)


def test_anls_equals_rapidfuzz() -> None:
    distance = pytest.importorskip(
        "rapidfuzz.distance.Levenshtein", reason="pip install 'vlmtasks[dev]'"
    )
    chance = random.Random(5)
    for _ in range(500):
        a, b = ("".join(chance.choices("abcd ", k=chance.randint(1, 30))) for _ in range(2))
        similarity = distance.normalized_similarity(a, b)
        assert anls(a, [b]) == pytest.approx(similarity if similarity > 0.5 else 0.0)


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        pytest.param("105", "100", True, id="five-percent"),
        pytest.param("105.1", "100", False, id="more"),
        pytest.param("95", "100", True, id="below"),
        pytest.param("10%", "0.1", True, id="percent"),
        pytest.param("10%", "10", False, id="percent-is-a-fraction"),
        pytest.param("-100", "100", False, id="sign"),
        pytest.param("0", "0", True, id="zero"),
        pytest.param("0.0", "0", False, id="zero-must-be-equal"),
        pytest.param("1,000", "1000", False, id="comma-is-text"),
        pytest.param("Blue", "blue", True, id="case"),
        pytest.param("light blue", "blue", False, id="text"),
        pytest.param("nan", "5", False, id="nan"),
        pytest.param("inf", "5", False, id="inf"),
        pytest.param("%", "%", True, id="percent-sign-alone"),
    ],
)
def test_relaxed_match(answer: str, truth: str, right: bool) -> None:
    assert relaxed_match(answer, truth) == right


def test_pope() -> None:
    score = pope(["Yes", "no", "yes", "maybe", "no"], ["yes", "no", "no", "yes", "no"])
    assert score.accuracy == pytest.approx(3 / 5)
    assert score.valid == pytest.approx(4 / 5)
    assert (score.precision, score.recall, score.f1) == (0.5, 0.5, 0.5)
    assert score.yes_ratio == pytest.approx(2 / 5)


def test_pope_without_yes_has_no_precision() -> None:
    score = pope(["no"], ["no"])
    assert (score.accuracy, score.precision, score.recall, score.f1) == (1.0, None, None, None)


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ("3", 3), ("Three", 3), ("twenty", 20), ("none", 0), (" 0 ", 0), ("twenty-one", None),
        ("3.5", None), ("-1", None), ("a few", None), ("", None), ("٣", None),
    ],
)  # fmt: skip
def test_as_count(answer: str, count: int | None) -> None:
    assert as_count(answer) == count


def test_counting() -> None:
    score = counting(["two", "3", "many", "0"], [2, 5, 1, 1])
    assert score.accuracy == 0.25
    assert score.valid == 0.75
    assert score.within_one == pytest.approx(2 / 3)
    assert score.mean_error == pytest.approx(1.0)
    assert score.accuracy_by_count == {1: 0.0, 2: 1.0, 5: 0.0}


def test_missing_truths_are_refused() -> None:
    for score in (vqa_accuracy, anls, simple_vqa_accuracy):
        with pytest.raises(InputError, match="at least one"):
            score("x", [])
        with pytest.raises(InputError, match="list"):
            score("x", "yes")
    with pytest.raises(InputError, match="'yes' or 'no'"):
        pope(["yes"], ["maybe"])
    with pytest.raises(InputError, match="1 answers and 2 truths"):
        counting(["1"], [1, 2])
