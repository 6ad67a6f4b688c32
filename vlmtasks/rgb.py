"""RGB from every mode of PIL and every array that can be a picture."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageCms

from vlmtasks.errors import ImageError


def rgb_from_image(image: Image.Image, name: str) -> Image.Image:
    """A new RGB picture from any mode of PIL."""
    if image.mode.startswith("I;16"):
        values = np.asarray(image)
        if _bits(image) == 12:  # Pillow unpacks them to the low bits of 16
            values = values << 4 | values >> 8
        hole = image.info.get("transparency")  # PNG: one of the 65536 levels stands for holes
        return _grey(np.where(values == hole, np.uint8(255), _high_byte(values)))
    if image.mode == "I":
        return _grey(_integer_levels(np.asarray(image), image.format in ("PNG", "PPM"), name))
    if image.mode == "F":
        return _grey(_float_levels(np.asarray(image), name))
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


def rgb_from_array(array: NDArray[Any]) -> Image.Image:
    """RGB of an array of any shape and dtype that `vlmtasks.images.open_image` names."""
    array = np.asarray(array)  # a matrix would stay two-dimensional
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


def _bits(image: Image.Image) -> int:
    """Bits of a grey level as a TIFF file says; 16 for others."""
    bits = getattr(image, "tag_v2", {}).get(ExifTags.Base.BitsPerSample, (16,))
    return bits[0] if isinstance(bits, tuple) else bits


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


def _integer_levels(values: NDArray[np.int32], is_16_bit: bool, name: str) -> NDArray[np.uint8]:
    """Mode I does not say what white is: 255, or 65535 for larger values and files of 16 bits."""
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise ImageError(
            f"{name} has values of {low} to {high}; 32-bit pictures must hold 0..255 or 0..65535; "
            "scale it first"
        )
    return _high_byte(values) if is_16_bit or high > 255 else values.astype(np.uint8)


def _float_levels(values: NDArray[np.float32], name: str) -> NDArray[np.uint8]:
    """Mode F does not say what white is: 1 if no value is larger, else 255 as Pillow has it."""
    low, high = float(values.min()), float(values.max())
    if not (low > -0.5 and high < 255.5):  # also for NaN
        raise ImageError(
            f"{name} has values of {low:g} to {high:g}; float pictures must hold 0..1 or 0..255; "
            "scale it first"
        )
    return np.rint(np.clip(values * 255 if high <= 1 else values, 0, 255)).astype(np.uint8)


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
    with np.errstate(over="ignore"):  # infinity is out of range as well
        levels = np.rint(array * 255.0) if kind == "f" else array
    if levels.min() < 0 or levels.max() > 255:
        allowed = (
            "floats must be within 0..1; divide by 255, or use array.astype('uint8')"
            if kind == "f"
            else "integers must be within 0..255; 16-bit levels must have the dtype uint16"
        )
        raise ImageError(f"{name} has values of {array.min()} to {array.max()}; {allowed}")
    return levels.astype(np.uint8)
