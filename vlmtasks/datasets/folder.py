"""A folder of pictures as a data set without annotations."""

import os
from pathlib import Path

from PIL import Image

from vlmtasks.boxes import SizeWH
from vlmtasks.datasets.coco import CocoDataset, CocoImage
from vlmtasks.datasets.problems import Problems
from vlmtasks.errors import DatasetError
from vlmtasks.picture_names import PICTURE_SUFFIXES


def read_folder(root: str | os.PathLike[str], *, skip_unreadable: bool = False) -> CocoDataset:
    """All pictures below a folder, in the order of their names, numbered from 1.

    Files are told by the endings in PICTURE_SUFFIXES, hidden ones (as macOS makes: `._x`) are
    left out. Only headers are read.
    skip_unreadable: leave broken files out, named in `repairs`, rather than raise.
    DatasetError: no such folder, no picture in it, or broken files, all of them listed.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise DatasetError(f"{os.fspath(root)!r} is no folder; give the folder of the pictures")
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in PICTURE_SUFFIXES
        and not path.name.startswith(".")
        and path.is_file()
    )
    problems = Problems()
    images = {}
    for path in files:
        name = path.relative_to(folder).as_posix()
        try:
            images[len(images) + 1] = CocoImage(len(images) + 1, name, picture_size(path))
        except DatasetError as error:
            problems.add(name, str(error))
    if not skip_unreadable:
        problems.raise_if_any()
    if not images:
        endings = " ".join(sorted(PICTURE_SUFFIXES))
        raise DatasetError(f"{os.fspath(root)!r} holds no picture that can be read ({endings})")
    return CocoDataset(images, name=folder.name, repairs=tuple(problems.messages()))


def picture_size(path: str | os.PathLike[str]) -> SizeWH:
    """(width, height) of a picture as a viewer shows it, EXIF orientation applied.

    Only the header is read. DatasetError: not a picture.
    """
    try:
        with Image.open(path) as picture:
            turned = picture.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
            width, height = picture.size
            if picture.format == "TIFF":  # Pillow may have turned its size already
                tags = picture.tag_v2  # pyright: ignore[reportAttributeAccessIssue]
                width, height = tags[_WIDTH], tags[_HEIGHT]
    except Exception as error:  # Pillow's readers raise almost anything on broken files
        raise DatasetError(f"cannot be read as a picture: {error}") from None
    return (height, width) if turned else (width, height)


# tags of EXIF and TIFF
_WIDTH, _HEIGHT, _ORIENTATION = 0x0100, 0x0101, 0x0112
