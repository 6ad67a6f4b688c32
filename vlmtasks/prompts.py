"""The words that PaliGemma expects for each task.

Every function returns the prefix without <bos> and without the final line end: the engine adds
both, once. White space at the ends is removed. What a user wrote stays text: the engine encodes
`<image>`, `<eos>` or `<loc0001>` in a question as the characters they are. Only `caption_box`
writes location tokens that mean a place, so only there the engine is told to read them
(`location_tokens=True`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vlmtasks.categories import INVISIBLE, is_ordered
from vlmtasks.choices import check_choice
from vlmtasks.errors import PromptError
from vlmtasks.shorten import shorten
from vlmtasks.tokens import check_bins

# The languages of COCO-35L, which the model was trained on; other codes are passed on.
LANGUAGES = (
    "ar bn cs da de el en es fa fi fil fr he hi hr hu id it ja ko mi nl no pl pt ro ru sv sw te th "
    "tr uk vi zh"
).split()
CAPTION_STYLES = ("caption", "cap", "describe")


def caption(lang: str = "en", style: str = "caption") -> str:
    """Prompt for a description: "caption" as in COCO, "cap" as a web page, "describe" longer."""
    check_choice(style, CAPTION_STYLES, "style", PromptError)
    return f"{style} {_language(lang)}"


def answer(question: str, lang: str = "en") -> str:
    """Prompt for the answer to a question; `lang` is the language of the answer."""
    return f"answer {_language(lang)} {_words(question, 'question')}"


def question(answer: str, lang: str = "en") -> str:
    """Prompt for a question to which `answer` is the answer; `lang` is the question's language."""
    return f"question {_language(lang)} {_words(answer, 'answer')}"


def ocr() -> str:
    """Prompt for the text that is seen in the picture."""
    return "ocr"


def detect(labels: str | Iterable[str]) -> str:
    """Prompt for boxes: "detect cat ; dog". See `class_names` for what `labels` may be."""
    return "detect " + " ; ".join(class_names(labels))


def segment(labels: str | Iterable[str]) -> str:
    """Prompt for boxes and masks: "segment cat ; dog". See `class_names`."""
    return "segment " + " ; ".join(class_names(labels))


def caption_box(loc_yxyx: Sequence[int]) -> str:
    """Prompt for a description of one box, given as bins (y_min, x_min, y_max, x_max)."""
    return "caption " + "".join(f"<loc{value:04d}>" for value in check_bins(loc_yxyx))


def free_text(prompt: str) -> str:
    """Prompt in the user's own words, as `VLM.generate` takes it; it may be empty.

    `<image>` and `<bos>` at its very start, which other tools want there, are removed.
    """
    if not isinstance(prompt, str):
        raise PromptError(f"prompt is {shorten(prompt)}; it must be a str")
    _check_letters(prompt, "prompt")
    return _LEADING_TOKENS.sub("", _one_kind_of_line_end(prompt)).strip()


def class_names(labels: str | Iterable[str]) -> tuple[str, ...]:
    """The classes of a detect or segment prompt, cleaned, in the order given, each once.

    labels: one name, several in one str with ";" between them, or a list of names. A comma is part
        of a name, since phrases have commas. Blanks are collapsed; of names that differ only in
        case the first is kept.

    PromptError: no name at all, an empty name in a list, anything but str, a set (it has no order),
    and names with ";", a line end or a token such as <loc0000>.
    """
    if isinstance(labels, str):
        names = [name for name in labels.split(";") if name.strip()]
    elif not is_ordered(labels):
        raise PromptError(
            f"classes are {shorten(labels)}; they must be a str or a list of str, in order"
        )
    else:
        names = list(labels)
        if isinstance(labels, Mapping) and not all(isinstance(name, str) for name in names):
            raise PromptError(
                f"classes are {shorten(labels)}, whose keys are no names; pass a list, such as "
                "list(names.values())"
            )
    if not names:
        raise PromptError(
            f"classes are {shorten(labels)}, which names nothing; give at least one, such as 'cat' "
            "or ['cat', 'dog']"
        )
    unique: dict[str, str] = {}
    for name in names:
        cleaned = _class_name(name)
        unique.setdefault(cleaned.casefold(), cleaned)
    return tuple(unique.values())


_LEADING_TOKENS = re.compile(r"\A\s*+(?:<(?:image|bos)>\s*+)++")
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,4})?")
_TOKEN_IN_NAME = re.compile(r"<(?:loc|seg|eos>|bos>|pad>|image>)")


def _class_name(name: Any) -> str:
    if not isinstance(name, str):
        raise PromptError(f"a class is {shorten(name)}; every class must be a str")
    _check_letters(name, "a class")
    if re.search(r"[;\r\n]", name.strip()) or _TOKEN_IN_NAME.search(name):
        raise PromptError(
            f"a class is {name!r}; a class name has no ';', no line end and no token such as "
            "<loc0000>; give several classes as a list"
        )
    cleaned = " ".join(name.split()).strip(INVISIBLE)
    if not cleaned:
        raise PromptError(f"a class is {name!r}, which is empty; remove it from the list")
    return cleaned


def _language(lang: Any) -> str:
    code = lang.strip().lower() if isinstance(lang, str) else ""
    if not _LANGUAGE.fullmatch(code):
        raise PromptError(
            f"lang is {shorten(lang)}; it must be a code such as {', '.join(LANGUAGES)}"
        )
    return code


def _words(text: Any, name: str) -> str:
    if not isinstance(text, str):
        raise PromptError(f"{name} is {shorten(text)}; it must be a str")
    _check_letters(text, name)
    words = _one_kind_of_line_end(text).strip()
    if not words.strip(INVISIBLE):
        raise PromptError(f"{name} is {text!r}, which says nothing; write it in words")
    return words


def _check_letters(text: str, name: str) -> None:
    """Half a surrogate pair, as from a command line in another encoding, is no letter."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{name} is {text[:80]!r}, in which {text[error.start]!r} is no letter; was it read in "
            "another encoding than it was written in?"
        ) from None


def _one_kind_of_line_end(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
