"""Prompts and answers of the demo, from scenes made by hand."""

import numpy as np
import pytest

from vlmtasks.demo.classes import LABELS
from vlmtasks.demo.lettering import Word
from vlmtasks.demo.prompts import (
    caption_of,
    crop_mask,
    description_of,
    detect_example,
    make_prompts,
    segment_example,
)
from vlmtasks.demo.scenes import Scene, SceneObject, tight_box
from vlmtasks.demo.tokenizer import build_tokenizer
from vlmtasks.errors import InputError
from vlmtasks.tokens import parse_objects


def item(label: str, x1: int, y1: int, x2: int, y2: int, color: str | None = None) -> SceneObject:
    mask = np.zeros((160, 160), bool)
    mask[y1:y2, x1:x2] = True
    return SceneObject(label, color, mask, tight_box(mask))


def scene(*objects: SceneObject, text: str = "", **kwargs) -> Scene:
    words = tuple(Word(word, (0, 0, 9, 9), np.zeros((len(word), 4))) for word in text.split())
    return Scene(np.zeros((160, 160, 3), np.uint8), objects, words, **kwargs)


DOG = item("dog", 80, 40, 120, 160)
RIGHT_CAT = item("cat", 100, 0, 150, 20)
LEFT_CAT = item("cat", 0, 60, 40, 100)
RED_CAR = item("car", 10, 10, 60, 50, "red")
BUSY = scene(DOG, RIGHT_CAT, LEFT_CAT, RED_CAR, text="EXIT 12")


def answers(scene: Scene, rounds: int = 60) -> dict[str, str]:
    found = {}
    for seed in range(rounds):
        for example in make_prompts(scene, np.random.default_rng(seed), 8):
            found[example.prefix] = example.suffix(np.zeros((len(example.masks), 16), int))
    return found


def test_detect_goes_from_left_to_right_within_the_order_asked():
    example = detect_example(BUSY, ["dog", "cat"])
    assert example.prefix == "detect dog ; cat"
    assert example.suffix() == (
        "<loc0256><loc0512><loc1023><loc0768> dog ; "
        "<loc0384><loc0000><loc0640><loc0256> cat ; "
        "<loc0000><loc0640><loc0128><loc0960> cat"
    )


def test_segment_has_codes_between_box_and_label():
    example = segment_example(BUSY, ["car"])
    assert example.prefix == "segment car"
    assert example.masks.shape == (1, 64, 64)
    codes = "".join(f"<seg{code:03d}>" for code in range(16))
    expected = f"<loc0064><loc0064><loc0320><loc0384>{codes} car"
    assert example.suffix(np.arange(16)[None]) == expected


def test_codes_must_fit_the_masks():
    with pytest.raises(InputError, match="0 rows of codes for 1 masks"):
        segment_example(BUSY, ["car"]).suffix()


@pytest.mark.parametrize("make", [detect_example, segment_example])
def test_absent_class_has_an_empty_answer(make):
    assert make(BUSY, ["guitar"]).suffix() == ""


@pytest.mark.parametrize(
    ("pictured", "caption", "description"),
    [
        (scene(), "nothing", "nothing"),
        (scene(DOG), "a dog", "a dog"),
        (scene(RED_CAR, LEFT_CAT), "a cat and a car", "a cat and a red car"),
        (BUSY, "two cats, a dog, a car and text", "two cats, a dog, a red car and text"),
        (scene(text="HI"), "text", "text"),
        (scene(item("apple", 0, 0, 9, 9, "red")), "an apple", "a red apple"),
        (scene(*[item("bus", k, 0, k + 9, 9) for k in range(0, 50, 10)]),) + ("five buses",) * 2,
    ],
    ids=["empty", "one", "two", "busy", "text", "vowel", "five"],
)
def test_captions(pictured, caption, description):
    assert caption_of(pictured) == caption
    assert description_of(pictured) == description


