"""Whatever a user calls a picture → an upright RGB picture.

What is decided here, and why:

- EXIF orientation is applied, so boxes fit what people see; `keep_orientation=True` leaves the
  pixels as they are stored, for data sets that were annotated that way.
- Transparency is laid on white. big_vision drops the alpha channel instead, which brings out the
  colours hidden under transparent pixels (often black): not what anybody sees.
- 16 bits become 8 by dropping the low byte (value // 256), never by clipping.
- Animations and multi-page files give their first frame, wherever the caller has sought to.
- Colours are taken as sRGB; embedded colour profiles are not applied.
- Arrays are RGB, not BGR: cv2 users convert first.
"""

import io
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from vlmtasks.errors import ImageError, MissingImageError
from vlmtasks.lfs import is_pointer, pointer_hint
from vlmtasks.rgb import rgb_from_array, rgb_from_image

Picture: TypeAlias = (
    "str | os.PathLike[str] | bytes | bytearray | memoryview | Image.Image | NDArray[Any]"
)


def open_image(picture: Picture, *, keep_orientation: bool = False) -> Image.Image:
    """Return a new RGB picture of the same size in upright position.

    picture: a path, the bytes of a file, a PIL picture of any mode, or an array of shape (H, W),
        (H, W, 1), (H, W, 3) or (H, W, 4): uint8 levels, uint16 levels, bool, other integers within
        0..255, or floats within 0..1.
    keep_orientation: leave the pixels as stored instead of applying the EXIF orientation.

    The result holds no metadata, so passing it again changes nothing. The picture that was given
    is not changed. ImageError for everything that is no picture, damaged, or too large (Pillow's
    limit, `PIL.Image.MAX_IMAGE_PIXELS`); MissingImageError where there is no such file.
    """
    if isinstance(picture, Image.Image):
        name = getattr(picture, "filename", "") or f"the PIL picture of mode {picture.mode}"
        return _decode(lambda: _first_frame(picture), os.fspath(name), keep_orientation)
    if isinstance(picture, np.ndarray):
        return rgb_from_array(picture)
    if isinstance(picture, bytes | bytearray | memoryview):
        data = bytes(picture)
        if not data:
            raise ImageError("the picture is empty (0 bytes); pass the bytes of a picture file")
        if is_pointer(data):
            raise ImageError("the picture is a pointer of Git LFS; run `git lfs pull` first")
        if _PATH_IN_BYTES.fullmatch(data):
            raise ImageError(
                f"the picture is {data!r:.80}; a path is a str: pass os.fsdecode(path)"
            )
        name = f"the picture of {len(data)} bytes"
        return _decode(lambda: Image.open(io.BytesIO(data)), name, keep_orientation)
    if isinstance(picture, str | os.PathLike):
        path = _check_path(picture)
        return _decode(lambda: Image.open(path), path, keep_orientation)
    raise ImageError(_explain_type(picture))


def _decode(
    opener: Callable[[], AbstractContextManager[Image.Image]], name: str, keep_orientation: bool
) -> Image.Image:
    try:
        with opener() as image:
            if image.format in _RUN_A_PROGRAM:
                raise ImageError(f"{name} is {image.format}, drawn by a program; save it as PNG")
            return _upright_rgb(image, name, keep_orientation)
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(
            f"{name} is too large: {error}; raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        ) from error
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{name} cannot be read: it is no picture in a format that Pillow knows, or its head "
            "is truncated or damaged; convert it to PNG or JPEG"
        ) from error
    except Exception as error:  # hostile bytes reach dozens of decoders; each has its own errors
        if str(error) == "Operation on closed image":
            raise ImageError(f"{name} is closed; pass it before it is closed") from error
        raise ImageError(
            f"{name} is truncated or damaged: {str(error) or repr(error)}; get a new copy of it"
        ) from error


