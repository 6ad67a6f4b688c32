"""Which file names are those of pictures. Imports nothing, so that the command line starts fast."""

from pathlib import Path

PICTURE_SUFFIXES = frozenset(
    ".avif .bmp .gif .jfif .jpe .jpeg .jpg .pgm .png .ppm .tif .tiff .webp".split()
)


def is_picture_name(name: str | Path) -> bool:
    """Whether a file of this name is expected to be a picture; nobody looks into it."""
    return Path(name).suffix.lower() in PICTURE_SUFFIXES
