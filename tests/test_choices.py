"""Arguments of the wrong kind get the package's own error, whatever NumPy would say of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stub_engine import StubEngine

from vlmtasks import prompts
from vlmtasks.api import VLM
from vlmtasks.categories import CocoCategories
from vlmtasks.choices import check_choice
from vlmtasks.errors import ImageError, InputError, PromptError
from vlmtasks.images import open_image
from vlmtasks.masks import Masks
from vlmtasks.results import Detections
from vlmtasks.rle import check_rle
from vlmtasks.tokens import format_object, parse_objects

STRANGE = [np.array([1, 2]), np.array(["raise"]), ["raise"], {"a": 1}, None, 3.5, "such"]


@pytest.mark.parametrize("value", STRANGE, ids=repr)
@pytest.mark.parametrize("name", ["on_error", "strategy", "score", "boxes", "recipe"])
def test_only_the_values_that_are_named_are_taken(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"{name} is .*; it must be one of "):
        VLM(StubEngine()).detect("no such file", "cat", **{name: value})


@pytest.mark.parametrize("value", [np.array([1024, 1023]), np.array([1024]), True, "1024", None])
def test_scales_are_two_numbers(value: Any) -> None:
    with pytest.raises(InputError, match=r"scale is .*; it must be 1024 .* or 1023"):
        parse_objects("", (64, 64), scale=value)
    assert parse_objects("", (64, 64), scale=np.int64(1023)) == []


@pytest.mark.parametrize("value", STRANGE, ids=repr)
def test_caption_styles_are_three_words(value: Any) -> None:
    with pytest.raises(PromptError, match=r"style is .*; it must be one of caption, cap, describe"):
        prompts.caption(style=value)


@pytest.mark.parametrize("value", ["gemma", 3, object()], ids=["str", "int", "object"])
def test_a_vocabulary_of_the_wrong_kind_is_told(value: Any) -> None:
    with pytest.raises(InputError, match=r"vocabulary is .*; pass engine\.vocabulary"):
        parse_objects([1, 2], (64, 64), vocabulary=value)


@pytest.mark.parametrize("question", ["\u200b", " \ufeff\u200b\u2060\n", "\u200d"], ids=ascii)
def test_a_question_that_nobody_sees_says_nothing(question: str) -> None:
    for ask in (prompts.answer, prompts.question):
        with pytest.raises(PromptError, match="which says nothing"):
            ask(question)


def test_a_closed_picture_is_called_closed() -> None:
    picture = Image.new("RGB", (8, 8))
    picture.close()
    with pytest.raises(ImageError, match="the PIL picture of mode RGB is closed; pass it before"):
        open_image(picture)


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        ({"objects": 1, "image_size": [8, 8]}, "'objects' is 1; it must be a list"),
        ([1], "are a list; they must be an object with 'objects' and 'image_size'"),
        ("text", "are a str; they must be an object"),
        ({"image_size": [8, 8]}, "'objects' is missing"),
        ({"objects": [3], "image_size": [8, 8]}, "an entry of 'objects' is 3; it must be an obj"),
        (
            {"objects": [{"label": "a", "score": 1}], "image_size": [8, 8]},
            "an entry of 'objects' has no 'box_xyxy'",
        ),
    ],
    ids=["number", "list", "str", "missing", "entry", "no box"],
)
def test_what_is_no_saved_result_is_told_in_the_file_s_terms(saved: Any, told: str) -> None:
    with pytest.raises(InputError) as caught:
        Detections.from_dict(saved)
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["x.json", "x.png"])
def test_saving_into_a_missing_folder_is_told(tmp_path: Path, name: str) -> None:
    found = Detections(np.zeros((0, 4)), (), np.zeros(0), (8, 8))
    with pytest.raises(InputError, match=r"there is no folder .*missing; make it first"):
        found.save(tmp_path / "missing" / name, Image.new("RGB", (8, 8)))


HUGE = 10**5000  # Python refuses to write it down


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(lambda: parse_objects("", (9, 9), scale=HUGE), "scale is <int of", id="scale"),
        pytest.param(lambda: format_object([0, 0, 1, HUGE]), "loc_yxyx is <tuple of", id="bin"),
        pytest.param(lambda: format_object([0.5, HUGE]), "loc_yxyx is <list of", id="bins"),
        pytest.param(
            lambda: format_object([0, 0, 1, 1], "a", [HUGE] * 16), "mask code <int of", id="code"
        ),
        pytest.param(
            lambda: check_rle({"size": [2, 2], "counts": [HUGE]}),
            "run lengths of <int of too many digits> pixels",
            id="run",
        ),
        pytest.param(
            lambda: check_rle({"size": [2, 2], "counts": [-HUGE]}), "a run of <int", id="negative"
        ),
        pytest.param(
            lambda: check_rle({"size": [HUGE, 2], "counts": [4]}), "size <list of", id="side"
        ),
        pytest.param(
            lambda: check_rle({"size": [HUGE], "counts": [4]}), "a mask is <dict of", id="sides"
        ),
        pytest.param(lambda: Masks.from_rles(HUGE, (9, 9)), "masks are <int of", id="masks"),
        pytest.param(lambda: CocoCategories({"cat": -HUGE}), "has the id <int of", id="category"),
        pytest.param(lambda: CocoCategories(["cat"]).name(HUGE), "id <int of", id="category-id"),
        pytest.param(lambda: check_choice(HUGE, (1, 2), "x"), "x is <int of", id="choice"),
        pytest.param(lambda: prompts.free_text(HUGE), "prompt is <int of", id="prompt"),
        pytest.param(lambda: prompts.detect([HUGE]), "a class is <int of", id="class"),
        pytest.param(
            lambda: Detections.from_coco([], (9, 9), ["cat"]).without_overlaps(HUGE),
            "the overlap is <int of",
            id="overlap",
        ),
        pytest.param(
            lambda: VLM(StubEngine()).caption("no file", batch_size=HUGE),
            "batch_size is <int of",
            id="batch-size",
        ),
        pytest.param(
            lambda: VLM(StubEngine()).caption("no file", max_new_tokens=-HUGE),
            "max_new_tokens is <int of",
            id="new-tokens",
        ),
        pytest.param(
            lambda: Detections([[0, 0, 1, 1]], [HUGE], [1], (9, 9)), "not <list of", id="labels"
        ),
    ],
)
def test_numbers_too_long_to_be_written_get_our_own_error(call: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()
