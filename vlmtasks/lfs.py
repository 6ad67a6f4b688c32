"""Pointers of Git LFS: small texts in place of files that were never fetched.

Whoever clones a repository without Git LFS has them where weights and pictures should be.
"""

import os
from pathlib import Path

_POINTER = b"version https://git-lfs"


def is_pointer(content: bytes) -> bool:
    return content.startswith(_POINTER)


def pointer_hint(path: str | os.PathLike[str]) -> str:
    """What to add to an error about a file that cannot be read; "" for a file of its own."""
    try:
        with Path(path).open("rb") as file:
            found = is_pointer(file.read(len(_POINTER)))
    except (OSError, ValueError):
        return ""
    return "; it is a pointer of Git LFS, not the file itself: run `git lfs pull`" if found else ""
