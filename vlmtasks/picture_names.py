"""Which file names are those of pictures. Imports nothing, so that the command line starts fast."""

from pathlib import Path

PICTURE_SUFFIXES = frozenset(
    # of those that Pillow cannot read (phones' .heic) the error tells, rather than nothing
    ".avif .bmp .gif .heic .heif .jfif .jpe .jpeg .jpg .jxl .pgm .png .ppm .tif .tiff .webp".split()
)


def is_picture_name(name: str | Path) -> bool:
    """Whether a file of this name is expected to be a picture; nobody looks into it."""
    return Path(name).suffix.lower() in PICTURE_SUFFIXES