def _upright_rgb(image: Image.Image, name: str, keep_orientation: bool) -> Image.Image:
    if min(image.size) < 1:
        raise ImageError(f"{name} has the size {image.size}; it must have at least one pixel")
    # Only TIFF is asked before loading: for the metadata of a PNG Pillow reads its pixels, and
    # damage in them would pass for damaged metadata.
    stored_as = _orientation(image) if image.format == "TIFF" else None
    image.load()
    left_over = _orientation(image)  # Pillow has already turned TIFF files
    stored_as = left_over if stored_as is None else stored_as
    rgb = rgb_from_image(image, name)
    if not keep_orientation:
        turn = _UPRIGHT.get(left_over)
    else:
        turn = _AS_STORED.get(stored_as) if stored_as != left_over else None
    if turn is not None:
        rgb = rgb.transpose(turn)
    rgb.info = {}
    return rgb


_RUN_A_PROGRAM = frozenset({"EPS"})  # Pillow would start ghostscript on it

_T = Image.Transpose
_UPRIGHT = {
    2: _T.FLIP_LEFT_RIGHT,
    3: _T.ROTATE_180,
    4: _T.FLIP_TOP_BOTTOM,
    5: _T.TRANSPOSE,
    6: _T.ROTATE_270,
    7: _T.TRANSVERSE,
    8: _T.ROTATE_90,
}
_AS_STORED = _UPRIGHT | {6: _T.ROTATE_90, 8: _T.ROTATE_270}


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # a picture with damaged metadata is still a picture
        return 1


@contextmanager
def _first_frame(image: Image.Image) -> Iterator[Image.Image]:
    """The first frame of a picture that the caller may have sought in; it stays where it is."""
    position = image.tell()
    if position == 0 or image.format == "PSD":  # the layers of a PSD file are no frames
        yield image
        return
    stream = getattr(image, "_fp", None)  # where Pillow keeps the file of GIF, PNG, TIFF and MPO
    if stream is not None:  # seeking back in an animated PNG fails, so read it anew
        there = stream.tell()
        stream.seek(0)
        data = stream.read()
        stream.seek(there)
        with Image.open(io.BytesIO(data)) as first:
            yield first
        return
    image.seek(0)
    try:
        yield image
    finally:
        image.seek(position)


def _check_path(picture: str | os.PathLike[str]) -> str:
    path = os.fsdecode(picture)
    if path.startswith("~") and not os.path.lexists(path):  # as `load` does
        path = os.path.expanduser(path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://|data:", path):
        raise ImageError(
            f"the picture is the address {path[:80]!r}; nothing is fetched: download it and pass "
            "the file or its bytes"
        )
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise MissingImageError(f"there is no picture {_shorten(path)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ImageError(f"the picture cannot be opened: {reason}: {_shorten(path)}") from None
    if stat.S_ISDIR(status.st_mode):
        raise ImageError(f"{path!r} is a folder; name a picture in it")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(
            f"{path!r} is no ordinary file; write the picture to one, or pass its bytes"
        )
    if status.st_size == 0:
        raise ImageError(f"the picture {path!r} is empty (0 bytes); get a new copy of it")
    if status.st_size < 1024 and (hint := pointer_hint(path)):
        raise ImageError(f"the picture {path!r} cannot be read{hint}")
    return path


_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}={0,2}\s*")
_PATH_IN_BYTES = re.compile(rb"[^\0-\x1f]{1,300}\.\w{3,4}")


def _shorten(path: str) -> str:
    """What was given, for a message, and what it may be."""
    if _BASE64.fullmatch(path):
        return f"{path[:40] + '…'!r}; if it is the picture itself pass base64.b64decode(text)"
    return f"{path if len(path) <= 200 else path[:197] + '…'!r}; check the path"


def _explain_type(picture: object) -> str:
    kind = type(picture)
    wanted = "it must be a path, the bytes of a file, a PIL picture or a numpy array"
    if kind.__module__.split(".")[0] == "torch":
        return f"the picture is a torch tensor; {wanted}: pass tensor.cpu().numpy(), (H, W, 3)"
    if hasattr(picture, "read"):
        return f"the picture is an open file ({kind.__name__}); {wanted}: pass file.read()"
    if isinstance(picture, Iterator | Collection):
        return f"the picture is {kind.__name__}; {wanted}; several pictures come in a list"
    return f"the picture is {kind.__name__}; {wanted}"
