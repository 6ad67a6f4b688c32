"""Every word of the demo's small world: classes, colours, numbers and the forms of sentences."""

LABELS: tuple[str, ...] = tuple(
    (
        "cat dog horse pig fish car bus bicycle airplane boat apple banana pizza cake cup ball "
        "umbrella book clock tree flower house key guitar"
    ).split()
)
"""Class names; the position is the class index and the order in captions."""

COLORS: tuple[str, ...] = tuple(
    "red orange yellow green blue purple pink brown black white gray".split()
)
"""Colour names that an object may have."""

NUMBER_WORDS: tuple[str, ...] = tuple("no one two three four five six seven eight nine ten".split())
"""Spelled numbers, by value; captions use them from two on."""

NOTHING = "nothing"
"""Caption and answer of a picture without objects."""

LETTERING = "text"
"""What a caption calls lettering, however many words it has."""

_IRREGULAR_PLURALS = {"fish": "fish", "bus": "buses"}


def plural(label: str) -> str:
    """The plural of a class name.

    >>> plural("bus"), plural("fish"), plural("cat")
    ('buses', 'fish', 'cats')
    """
    return _IRREGULAR_PLURALS.get(label, label + "s")


def with_article(phrase: str) -> str:
    """ "a cat", "an apple", "an orange car"."""
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def join_phrases(phrases: list[str]) -> str:
    """ "a cat", "a cat and two dogs", "a cat, two dogs and a car"."""
    if len(phrases) < 2:
        return "".join(phrases)
    return ", ".join(phrases[:-1]) + " and " + phrases[-1]


def how_many(label: str | None) -> str:
    """The question for the number of a class, of all objects for None."""
    return f"how many {plural(label) if label else 'objects'}?"


def what_color(label: str) -> str:
    """The question for the colour of the only object of a class."""
    return f"what color is the {label}?"


def is_there(label: str) -> str:
    """The question whether a class is present."""
    return f"is there {with_article(label)}?"


WHAT_OBJECTS = "what objects are in the image?"

_TASK_WORDS = "detect segment caption cap describe answer question ocr en"
_OTHER_WORDS = "a an the and is are there how many what color objects object in of image picture"


def domain_words() -> tuple[str, ...]:
    """Every word that a prompt or an answer of the demo is made of, each once, in a fixed order.

    Lettering and numbers in digits are no words: they are spelled character by character.
    """
    words = _TASK_WORDS.split() + _OTHER_WORDS.split() + ["yes", "no", NOTHING, LETTERING]
    words += [*LABELS, *map(plural, LABELS), *COLORS, *NUMBER_WORDS]
    return tuple(dict.fromkeys(words))
