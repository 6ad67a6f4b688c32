"""What a command line names: pictures first, words last."""

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vlmtasks.errors import InputError
from vlmtasks.picture_names import is_picture_name


@dataclass(frozen=True)
class Input:
    """One picture that was asked for, or the reason why there is none.

    name: the path as results show it.
    error: None, or why this part of the command line names no picture.
    """

    name: str
    error: str | None = None


def split_words(positional: Sequence[str], option: str | None, needs: str) -> tuple[list[str], str]:
    """Split `PICTURE... WORDS` into pictures and words.

    option: the words when they came by an option; then everything positional is a picture.
    needs: the sentence that says what is needed, such as "detect needs a class name".
    InputError when the words or the pictures are missing.
    """
    if option is not None:
        return list(positional), option
    *pictures, words = positional
    if looks_like_picture(words):
        raise InputError(f"{needs} after the pictures; the last word given is {words!r}")
    if not pictures:
        raise InputError(f"{needs} and a picture before it; only {words!r} was given")
    return pictures, words


def looks_like_picture(word: str) -> bool:
    """Whether a word is meant as a picture or a folder rather than as a class or a question."""
    if is_picture_name(word):
        return os.path.isfile(word) or not any(letter.isspace() for letter in word)
    if os.path.isfile(word) and os.path.splitext(word)[1]:  # such as a PDF: no picture, no class
        return True
    return ("/" in word or os.sep in word) and os.path.exists(word)


def find_pictures(arguments: Iterable[str], *, words: str | None = None) -> list[Input]:
    """Every picture that is named, in order.

    A folder stands for the pictures directly in it and a pattern (`*`, `?`, `[…]`, `**`) for the
    pictures that match it, both sorted by name; hidden files are left out. Whatever names nothing
    stays in the list with its error. A file is taken as it is: nobody looks into it here.
    words: what the command wants behind the pictures, "labels" or "question", of which some words
        may have gone astray.
    """
    found: list[Input] = []
    for argument in map(_expanded, arguments):
        if os.path.isdir(argument):
            names = _pictures_in(os.path.join(argument, name) for name in os.listdir(argument))
            found += names or [Input(argument, "the folder holds no pictures")]
        elif os.path.exists(argument) or "://" in argument:  # the latter gets a reason of its own
            found.append(Input(argument))
        elif glob.has_magic(argument):
            names = _pictures_in(glob.glob(argument, recursive=True))
            found += names or [Input(argument, "no picture matches this pattern")]
        else:
            found.append(Input(argument, f"there is no such file{_hint(argument, words)}"))
    return found


def _expanded(argument: str) -> str:
    """With ~ for the home folder, which a shell leaves alone in quotes."""
    return argument if os.path.lexists(argument) else os.path.expanduser(argument)


_HINTS = {
    None: "",
    "labels": "; what is looked for comes last and in one word: 'cat ; dog'",
    "question": "; the question comes last and in quotes: 'how many cats?'",
}


def _hint(argument: str, words: str | None) -> str:
    is_path = is_picture_name(argument) or "/" in argument or os.sep in argument
    return "" if is_path else _HINTS[words]


def _pictures_in(paths: Iterable[str]) -> list[Input]:
    return [
        Input(path)
        for path in sorted(paths)
        if is_picture_name(path)
        and not os.path.basename(path).startswith(".")
        and (os.path.isfile(path) or (os.path.islink(path) and not os.path.exists(path)))
    ]
