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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageCms, UnidentifiedImageError

from vlmtasks.errors import ImageError, MissingImageError

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
        return _from_array(picture)
    if isinstance(picture, bytes | bytearray | memoryview):
        data = bytes(picture)
        if not data:
            raise ImageError("the picture is empty (0 bytes); pass the bytes of a picture file")
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
        raise ImageError(
            f"{name} is truncated or damaged: {str(error) or repr(error)}; get a new copy of it"
        ) from error


def _upright_rgb(image: Image.Image, name: str, keep_orientation: bool) -> Image.Image:
    if min(image.size) < 1:
        raise ImageError(f"{name} has the size {image.size}; it must have at least one pixel")
    stored_as = _orientation(image)
    image.load()
    left_over = _orientation(image)  # Pillow has already turned TIFF files
    rgb = _to_rgb(image, name)
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


# --- colours -------------------------------------------------------------------------------------


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    """A new RGB picture from any mode of PIL."""
    if image.mode.startswith("I;16"):
        return _grey(_high_byte(np.asarray(image)))
    if image.mode in ("I", "F"):
        return _grey(_wide_levels(np.asarray(image), image.format in ("PNG", "PPM"), name))
    if image.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
        assert converted is not None  # only in-place conversion gives None
        return converted
    if image.mode == "La":
        image = image.convert("LA")
    if _is_transparent(image):
        return _on_white(image.convert("RGBA"))
    rgb = image.copy()
    rgb.info.pop("transparency", None)
    return rgb if rgb.mode == "RGB" else rgb.convert("RGB")


def _is_transparent(image: Image.Image) -> bool:
    transparent = image.info.get("transparency")
    if transparent is not None and image.mode in ("1", "L", "RGB"):  # one colour stands for holes
        return isinstance(transparent, tuple if image.mode == "RGB" else int)
    return image.has_transparency_data


def _on_white(rgba: Image.Image) -> Image.Image:
    white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, rgba).convert("RGB")


def _grey(levels: NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(levels).convert("RGB")


def _high_byte(values: NDArray[Any]) -> NDArray[np.uint8]:
    return (values // 256).astype(np.uint8)


def _wide_levels(values: NDArray[Any], is_16_bit: bool, name: str) -> NDArray[np.uint8]:
    """Levels of PIL's modes I and F, which do not say what white is.

    Fractions up to 1 (mode F only), levels up to 255, else 16 bits. Files of 16 bits are known.
    """
    low, high = values.min(), values.max()
    if not np.isfinite(values).all() or low < 0 or high >= 65536:
        raise ImageError(
            f"{name} has values of {low} to {high}; 32-bit pictures must hold 0..1, 0..255 or "
            "0..65535; scale it first"
        )
    if is_16_bit or high > 255:
        return _high_byte(values)
    if values.dtype.kind == "f" and high <= 1:
        values = values * 255
    return np.rint(values).astype(np.uint8)


# --- arrays --------------------------------------------------------------------------------------


def _from_array(array: NDArray[Any]) -> Image.Image:
    name = f"the array of shape {array.shape} and dtype {array.dtype}"
    if array.size == 0:
        raise ImageError(f"{name} is empty; a picture has at least one pixel")
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise ImageError(f"{name} is no picture{_explain_shape(array.shape)}")
    levels = _array_levels(array, name)
    if levels.shape[2] == 1:
        return _grey(levels[:, :, 0])
    image = Image.fromarray(levels)
    return _on_white(image) if image.mode == "RGBA" else image


def _explain_shape(shape: tuple[int, ...]) -> str:
    wanted = "; it must be (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)"
    if len(shape) == 3 and shape[0] in (1, 3, 4):
        return f"{wanted}; channels come last: pass array.transpose(1, 2, 0)"
    if len(shape) == 4:
        return f"{wanted}; pass a batch as a list of pictures: list(array)"
    return wanted


def _array_levels(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    kind = array.dtype.kind
    if array.dtype == np.uint8:
        return array.copy()
    if kind == "b":
        return array.astype(np.uint8) * 255
    if kind == "u" and array.dtype.itemsize == 2:
        return _high_byte(array)
    if kind not in "iuf":
        raise ImageError(f"{name} holds no levels; use uint8, uint16, bool or float of 0..1")
    if not np.isfinite(array).all():
        raise ImageError(f"{name} holds NaN or infinity; a picture has finite values")
    levels = np.rint(array * 255.0) if kind == "f" else array
    if levels.min() < 0 or levels.max() > 255:
        allowed = (
            "floats must be within 0..1; divide by 255, or use array.astype('uint8')"
            if kind == "f"
            else "integers must be within 0..255; 16-bit levels must have the dtype uint16"
        )
        raise ImageError(f"{name} has values of {array.min()} to {array.max()}; {allowed}")
    return levels.astype(np.uint8)


# --- arguments -----------------------------------------------------------------------------------


def _check_path(picture: str | os.PathLike[str]) -> str:
    path = os.fsdecode(picture)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://|data:", path):
        raise ImageError(
            f"the picture is the address {path[:80]!r}; nothing is fetched: download it and pass "
            "the file or its bytes"
        )
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise MissingImageError(f"there is no picture {path!r}; check the path") from None
    except (OSError, ValueError) as error:
        raise ImageError(f"the picture {path[:200]!r} cannot be opened: {error}") from None
    if stat.S_ISDIR(status.st_mode):
        raise ImageError(f"{path!r} is a folder; name a picture in it")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(f"{path!r} is no ordinary file; pass the bytes of the picture")
    if status.st_size == 0:
        raise ImageError(f"the picture {path!r} is empty (0 bytes); get a new copy of it")
    return path


def _explain_type(picture: object) -> str:
    kind = type(picture)
    wanted = "it must be a path, the bytes of a file, a PIL picture or a numpy array"
    if kind.__module__.split(".")[0] == "torch":
        return f"the picture is a torch tensor; {wanted}: pass tensor.cpu().numpy(), (H, W, 3)"
    if hasattr(picture, "read"):
        return f"the picture is an open file ({kind.__name__}); {wanted}: pass file.read()"
    return f"the picture is {kind.__name__}; {wanted}"
