"""The list of class names that a user gives along with files that only number or use them."""

from collections.abc import Callable, Sequence
from typing import Any

from vlmtasks.errors import DatasetError
from vlmtasks.shorten import shorten


def check_class_list(names: Any, same: Callable[[str], str] = str) -> list[str]:
    """The names without blanks at their ends. same: what two names share that are one class.

    DatasetError: no list of str, an empty list or name, a class named twice.
    """
    given = names if isinstance(names, Sequence) and not isinstance(names, str) else []
    if not given or not all(isinstance(name, str) and name.strip() for name in given):
        raise DatasetError(
            f"names is {shorten(names)}; it must be a list of the class names, in the order of "
            "their numbers"
        )
    cleaned = [name.strip() for name in given]
    seen: set[str] = set()
    for name in cleaned:
        if same(name) in seen:
            raise DatasetError(f"names holds {name!r} more than once; every class has its own name")
        seen.add(same(name))
    return cleaned
