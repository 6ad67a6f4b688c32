"""Where a picture lies that a data file names.

Names are relative to the folder of the pictures. Tools write them in many ways; all of these are
understood, in this order, and the first file that exists is taken:

    sub/a.png   sub\\a.png   /a.png      the separator may be either, a leading one is ignored
    my%20cat.png                        as written, else with the escapes of URLs undone
    é.png                               as written, else with the accent as one letter or apart

A name that leaves the folder ("../a.png", "/etc/passwd", "C:\\a.png") is refused.
"""

import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from vlmtasks.datasets.problems import SHOWN_PROBLEMS
from vlmtasks.errors import DatasetError

_OTHER_PLACE = re.compile(r"[A-Za-z]:|[A-Za-z][A-Za-z0-9+.-]*://")  # a drive, a URL


def find_picture(root: str | os.PathLike[str], file_name: str) -> Path | None:
    """The path of a picture inside `root`, or None when there is no such file.

    DatasetError: a name that is empty, leaves `root`, or cannot be the name of a file; an absolute
    name that is no file inside `root`.
    """
    folder = Path(os.path.abspath(root))
    for name in _spellings(file_name):
        path = folder / _inner_path(folder, name, file_name)
        if os.path.isfile(path):
            return path
    return None


def find_pictures(
    root: str | os.PathLike[str], file_names: Iterable[str], *, skip_missing: bool = False
) -> dict[str, Path]:
    """The paths of all pictures by their names, checked before any of them is opened.

    skip_missing: leave missing ones out of the result rather than raise.
    DatasetError: missing pictures, the first ten by name and the number of all; see `find_picture`.
    """
    found: dict[str, Path] = {}
    missing: list[str] = []
    for name in file_names:
        path = find_picture(root, name)
        if path is None:
            missing.append(name)
        else:
            found[name] = path
    if missing and not skip_missing:
        shown = ", ".join(repr(name) for name in missing[:SHOWN_PROBLEMS])
        more = len(missing) - SHOWN_PROBLEMS
        raise DatasetError(
            f"{len(missing)} of {len(missing) + len(found)} pictures are not in "
            f"{os.fspath(root)!r}: {shown}{f' and {more} more' if more > 0 else ''}; "
            "check the folder"
        )
    return found


def _spellings(name: str) -> list[str]:
    names = (name, unquote(name))
    other = (unicodedata.normalize(form, one) for form in ("NFC", "NFD") for one in names)
    return list(dict.fromkeys((*names, *other)))


def _inner_path(folder: Path, name: str, written: str) -> PurePosixPath:
    slashed = name.replace("\\", "/")
    if slashed.startswith(folder.as_posix().rstrip("/") + "/"):
        slashed = slashed[len(folder.as_posix().rstrip("/")) :]
    if _OTHER_PLACE.match(slashed) or "\0" in slashed or not _is_encodable(slashed):
        raise DatasetError(_refusal(folder, written))
    parts = [part for part in slashed.split("/") if part not in ("", ".")]
    depth = 0
    for part in parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            raise DatasetError(_refusal(folder, written))
    inner = PurePosixPath(os.path.normpath("/".join(parts)))
    if not parts or inner == PurePosixPath("."):
        raise DatasetError(_refusal(folder, written))
    if slashed.startswith("/") and not os.path.isfile(folder / inner):
        raise DatasetError(_refusal(folder, written))  # a leading slash that was not just habit
    return inner


def _is_encodable(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _refusal(folder: Path, name: str) -> str:
    return (
        f"{name!r} is no name of a picture inside {os.fspath(folder)!r}; names are relative to the "
        "folder of the pictures and stay inside it"
    )
