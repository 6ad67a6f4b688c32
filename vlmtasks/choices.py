"""Arguments that must be one of a few values."""

from collections.abc import Iterable
from typing import Any

from vlmtasks.errors import InputError
from vlmtasks.shorten import shorten


def check_choice(
    value: Any, allowed: Iterable[Any], name: str, error: type[InputError] = InputError
) -> Any:
    """Return the value if it is allowed. `error` for anything else, be it an array or a list.

    >>> check_choice("a", ("a", "b"), "letter")
    'a'
    """
    allowed = tuple(allowed)
    # an array compares element by element: neither "in" nor "if" has an answer for it
    if getattr(value, "ndim", 0) == 0 and any(value is one or value == one for one in allowed):
        return value
    raise error(f"{name} is {shorten(value)}; it must be one of {', '.join(map(str, allowed))}")
