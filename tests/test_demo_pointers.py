"""Where the demo's answers are taught to look."""

import numpy as np
import pytest

from vlmtasks.demo.classes import LABELS
from vlmtasks.demo.dense import DenseTargets
from vlmtasks.demo.lettering import Word
from vlmtasks.demo.pointers import points_of_lettering, points_of_objects, points_of_words
from vlmtasks.demo.scenes import Scene
from vlmtasks.demo.tokenizer import build_tokenizer
from vlmtasks.demo.vocabulary import EOS_ID, DemoVocabulary

CAT, DOG = LABELS.index("cat"), LABELS.index("dog")


@pytest.fixture(scope="module")
def vocabulary() -> DemoVocabulary:
    return DemoVocabulary.build()


@pytest.fixture
def targets() -> DenseTargets:
    """A cat on patches 0 and 1, a dog on 22, a cat on 60, 61, 74, 75 (box 66..112)."""
    patch_object = np.full(196, -1)
    patch_object[[0, 1]] = 0
    patch_object[22] = 1
    patch_object[[60, 61, 74, 75]] = 2
    return DenseTargets(
        patch_object, np.zeros((196, 64), np.uint8),
        np.array([0, 22, 60]), np.array([CAT, DOG, CAT]), np.full(3, -100),
        np.array([[0, 0, 13, 26], [26, 26, 38, 38], [38, 38, 64, 64]]),
        np.zeros((3, 16), int), np.zeros((3, 16, 16), np.float32), np.full((196, 2), -1),
        np.full((196, 2), -1), np.ones(3, int), np.zeros(3, int),
    )  # fmt: skip


def ids(text: str) -> tuple[int, ...]:
    return (*build_tokenizer().encode(text, add_special_tokens=False).ids, EOS_ID)


def test_records_look_at_their_objects_in_order(vocabulary, targets):
    box = "<loc0000><loc0000><loc0104><loc0208>"
    boxes = [targets.loc_choices[row] for row in (2, 1)]
    points = points_of_objects(ids(f"{box} cat ; {box} dog"), [2, 1], boxes, targets, vocabulary)
    assert points[:4] == ((60, 61, 74, 75),) * 4
    assert points[4:7] == ((), (), ())  # " cat", " ;", " "
    assert points[7:11] == ((22,),) * 4
    assert points[11:] == ((), ())  # " dog", end


def test_codes_look_at_their_cells(vocabulary, targets):
    text = "<loc0304><loc0304><loc0512><loc0512>" + "<seg001>" * 16 + " cat"
    points = points_of_objects(ids(text), [2], [targets.loc_choices[2]], targets, vocabulary)
    # the box is from 4.16 to 7.0 patches; the first cell's middle is at 4.51, the last's at 6.64
    assert points[4] == (60, 61, 74, 75)
    assert points[4 + 15] == (90,)


def test_phrases_look_at_all_objects_of_their_class(vocabulary, targets):
    points = points_of_words((), ids("two cats and a dog"), targets, vocabulary)
    cats = (0, 1, 60, 61, 74, 75)
    assert points == (cats, cats, (), (22,), (22,), ())


def test_answers_look_at_the_class_of_the_prompt(vocabulary, targets):
    prefix = ids("answer en how many cats?")
    assert points_of_words(prefix, ids("2"), targets, vocabulary) == ((0, 1, 60, 61, 74, 75), ())
    prefix = ids("answer en is there a car?")
    assert points_of_words(prefix, ids("no"), targets, vocabulary) == ((), ())


def test_characters_look_at_their_patches(vocabulary):
    word = Word("AB", (16, 0, 40, 16), ((16, 0, 28, 16), (28, 0, 40, 16)))
    scene = Scene(np.zeros((224, 224, 3), np.uint8), (), (word, word))
    points = points_of_lettering(ids("AB AB"), scene, vocabulary)
    assert points == ((1,), (2,), (), (1,), (2,), ())
    assert points_of_lettering(ids("A"), scene, vocabulary) == ((), ())
