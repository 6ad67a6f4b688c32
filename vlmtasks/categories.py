"""Category names ↔ ids of COCO, tolerant of case and blanks.

The model writes "stop  sign" where the data set says "Stop Sign": names are compared without case,
with white space collapsed. Ids are what the data set says; nothing is numbered by position unless a
plain list of names is given.
"""

import operator
import unicodedata
from collections.abc import Iterable, KeysView, Mapping, Set
from typing import Any

from vlmtasks.errors import InputError
from vlmtasks.shorten import shorten

# Blanks, byte order mark, zero-width blanks and joiners, which come along when names are copied.
INVISIBLE = " \ufeff\u200b\u200c\u200d\u2060"


class CocoCategories:
    """A lookup in both directions.

    categories: what is at hand: {name: id}, {id: name}, COCO's [{"id": …, "name": …}, …], a whole
        COCO object with "categories", pycocotools' `coco.cats`, or a list of names, which get the
        ids 1, 2, 3 …

    InputError: two names that differ only in case or blanks, an id that occurs twice, an id that is
    no whole number of at least 0, or no name.
    """

    def __init__(self, categories: "CocoCategories | Mapping[Any, Any] | Iterable[Any]") -> None:
        self._names: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        for category_id, name in _pairs(categories):
            self._insert(category_id, name)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"CocoCategories({self._names})"

    def id(self, label: str) -> int | None:
        """The id of a label, None for a label that is no category."""
        return self._ids.get(normalize_name(label))

    def name(self, category_id: int) -> str:
        """The name as the data set spells it. InputError for an id that is not there."""
        if category_id not in self._names:
            raise InputError(
                f"category id {shorten(category_id)} is not one of {sorted(self._names)}"
            )
        return self._names[category_id]

    def add(self, label: str) -> int:
        """The id of a label, which becomes a category with the next free id if it is none yet."""
        known = self.id(label)
        if known is not None:
            return known
        category_id = max(self._names, default=0) + 1
        self._insert(category_id, label)
        return category_id

    def to_list(self) -> list[dict[str, Any]]:
        """COCO's [{"id": …, "name": …}, …], by id."""
        return [{"id": key, "name": name} for key, name in sorted(self._names.items())]

    def _insert(self, category_id: Any, name: Any) -> None:
        if not isinstance(name, str) or not name.strip():
            raise InputError(
                f"a category has the name {shorten(name)}; it must be a str with letters"
            )
        if isinstance(category_id, bool) or not hasattr(category_id, "__index__"):
            raise InputError(
                f"category {name!r} has the id {shorten(category_id)}; it must be an integer"
            )
        number = operator.index(category_id)
        if number < 0:
            raise InputError(f"category {name!r} has the id {shorten(number)}; ids are 0 or more")
        if number in self._names:
            raise InputError(
                f"categories {self._names[number]!r} and {name!r} have the same id "
                f"{shorten(number)}"
            )
        known = self._ids.get(normalize_name(name))
        if known is not None:
            raise InputError(
                f"categories {self._names[known]!r} (id {known}) and {name!r} (id {number}) differ "
                "at most in case and blanks, which the model does not tell apart; rename one"
            )
        self._names[number] = name
        self._ids[normalize_name(name)] = number


def normalize_name(name: str) -> str:
    """What two spellings of a class have in common: no case, single blanks, composed letters,
    nothing invisible at the ends."""
    return " ".join(unicodedata.normalize("NFC", name).casefold().split()).strip(INVISIBLE)


def is_ordered(names: Any) -> bool:
    """Whether names can be listed in an order: not those of a set, but the keys of a dict."""
    return isinstance(names, Iterable) and (
        isinstance(names, KeysView) or not isinstance(names, Set)
    )


def _pairs(categories: Any) -> list[tuple[Any, Any]]:
    if isinstance(categories, CocoCategories):
        return list(categories._names.items())
    if isinstance(categories, Mapping) and isinstance(categories.get("categories"), list):
        categories = categories["categories"]
    if isinstance(categories, Iterable) and not is_ordered(categories):
        raise InputError(
            f"categories are {shorten(categories)}; a set has no order to number them in: pass a "
            "list"
        )
    if isinstance(categories, Mapping):
        if any(isinstance(a, str) and isinstance(b, str) for a, b in categories.items()):
            raise InputError(
                f"categories are {shorten(categories)}; an id must be an integer, in {{name: id}} "
                "and in {id: name}; JSON makes keys str"
            )
        if "categories" in categories and categories["categories"] is None:
            raise InputError(f"categories are {shorten(categories)}, which names none")
        if categories and all(isinstance(entry, Mapping) for entry in categories.values()):
            return _pairs(list(categories.values()))  # pycocotools' `coco.cats`
        return [(b, a) if isinstance(a, str) else (a, b) for a, b in categories.items()]
    if isinstance(categories, str | bytes) or not isinstance(categories, Iterable):
        raise InputError(
            f"categories are {shorten(categories)}; they must be {{name: id}}, COCO's list of "
            "{'id', 'name'}, or a list of names"
        )
    return [_pair(entry, place) for place, entry in enumerate(categories, 1)]


def _pair(entry: Any, place: int) -> tuple[Any, Any]:
    if isinstance(entry, str):
        return place, entry
    if isinstance(entry, Mapping) and "id" in entry and "name" in entry:
        return entry["id"], entry["name"]
    raise InputError(f"category {shorten(entry)} must be a name or an object with 'id' and 'name'")
