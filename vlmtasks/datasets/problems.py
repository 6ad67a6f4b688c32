"""The mistakes of a data set, collected so that a user sees all of them at once."""

import math
from collections.abc import Callable

from vlmtasks.errors import DatasetError
from vlmtasks.plain_numbers import plain_number

SHOWN_PROBLEMS = 10


class DatasetWarning(UserWarning):
    """A data file was used, but something in it was filled in or left out."""


class Problems:
    """A list of mistakes, each with its place in a file."""

    def __init__(self) -> None:
        self._found: list[tuple[str | Callable[[], str], str]] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, place: str | Callable[[], str], message: str) -> None:
        """place: file with line or entry; a function when the line takes time to find."""
        self._found.append((place, message))

    def messages(self) -> list[str]:
        """The first ten mistakes, and how many more there are."""
        shown = [
            f"{place if isinstance(place, str) else place()}: {message}"
            for place, message in self._found[:SHOWN_PROBLEMS]
        ]
        more = len(self._found) - SHOWN_PROBLEMS
        return [*shown, f"… and {more} more"] if more > 0 else shown

    def raise_if_any(self) -> None:
        """Raise one DatasetError that shows the first ten mistakes and counts the others."""
        if not self._found:
            return
        if len(self._found) == 1:
            raise DatasetError(self.messages()[0])
        shown = "\n  ".join(self.messages())
        raise DatasetError(f"{len(self._found)} mistakes:\n  {shown}")


def is_finite_number(value: object) -> bool:
    """A number, NumPy's too, neither NaN nor infinite nor too large for a float; no bool."""
    try:
        number = plain_number(value)
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
        return is_number and math.isfinite(number)
    except OverflowError:
        return False
