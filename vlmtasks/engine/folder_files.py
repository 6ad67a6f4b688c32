"""Files of a checkpoint folder that nobody has to trust.

Names that come out of a file (a shard in an index, a codec in vlmtasks.json) may not lead out of
the folder, neither by "..", nor as absolute paths, nor through symbolic links. Nothing here opens a
pickle.
"""

import json
from collections import Counter
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from vlmtasks.errors import CheckpointError, MissingFileError
from vlmtasks.lfs import pointer_hint

MAX_JSON_BYTES = 256 * 1024 * 1024


def member(folder: Path, name: Any) -> Path:
    """The path of the file `name` in `folder`, which need not exist.

    Raises CheckpointError, before anything is opened, for a name that leads out of the folder.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise CheckpointError(f"{folder}: {name!r} is no file name")
    windows = PureWindowsPath(name)
    parts = (*PurePosixPath(name).parts, *windows.parts)
    if PurePosixPath(name).is_absolute() or windows.drive or windows.root or ".." in parts:
        raise CheckpointError(
            f"{folder}: refused to open {name!r}, which leads out of the checkpoint folder"
        )
    path = folder / name
    try:
        path.is_file()  # or the reason why no file can have this name
        resolved, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError, UnicodeEncodeError) as error:  # RuntimeError: links in a circle
        raise CheckpointError(f"{folder}: {name[:80]!r} cannot be opened: {error!s:.200}") from None
    # A hub cache keeps its files as links from snapshots/<revision>/ to ../../blobs/.
    roots = [root] + ([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])
    if not any(resolved.is_relative_to(allowed) for allowed in roots):
        raise CheckpointError(
            f"{folder}: refused to open {name!r}, a link to {resolved} outside of the checkpoint "
            "folder; copy the file into the folder"
        )
    return path


def read_json(folder: Path, name: str, *, required: bool = True) -> dict[str, Any] | None:
    """The JSON object in a file of the folder; None where it is absent and not required.

    Raises MissingFileError, or CheckpointError for anything but one object without double keys.
    """
    path = member(folder, name)
    if not path.is_file():
        if required:
            deep = [*folder.glob(f"*/{name}"), *folder.glob(f"snapshots/*/{name}")]  # a hub cache
            inner = sorted(path.parent.relative_to(folder).as_posix() for path in deep)[:5]
            hint = f"; its folders {', '.join(inner)} do: pass one of them" if inner else ""
            raise MissingFileError(f"{folder} holds no {name}{hint}")
        return None
    if path.stat().st_size > MAX_JSON_BYTES:
        raise CheckpointError(f"{path} is larger than {MAX_JSON_BYTES} bytes; it is no {name}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    return parse_json(content, path)


def parse_json(content: bytes, path: Path) -> dict[str, Any]:
    """One JSON object. Raises CheckpointError for anything else, and for keys that stand twice."""

    def without_double_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            times = Counter(name for name, _ in pairs)
            double = sorted(name for name in times if times[name] > 1)
            raise CheckpointError(f"{path} holds these keys more than once: {double[:5]}")
        return data

    try:
        text = content.decode("utf-8-sig")  # editors on Windows write a byte order mark
        data = json.loads(text, object_pairs_hook=without_double_keys)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:  # also: integers of thousands of digits
        hint = pointer_hint(path)
        raise CheckpointError(f"{path} is not valid JSON: {error}{hint}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(data).__name__}")
    return data