@pytest.fixture(scope="module")
def busy_answers() -> dict[str, str]:
    return answers(BUSY, 300)


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("answer en how many cats?", "2"),
        ("answer en how many dogs?", "1"),
        ("answer en how many objects?", "4"),
        ("answer en what color is the car?", "red"),
        ("answer en is there a dog?", "yes"),
        ("answer en is there an airplane?", "no"),
        ("answer en what objects are in the image?", "cat, dog, car"),
        ("caption en", "two cats, a dog, a car and text"),
        ("cap en", "two cats, a dog, a car and text"),
        ("describe en", "two cats, a dog, a red car and text"),
        ("question en 2", "how many cats?"),
        ("ocr", "EXIT 12"),
    ],
)
def test_answers_about_a_busy_scene(busy_answers, prompt, answer):
    assert busy_answers[prompt] == answer


def test_color_is_asked_only_where_it_is_certain():
    prompts = answers(scene(DOG, LEFT_CAT, item("cat", 90, 90, 99, 99, "blue")))
    assert not [prompt for prompt in prompts if "color" in prompt]


def test_color_question_from_a_unique_color():
    colored = scene(RED_CAR, item("cup", 90, 90, 120, 120, "blue"))
    assert answers(colored, 150)["question en blue"] == "what color is the cup?"


def test_box_caption_names_color_and_class(busy_answers):
    found = {p: a for p, a in busy_answers.items() if p.startswith("caption <loc")}
    assert set(found.values()) == {"a cat", "a dog", "a red car"}


def test_photographs_are_asked_only_what_is_known():
    photograph = scene(DOG, known_labels=("cat", "dog"), kind="photograph")
    prompts = answers(photograph)
    assert prompts["caption en"] == "a dog"
    assert not [p for p in prompts if "how many" in p or "color" in p or p == "ocr"]
    assert {word for p in prompts for word in p.split()} & set(LABELS) == {"cat", "dog"}


def test_unlabelled_classes_are_never_asked_about():
    known = tuple(label for label in LABELS if label not in ("tree", "house"))
    prompts = answers(scene(DOG, known_labels=known), 200)
    assert not [p for p in prompts if "tree" in p or "house" in p]


def test_prompts_of_a_scene_are_distinct_and_repeatable():
    first, again = (make_prompts(BUSY, np.random.default_rng(9), 12) for _ in range(2))
    assert len({example.prefix for example in first}) == len(first) == 12
    assert [e.prefix for e in first] == [e.prefix for e in again]


def test_every_answer_can_be_spelled_and_parsed():
    tokenizer = build_tokenizer()
    for seed in range(40):
        for example in make_prompts(BUSY, np.random.default_rng(seed), 8):
            suffix = example.suffix(np.full((len(example.masks), 16), 5))
            encoded = tokenizer.encode(f"{example.prefix}\n{suffix}")
            assert tokenizer.token_to_id("<unk>") not in encoded.ids
            parsed = parse_objects(suffix, (160, 160))
            assert len(parsed) == len(example.targets)
            assert all(record.problem is None for record in parsed)


def test_negatives_are_a_minority_and_yes_no_is_balanced():
    examples = [
        example
        for seed in range(400)
        for example in make_prompts(BUSY, np.random.default_rng(seed), 4)
    ]
    boxes = [not example.targets for example in examples if example.task == "detect"]
    assert 0.1 < np.mean(boxes) < 0.35
    yes = [example.text == "yes" for example in examples if example.task == "presence"]
    assert 0.35 < np.mean(yes) < 0.6


def test_mask_is_cut_to_the_rounded_box():
    mask = np.zeros((160, 160), bool)
    mask[32:96, 16:48] = True
    mask[32:64, 16:32] = False
    crop = crop_mask(mask, (205, 102, 614, 307))
    assert crop.shape == (64, 64)
    assert crop[40:, :].min() == 1
    assert crop[:30, :30].max() == 0
    assert crop[:30, 34:].min() == 1
