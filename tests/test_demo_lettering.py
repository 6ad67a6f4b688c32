"""Lettering: readable texts, exact character boxes, and what is held out."""

import numpy as np
import pytest

from vlmtasks.demo.lettering import (
    DIGITS,
    LETTERS,
    TEST_FONT,
    TRAIN_FONTS,
    draw_words,
    random_text,
)
from vlmtasks.demo.words import TEST_WORDS, TRAIN_WORDS

SPLITS = ("train", "val", "test")


def test_held_out_words_and_font_are_disjoint_from_training():
    assert len(set(TEST_WORDS)) == 30
    assert not set(TEST_WORDS) & set(TRAIN_WORDS)
    assert TEST_FONT not in TRAIN_FONTS
    assert len(set(TRAIN_WORDS)) == len(TRAIN_WORDS) >= 400


def test_words_are_capitals_of_two_to_eight_letters():
    for word in TRAIN_WORDS + TEST_WORDS:
        assert set(word) <= set(LETTERS)
        assert 2 <= len(word) <= 8


@pytest.mark.parametrize("split", SPLITS)
def test_random_texts_keep_to_the_alphabet_and_the_split(split):
    rng = np.random.default_rng(1)
    texts = {random_text(rng, split) for _ in range(3000)}
    assert all(set(text) <= set(LETTERS + DIGITS) for text in texts)
    assert (set(TEST_WORDS) <= texts) == (split == "test")
    if split != "test":
        assert not set(TEST_WORDS) & texts


def test_mixed_texts_leave_out_look_alikes():
    rng = np.random.default_rng(2)
    for _ in range(2000):
        text = random_text(rng, "train")
        if set(text) & set(LETTERS) and set(text) & set(DIGITS):
            assert not set(text) & set("01IO")


@pytest.mark.parametrize("split", SPLITS)
def test_every_character_box_holds_ink_within_the_picture(split):
    for seed in range(25):
        canvas = np.full((160, 160, 3), 128, np.float32)
        lines = 1 + seed % 5
        words, needed = draw_words(np.random.default_rng(seed), split, canvas, lines)
        assert len(words) == lines
        for word in words:
            assert word.char_boxes_xyxy.shape == (len(word.text), 4)
            for x1, y1, x2, y2 in word.char_boxes_xyxy:
                assert 0 <= x1 < x2 <= 160
                assert 0 <= y1 < y2 <= 160
                inside = canvas[int(y1) : int(np.ceil(y2)), int(x1) : int(np.ceil(x2))]
                assert np.ptp(inside.mean(2)) > 30
                assert needed[int((y1 + y2) / 2), int((x1 + x2) / 2)]


def test_words_come_in_reading_order_and_do_not_overlap():
    for seed in range(60):
        canvas = np.full((160, 160, 3), 128, np.float32)
        words, _ = draw_words(np.random.default_rng(seed), "train", canvas, 1 + seed % 5)
        centers = [(w.char_boxes_xyxy[:, 1] + w.char_boxes_xyxy[:, 3]).mean() / 2 for w in words]
        assert centers == sorted(centers)
        for word in words:
            left = word.char_boxes_xyxy[:, 0]
            assert (np.diff(left) > 0).all()
