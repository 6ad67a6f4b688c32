"""NumPy's numbers as Python's own. Arguments come out of arrays as often as out of literals."""

from numbers import Integral, Real
from typing import Any


def plain_number(value: Any) -> Any:
    """An int or float of the same value; anything else, bool too, as it is.

    >>> [plain_number(value) for value in (3, 0.5, True, "3")]
    [3, 0.5, True, '3']
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value
