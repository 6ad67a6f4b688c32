"""Edit distance, error rates and text spotting against independent packages and by hand."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmtasks.errors import InputError
from vlmtasks.evaluation.text_metrics import (
    Word,
    character_error_rate,
    edit_distance,
    text_spotting,
    word_error_rate,
)

LINES = ["The quick brown fox", "jumps over", "the lazy dog", "été à l’île"]
READ = ["The quik brown fx", "jumps  over it", "", "ete à l'île"]


def table_distance(a: str, b: str) -> int:
    """The textbook table, one row at a time."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
    return row[-1]


@given(st.text("abc", max_size=20), st.text("abc", max_size=20))
def test_edit_distance_is_that_of_the_textbook(a: str, b: str) -> None:
    assert edit_distance(a, b) == edit_distance(b, a) == table_distance(a, b)


def test_long_texts_equal_rapidfuzz() -> None:
    levenshtein = pytest.importorskip(
        "rapidfuzz.distance.Levenshtein", reason="pip install 'vlmtasks[dev]'"
    )
    chance = random.Random(0)
    for length in (63, 64, 65, 1000, 5000):
        a = "".join(chance.choices("abcdefgh ", k=length))
        b = "".join(chance.choices("abcdefgh ", k=length - 7))
        assert edit_distance(a, b) == levenshtein.distance(a, b)


def test_error_rates_equal_jiwer() -> None:
    jiwer = pytest.importorskip("jiwer", reason="pip install 'vlmtasks[dev]'")
    lines = [" ".join(line.split()) for line in READ]  # jiwer strips blanks, we count them
    assert character_error_rate(LINES, lines) == pytest.approx(jiwer.cer(LINES, lines))
    assert word_error_rate(LINES, READ) == pytest.approx(jiwer.wer(LINES, READ))


def test_error_rates_by_hand() -> None:
    assert character_error_rate(["abcd", "ef"], ["abxd", "e"]) == pytest.approx(2 / 6)
    assert word_error_rate(["a b c"], ["a c"]) == pytest.approx(1 / 3)
    assert word_error_rate(["a"], ["b c d"]) == 3.0


def test_wrong_lists_are_refused() -> None:
    with pytest.raises(InputError, match="1 references and 2 predictions"):
        character_error_rate(["a"], ["a", "b"])
    with pytest.raises(InputError, match="no words"):
        word_error_rate([" "], ["a"])


SIGN = Word("STOP", (0, 0, 10, 10))
SHOP = Word("Shop", (20, 0, 30, 10))
BLUR = Word("###", (40, 0, 50, 10))


@pytest.mark.parametrize(
    ("truths", "found", "counts"),
    [
        pytest.param([SIGN, SHOP], [SIGN, SHOP], (2, 2, 2), id="all"),
        pytest.param([SIGN], [Word("stop", (0, 0, 10, 10))], (1, 1, 1), id="case"),
        pytest.param([SIGN], [Word("STOP", (0, 0, 10, 5))], (1, 1, 1), id="half-overlap"),
        pytest.param([SIGN], [Word("STOP", (0, 0, 10, 4.9))], (0, 1, 1), id="too-little"),
        pytest.param([SIGN], [Word("ST0P", (0, 0, 10, 10))], (0, 1, 1), id="misread"),
        pytest.param([SIGN], [SIGN, SIGN], (1, 2, 1), id="found-twice"),
        pytest.param([SIGN, BLUR], [SIGN], (1, 1, 1), id="unreadable-missed"),
        pytest.param([SIGN, BLUR], [SIGN, Word("x", BLUR.box_xyxy)], (1, 1, 1), id="guessed"),
        pytest.param([BLUR], [BLUR], (0, 0, 0), id="nothing-to-read"),
        pytest.param([], [SIGN], (0, 1, 0), id="invented"),
        pytest.param([SIGN], [], (0, 0, 1), id="missed"),
    ],
)
def test_spotting(truths: list[Word], found: list[Word], counts: tuple[int, int, int]) -> None:
    score = text_spotting([truths], [found])
    assert (score.matches, score.predicted, score.truths) == counts


def test_spotting_over_pictures() -> None:
    score = text_spotting([[SIGN, SHOP], [SIGN]], [[SIGN], [SHOP, SIGN]])
    assert score.precision == score.recall == score.f1 == pytest.approx(2 / 3)
    assert text_spotting([[]], [[]]).f1 is None
    strict = text_spotting([[SIGN]], [[Word("stop", SIGN.box_xyxy)]], case_sensitive=True)
    assert strict.matches == 0


def test_best_overlap_is_paired_first() -> None:
    near, far = Word("STOP", (0, 0, 10, 9)), Word("STOP", (0, 0, 10, 6))
    other = Word("STOP", (0, 0, 10, 11))
    assert text_spotting([[SIGN, other]], [[far, near]]).matches == 2
