import pytest

from vlmtasks import prompts
from vlmtasks.errors import InputError, PromptError


def test_every_task_has_its_words():
    assert prompts.caption() == "caption en"
    assert prompts.caption("de", style="cap") == "cap de"
    assert prompts.caption(style="describe") == "describe en"
    assert prompts.answer("how many red cars?") == "answer en how many red cars?"
    assert prompts.answer("Wie viele?", lang="de") == "answer de Wie viele?"
    assert prompts.question("two", lang="es") == "question es two"
    assert prompts.ocr() == "ocr"
    assert prompts.detect("cat") == "detect cat"
    assert prompts.segment(["cat", "dog"]) == "segment cat ; dog"
    assert prompts.caption_box((1, 20, 300, 1023)) == (
        "caption <loc0001><loc0020><loc0300><loc1023>"
    )


def test_class_names_are_clean_and_in_order():
    assert prompts.class_names(" cat ;Dog;  DOG ; stop   sign ") == ("cat", "Dog", "stop sign")


@pytest.mark.parametrize(
    ("lang", "prompt"),
    [
        ("EN", "caption en"),
        (" fr ", "caption fr"),
        ("fil", "caption fil"),
        ("zh-cn", "caption zh-cn"),
    ],
)
def test_language_code(lang, prompt):
    assert prompts.caption(lang) == prompt


@pytest.mark.parametrize(
    "lang", ["", "english", "e", "en us", "e1", None, 5, "en\n<eos>"], ids=repr
)
def test_language_must_be_a_code(lang):
    with pytest.raises(PromptError, match=r"it must be a code such as ar, bn"):
        prompts.caption(lang)


def test_unknown_style_lists_the_known_ones():
    with pytest.raises(PromptError, match="'long'; it must be one of caption, cap, describe"):
        prompts.caption(style="long")


def test_caption_box_needs_four_bins():
    with pytest.raises(InputError, match="four bins"):
        prompts.caption_box((0, 0, 1, 1024))
