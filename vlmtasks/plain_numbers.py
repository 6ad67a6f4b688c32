"""NumPy's numbers as Python's own. Arguments come out of arrays as often as out of literals."""

import operator
from numbers import Integral, Real
from typing import Any


def plain_number(value: Any) -> Any:
    """An int or float of the same value; anything else, bool too, as it is.

    >>> [plain_number(value) for value in (3, 0.5, True, "3")]
    [3, 0.5, True, '3']
    """
    if type(value) in (bool, int, float):  # soon done: a COCO file holds millions of them
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def whole_number(value: Any) -> int:
    """An int, from 7.0 too, as tools write that keep numbers as floats. TypeError: anything else.

    >>> whole_number(7.0)
    7
    """
    try:
        return operator.index(value)
    except TypeError:
        number = plain_number(value)
        if isinstance(number, float) and number.is_integer():
            return int(number)
        raise


def number_from_text(word: str) -> float:
    """`float`, but for 1_000, which only Python reads as a number. ValueError: no number.

    >>> number_from_text("-1.5e2")
    -150.0
    """
    if "_" in word:
        raise ValueError(f"{word!r} is no number")
    return float(word)
