"""The words of the demo's world."""

import pytest

from vlmtasks.demo.classes import (
    COLORS,
    LABELS,
    domain_words,
    how_many,
    is_there,
    join_phrases,
    plural,
    what_color,
    with_article,
)


def test_classes_are_the_24_of_the_demo_in_their_order():
    assert len(set(LABELS)) == len(LABELS) == 24
    assert (LABELS[0], LABELS[9], LABELS[23]) == ("cat", "boat", "guitar")


@pytest.mark.parametrize(
    ("label", "expected"),
    [("cat", "cats"), ("bus", "buses"), ("fish", "fish"), ("house", "houses"), ("key", "keys")],
)
def test_plural(label, expected):
    assert plural(label) == expected


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [("car", "a car"), ("apple", "an apple"), ("orange car", "an orange car")],
)
def test_article(phrase, expected):
    assert with_article(phrase) == expected


@pytest.mark.parametrize(
    ("phrases", "expected"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")],
    ids=len,
)
def test_list_of_phrases(phrases, expected):
    assert join_phrases(phrases) == expected


def test_every_word_of_every_question_is_a_domain_word():
    words = set(domain_words())
    for label in LABELS:
        for question in (how_many(label), what_color(label), is_there(label)):
            assert set(question.rstrip("?").split()) <= words


def test_domain_words_are_unique_and_hold_classes_and_colors():
    words = domain_words()
    assert len(set(words)) == len(words)
    assert {*LABELS, *map(plural, LABELS), *COLORS} <= set(words)
