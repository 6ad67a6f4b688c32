"""JSON and text files, read with the place of every mistake and written whole or not at all."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from vlmtasks.errors import DatasetError, InputError
from vlmtasks.lfs import pointer_hint
from vlmtasks.shorten import shorten


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a file; DatasetError when it cannot be opened."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise DatasetError(
            f"{os.fspath(path)!r} cannot be read: {reason}; check the path"
        ) from None


def read_text(path: str | os.PathLike[str]) -> str:
    """UTF-8 text without byte order mark. DatasetError: the line of a byte that is not UTF-8."""
    return decode_text(read_bytes(path), os.fspath(path))


def decode_text(data: bytes, place: str, line: int = 1) -> str:
    """Bytes to text; `line` is the number of their first line in the file."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith(b"\x1f\x8b"):
            raise DatasetError(f"{place} is compressed (gzip); unpack it first") from None
        line += data.count(b"\n", 0, error.start)
        raise DatasetError(
            f"{place}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8; "
            "save the file as UTF-8"
        ) from None


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value of a JSON file. DatasetError: unreadable, not JSON, NaN, nested too deeply."""
    return parse_json(read_text(path), os.fspath(path))


def parse_json(text: str, place: str, line: int = 1) -> Any:
    """The value of a JSON text that starts on `line` of the file `place`."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        reason = f"line {line + error.lineno - 1}, column {error.colno}: not JSON: {error.msg}"
        if error.msg == "Extra data":
            reason += "; a file holds one value: put several into one list [...]"
        reason += pointer_hint(place)
    except RecursionError:
        reason = f"line {line}: nested too deeply to be a data file"
    except ValueError as error:
        where = "" if "\n" in text else f"line {line}: "  # the decoder does not say where
        reason = f"{where}not JSON that can be used: {error}"
    raise DatasetError(f"{place}, {reason}")


def to_json(value: Any, indent: int | None = None) -> str:
    """Value to JSON text. InputError: NaN, infinity, types that JSON does not have."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except (TypeError, ValueError) as error:
        raise InputError(f"{shorten(value)} cannot be written as JSON: {error}") from None


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write JSON as UTF-8; see `write_text`. InputError: what JSON cannot hold."""
    write_text(path, to_json(value, indent=1) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text whole or not at all: a kill leaves the old file or the new one.

    Halves of surrogate pairs, which no UTF-8 can hold, become "?". A link stays a link: the file
    that it leads to is written. InputError: no such folder, or no file that can be written.
    """
    target = _writable(path)
    draft = target.with_name(target.name + ".part")
    try:
        draft.write_bytes(text.encode("utf-8", errors="replace"))
        os.replace(draft, target)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise InputError(
            f"{os.fspath(path)!r} cannot be written: {error.strerror or error}; choose another file"
        ) from None


def line_of_entry(path: str | os.PathLike[str], key: str | None, index: int) -> int | None:
    """The line on which `value[key][index]` of a JSON file starts; None when it is not there.

    key: None for a file that is a list itself.
    """
    text = read_text(path)
    try:
        start = _find_entry(text, key, index)
    except (ValueError, RecursionError, IndexError):
        return None
    return None if start is None else text.count("\n", 0, start) + 1


def _writable(path: str | os.PathLike[str]) -> Path:
    """The file that is written, links followed."""
    try:
        target = Path(os.path.realpath(path))
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{os.fspath(path)!r} is no name of a file: {error}") from None
    if not os.path.isdir(target.parent):  # unlike Path.is_dir it never raises
        raise InputError(f"there is no folder {str(target.parent)!r}; make it first")
    if os.path.exists(target) and not os.path.isfile(target):  # a pipe would become a file
        kind = "a folder" if os.path.isdir(target) else "no ordinary file"
        raise InputError(f"{os.fspath(path)!r} is {kind}; give the name of a file to write")
    return target


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; write null or leave the field out")


def _without_double_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets the last one win, so half of a file's pictures could vanish without a word."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        doubled = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object holds the key {shorten(doubled)} more than once; merge them")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_without_double_keys)


def _find_entry(text: str, key: str | None, index: int) -> int | None:
    """The offset of an element of a top-level array, by decoding what comes before it."""
    at = _skip_blanks(text, 0) + 1  # behind "{" or "["
    if key is None:
        return _nth_element(text, at, index)
    while text[at := _skip_blanks(text, at)] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _skip_blanks(text, _skip_blanks(text, at) + 1)  # behind ":"
        if name == key and text[at] == "[":
            return _nth_element(text, at + 1, index)
        _, at = _DECODER.raw_decode(text, at)
        at = _skip_blanks(text, at)
        at += text[at] == ","
    return None


def _nth_element(text: str, at: int, index: int) -> int | None:
    for _ in range(index):
        if text[at := _skip_blanks(text, at)] == "]":
            return None
        _, at = _DECODER.raw_decode(text, at)
        at = _skip_blanks(text, at) + 1  # behind ","
    return _skip_blanks(text, at)


def _skip_blanks(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at
