"""Masks of objects: from 64×64 values in a box to pixels of the picture.

The one rule for pixels is that of big_vision's evaluator (evaluators/proj/paligemma/transfers/
segmentation.py): the 64×64 *values* are resized to the box bilinearly (PIL, mode F, with
antialiasing when they shrink), and what is above 0 afterwards is foreground. Box edges are rounded
to whole pixels, half to even: bin 1023 of 1024 lies less than a pixel before the border of most
pictures, and the evaluator's truncation would leave the border row of every mask empty (evaluating
RefCOCO truncates, as there). A box that rounds to no pixel has an empty mask; what lies outside of
the picture is cut off.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from vlmtasks.boxes import SizeWH, check_boxes, check_image_size
from vlmtasks.errors import InputError
from vlmtasks.indexing import chosen_places
from vlmtasks.rle import (
    MAX_PIXELS,
    RLE,
    check_rle,
    column_runs,
    decode_rle,
    encode_rle,
    pack_runs,
    rle_area,
)
from vlmtasks.shorten import shorten

MAP_SIZE = 64

_STRIP_PIXELS = 1 << 22  # float values that exist at a time: 16 MB


class Masks:
    """One mask for each object of a picture, pasted only when somebody looks.

    maps: for each object (64, 64) values, foreground above 0; or None for an object without mask,
        whose pixels are all False.
    boxes_xyxy: (N, 4) float pixels, where the maps belong.
    image_size: (width, height).

    `masks[i]` is a bool array (H, W); a slice, a list of indices or a bool array gives fewer
    `Masks`. Use `from_dense` or `from_rles` for masks that come in pixels.
    """

    def __init__(
        self,
        maps: Sequence[ArrayLike | None],
        boxes_xyxy: ArrayLike,
        image_size: SizeWH,
    ) -> None:
        boxes = check_boxes(boxes_xyxy)
        if not hasattr(maps, "__len__"):
            raise InputError(f"mask maps are {shorten(maps)}; give a list with one for each box")
        if len(maps) != len(boxes):
            raise InputError(
                f"{len(maps)} mask maps were given for {len(boxes)} boxes; give one for each box, "
                "None for a box without mask"
            )
        self.image_size = check_image_size(image_size)
        self._items: tuple[_Item, ...] = tuple(
            None if values is None else (check_map(values), box)
            for values, box in zip(maps, boxes, strict=True)
        )

    @classmethod
    def from_dense(cls, masks: ArrayLike, image_size: SizeWH) -> "Masks":
        """From (N, H, W) pixels of any number type, foreground above 0; kept as run lengths."""
        width, height = check_image_size(image_size)
        try:
            array = np.asarray(masks)
        except ValueError:
            raise InputError("masks have unequal sizes; they must be (N, H, W)") from None
        except RuntimeError as error:  # torch, with gradients
            raise InputError(f"masks are no array of numbers: {error}; detach them first") from None
        if array.size == 0 and array.shape[0] == 0:
            return cls([], [], image_size)
        if array.ndim != 3 or array.shape[1:] != (height, width):
            raise InputError(
                f"masks have the shape {array.shape}; for a picture of {width}×{height} pixels it "
                f"must be (N, {height}, {width})"
            )
        return cls.from_rles([encode_rle(mask) for mask in array], image_size)

    @classmethod
    def from_rles(cls, rles: Sequence[Mapping[str, Any] | None], image_size: SizeWH) -> "Masks":
        """From COCO run lengths, compressed or not, each of the size of the picture; or None."""
        masks = cls([], [], image_size)
        width, height = masks.image_size
        if isinstance(rles, str | bytes | Mapping) or not isinstance(rles, Iterable):
            raise InputError(
                f"masks are {shorten(rles)}; give a list with the run lengths of each, or None"
            )
        items: list[_Item] = []
        for rle in rles:
            checked = None if rle is None else check_rle(rle)
            if checked is not None and checked["size"] != [height, width]:
                raise InputError(
                    f"a mask has the size {checked['size']}; for a picture of {width}×{height} "
                    f"pixels it must be [height, width] = {[height, width]}"
                )
            items.append(checked)
        masks._items = tuple(items)
        return masks

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[NDArray[np.bool_]]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> NDArray[np.bool_]: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | NDArray[Any]) -> "Masks": ...
    def __getitem__(self, index: Any) -> "NDArray[np.bool_] | Masks":
        chosen = chosen_places(index, len(self))
        if not isinstance(chosen, int):
            masks = Masks([], [], self.image_size)
            masks._items = tuple(self._items[i] for i in chosen)
            return masks
        item = self._items[chosen]
        if isinstance(item, dict):
            return decode_rle(item)
        width, height = self.image_size
        pixels = np.zeros((height, width), dtype=np.bool_)
        if item is not None:
            x0, y0, x1, y1 = _visible(item[1], self.image_size)
            _paste(pixels[y0:y1, x0:x1], *item, (x0, y0, x1, y1))
        return pixels

    def __repr__(self) -> str:
        width, height = self.image_size
        return f"Masks({len(self)} masks of {width}×{height} pixels)"

    def has_mask(self, index: int) -> bool:
        """Whether the object has a mask at all; one without foreground counts."""
        return self._items[index] is not None

    def content(self, index: int) -> Hashable:
        """What one mask is made of; equal content means equal pixels in equal boxes."""
        item = self._items[index]
        if isinstance(item, dict):
            return item["counts"]
        return None if item is None else (item[0].tobytes(), item[1].tobytes())

    def dense(self) -> NDArray[np.bool_]:
        """All masks at once, (N, H, W); N times the pixels of the picture in memory."""
        width, height = self.image_size
        stack = np.zeros((len(self), height, width), dtype=np.bool_)
        for index, mask in enumerate(self):
            stack[index] = mask
        return stack

    def rle(self, index: int) -> RLE:
        """One mask as COCO run lengths; the pixels of no other mask exist meanwhile."""
        item = self._items[index]
        if isinstance(item, dict):
            return {"size": list(item["size"]), "counts": item["counts"]}
        width, height = self.image_size
        x0, y0, x1, y1 = (0, 0, 0, 0) if item is None else _visible(item[1], self.image_size)
        if height * width > MAX_PIXELS:  # before the memory is asked for
            raise InputError(f"{self} have no run lengths, which count less than 2³¹ pixels")
        columns = np.zeros((height, x1 - x0), dtype=np.bool_, order="F")
        if item is not None:
            _paste(columns[y0:y1], *item, (x0, y0, x1, y1))
        return pack_runs(column_runs(columns, height * x0, height * width), height, width)

    def resized(self, image_size: SizeWH) -> "Masks":
        """The same masks for the same picture in another size; 64×64 values lose nothing."""
        size_wh = check_image_size(image_size)
        if size_wh == self.image_size:
            return self
        factors = np.array(size_wh * 2) / np.array(self.image_size * 2)
        masks = Masks([], [], size_wh)
        items: list[_Item] = []
        for item in self._items:
            if isinstance(item, dict):
                pixels = Image.fromarray(decode_rle(item)).resize(size_wh, Image.Resampling.NEAREST)
                items.append(encode_rle(np.asarray(pixels)))
            else:
                items.append(None if item is None else (item[0], item[1] * factors))
        masks._items = tuple(items)
        return masks

    def moved(self, offset_xy: tuple[int, int], image_size: SizeWH) -> "Masks":
        """The same masks in a larger picture, in which this one begins at `offset_xy` (pixels)."""
        left, top = offset_xy
        width, height = self.image_size
        masks = Masks([], [], image_size)
        items: list[_Item] = []
        for item in self._items:
            if isinstance(item, dict):
                pixels = np.zeros(masks.image_size[::-1], np.bool_)
                pixels[top : top + height, left : left + width] = decode_rle(item)
                items.append(encode_rle(pixels))
            else:
                items.append(None if item is None else (item[0], item[1] + [left, top] * 2))
        masks._items = tuple(items)
        return masks

    @classmethod
    def joined(cls, parts: Sequence["Masks"], image_size: SizeWH) -> "Masks":
        """All masks of several parts of one picture, in their order."""
        masks = cls([], [], image_size)
        for part in parts:
            if part.image_size != masks.image_size:
                raise InputError(f"{part} do not fit a picture of {masks.image_size} pixels")
        masks._items = tuple(item for part in parts for item in part._items)
        return masks

    def area(self, index: int) -> int:
        """Foreground pixels of one mask."""
        return rle_area(self.rle(index))


_Item = tuple[NDArray[np.float32], NDArray[np.float64]] | RLE | None


def paste_mask(values: ArrayLike, box_xyxy: ArrayLike, image_size: SizeWH) -> NDArray[np.bool_]:
    """Pixels (H, W) of one mask: (64, 64) values in a box of float pixels (x0, y0, x1, y1)."""
    return Masks([values], np.array([box_xyxy]), image_size)[0]


def check_map(values: ArrayLike) -> NDArray[np.float32]:
    """Return the (64, 64) values of a mask as float32, or raise InputError."""
    try:
        array = np.asarray(values)
    except (ValueError, RuntimeError) as error:  # rows of unequal length; torch, with gradients
        raise InputError(
            f"a mask map is no array of numbers ({error}); it must be (64, 64), and a tensor that "
            "learns must be detached: tensor.detach()"
        ) from None
    if array.shape != (MAP_SIZE, MAP_SIZE) or array.dtype.kind not in "biuf":
        raise InputError(
            f"a mask map has the shape {array.shape} and the dtype {array.dtype}; it must be "
            "numbers of shape (64, 64), foreground above 0"
        )
    if not np.isfinite(array).all():
        raise InputError("a mask map holds NaN or infinity; its values must be finite numbers")
    return array.astype(np.float32)


def pixel_edges(box_xyxy: Sequence[float] | NDArray[np.float64]) -> tuple[int, int, int, int]:
    """The whole pixels (x0, y0, x1, y1) over which the mask of a box of float pixels is pasted."""
    left, top, right, bottom = (round(float(edge)) for edge in box_xyxy)
    return left, top, right, bottom


def _visible(box_xyxy: NDArray[np.float64], image_size: SizeWH) -> tuple[int, int, int, int]:
    """Pixel edges (x0, y0, x1, y1) of the part of a box that lies in the picture; or zeros."""
    left, top, right, bottom = pixel_edges(box_xyxy)
    width, height = image_size
    x0, y0, x1, y1 = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
    return (x0, y0, x1, y1) if x1 > x0 and y1 > y0 else (0, 0, 0, 0)


def _paste(
    pixels: NDArray[np.bool_],
    values: NDArray[np.float32],
    box_xyxy: NDArray[np.float64],
    visible: tuple[int, int, int, int],
) -> None:
    """Write the foreground of the visible part of a box to `pixels`, which has just its shape."""
    if pixels.size == 0:
        return
    left, top, right, bottom = pixel_edges(box_xyxy)
    x0, y0, x1, y1 = visible
    image = Image.fromarray(values)
    x_scale, y_scale = MAP_SIZE / (right - left), MAP_SIZE / (bottom - top)
    rows = max(1, _STRIP_PIXELS // (x1 - x0))
    for first in range(y0, y1, rows):
        last = min(first + rows, y1)
        source = (
            (x0 - left) * x_scale,
            (first - top) * y_scale,
            min((x1 - left) * x_scale, MAP_SIZE),
            min((last - top) * y_scale, MAP_SIZE),
        )
        strip = image.resize((x1 - x0, last - first), Image.Resampling.BILINEAR, box=source)
        np.greater(np.asarray(strip), 0, out=pixels[first - y0 : last - y0])
