"""Small changes to bytes, texts, JSON trees and files; and values that have broken programs."""

import copy
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


class Raw(str):
    """A piece of JSON text that stands for itself, whether it is JSON or not."""

    __slots__ = ()


NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 7, 255, 256, 1023, 1024, 65535, 65536, 10**6, 2**31 - 1, 2**31, 2**32, 2**53 + 1,
    2**63, 2**64, 10**30, 10**400, -(10**400), 0.5, -0.0, 1.5, 1e-320, 1e39, 1e308, -1e308,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS = (
    "", " ", "\n", "x", "cat", "Cat ", "x" * 5000, "\0", "a\0b", "\ud800", "\udcff", "\ufeff",
    "\u2028", "\u202e", "猫", "e\u0301", "🐕", "a;b", "a ; b", "../x", "..\\x", "/etc/passwd",
    "C:\\x", "~x", "~nobody/x", "a" * 300+".png", "%2e%2e/x", "http://x/y.png", "<loc0000>",
    "<image>", "<eos>", "{}", "{0}", "%s", "nan", "1e999", "1_000", "٣", "-1", "true", "null",
    "None",
)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [None], {"": None}, [0] * 1000, *NUMBERS, *TEXTS,
    Raw("1" * 5000), Raw("1e999"), Raw("-0"), Raw("NaN"), Raw("Infinity"), Raw("[" * 100_000),
    Raw('{"a":' * 50_000), Raw('"\\ud800"'), Raw('"\\udc00\\ud800"'), Raw("tru"), Raw('"'), Raw(""),
    Raw('{"id": 1, "id": 2}'),
)  # fmt: skip
_BYTES = (
    b"\0",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\0\0\0\x80",
    b"\n",
    b"{",
    b'"',
)


def few(random: Random, most: int = 4) -> int:
    """1 to `most`, small numbers more often."""
    return min(random.randint(1, most), random.randint(1, most))


def mutate_bytes(random: Random, data: bytes) -> bytes:
    """Some bytes changed, removed, put in, doubled or cut off."""
    for _ in range(few(random)):
        at = random.randrange(len(data) + 1)
        length = random.choice((1, 1, 2, 4, 16, 256))
        piece = data[at : at + length]
        new = random.choice(
            (
                random.choice(_BYTES),
                random.randbytes(length),
                random.choice((0, 1, 2**31 - 1, 2**32 - 1)).to_bytes(
                    4, random.choice(("big", "little"))
                ),
                b"",
                piece * 2,
                bytes(byte ^ 1 << random.randrange(8) for byte in piece),
            )
        )
        data = data[:at] + new + data[at + length :]
        if random.random() < 0.1:
            data = data[: random.randrange(len(data) + 1)]
    return data


def mutate_json(random: Random, value: T, most: int = 4) -> T:
    """A copy with some nodes replaced, removed, doubled, moved or renamed."""
    value = copy.deepcopy(value)
    for _ in range(few(random, most)):
        places = _places(value)
        if not places:
            return value
        parent, key = random.choice(places)
        _change(random, parent, key, places)
    return value


def _change(random: Random, parent: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
    choice = random.random()
    if choice < 0.5:
        parent[key] = copy.deepcopy(random.choice(JSON_VALUES))
    elif choice < 0.65:
        del parent[key]
    elif choice < 0.75:
        other, there = random.choice(places)
        parent[key] = copy.deepcopy(other[there]) if there in _keys(other) else None
    elif choice < 0.85:
        parent[key] = random.choice(([parent[key]], {"x": parent[key]}, str(parent[key])))
    elif isinstance(parent, dict):
        parent[random.choice(TEXTS) if random.random() < 0.5 else str(key) + "_"] = parent[key]
    else:
        parent.insert(random.randrange(len(parent) + 1), copy.deepcopy(parent[key]))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every node below the root."""
    found: list[tuple[Any, Any]] = []
    rest = [value]
    while rest:
        container = rest.pop()
        for key in _keys(container):
            found.append((container, key))
            rest.append(container[key])
    return found


def _keys(container: Any) -> Sequence[Any]:
    if isinstance(container, dict):
        return list(container)
    return range(len(container)) if isinstance(container, list) else ()


def dump_json(value: Any) -> str:
    """JSON text of a tree, `Raw` pieces as they are and integers of any length."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        entries = (f"{json.dumps(str(key))}: {dump_json(item)}" for key, item in value.items())
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(dump_json, value))}]"
    return json.dumps(value)


def json_bytes(random: Random, value: Any) -> bytes:
    """JSON as a file may hold it: mostly UTF-8, sometimes damaged or in another encoding."""
    text = dump_json(value)
    choice = random.random()
    if choice < 0.9:
        return text.encode()
    if choice < 0.92:
        return b"\xef\xbb\xbf" + text.encode()
    if choice < 0.94:
        return text.encode("utf-16")
    return mutate_bytes(random, text.encode())


def put(random: Random, path: Path, content: bytes) -> None:
    """Write a file; now and then something else is in its place."""
    clear(path)
    choice = random.random()
    if choice > 0.04:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    elif choice > 0.03:
        path.mkdir(parents=True)
    elif choice > 0.02:
        path.symlink_to(path.name)
    elif choice > 0.01:
        path.symlink_to("/etc/hostname")


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
