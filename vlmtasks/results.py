"""What was found in a picture, and the forms that other tools want it in."""

import io
import json
import math
import operator
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vlmtasks import exports
from vlmtasks.boxes import (
    SizeWH,
    box_areas,
    check_boxes,
    check_image_size,
    pixels_to_norm,
    xyxy_to_xywh,
)
from vlmtasks.errors import InputError
from vlmtasks.generation import FinishReason
from vlmtasks.indexing import chosen_places
from vlmtasks.masks import Masks
from vlmtasks.plain_numbers import plain_number
from vlmtasks.rle import RLE
from vlmtasks.shorten import shorten
from vlmtasks.tokens import BoxXYXY, ParsedObject

if TYPE_CHECKING:
    import supervision
    import torch


@dataclass(frozen=True, eq=False)
class Detection:
    """One object. box_xyxy: (x0, y0, x1, y1) in float pixels; score: 0..1."""

    label: str
    score: float
    box_xyxy: BoxXYXY
    masks: Masks | None = None  # of this object alone

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """Pixels (H, W) of the picture; None for an object without mask."""
        return self.masks[0] if self.masks is not None and self.masks.has_mask(0) else None


RemovalReason = Literal["duplicate", "overlap", "low score"]


@dataclass(frozen=True)
class Removed:
    """An object that the model named and the result leaves out.

    reason: "duplicate" of an earlier object; "overlap" with one of the same class and a higher
        score; "low score", below the `stop_score`.
    """

    label: str
    score: float
    box_xyxy: BoxXYXY
    reason: RemovalReason


@dataclass(frozen=True, eq=False)
class Detections:
    """The objects of one picture, in the order in which the model named them.

    boxes_xyxy: (N, 4) float32, corners (x0, y0, x1, y1) in pixels, not rounded; (0, 4) for none.
    labels: N names as the model wrote them.
    scores: (N,) float32.
    image_size: (width, height) in pixels of the upright picture.
    masks: N masks, or None when no masks were asked for.
    text: the answer of the model.
    finish_reason: "stop", or "length" when the answer was cut and objects may be missing.
    dropped: the records of the answer that are no objects; each says why in `.problem`.
    removed: the objects of the answer that were left out; each says why in `.reason`.

    `found[0]` is a Detection; a slice, a list of indices or a bool array gives fewer Detections.
    InputError when the parts do not fit together.
    """

    boxes_xyxy: NDArray[np.float32]
    labels: tuple[str, ...]
    scores: NDArray[np.float32]
    image_size: SizeWH
    masks: Masks | None = None
    text: str = ""
    finish_reason: FinishReason = "stop"
    dropped: tuple[ParsedObject, ...] = ()
    removed: tuple[Removed, ...] = ()

    def __post_init__(self) -> None:
        size_wh = check_image_size(self.image_size)
        boxes = _float32(check_boxes(self.boxes_xyxy), "boxes_xyxy")
        if (boxes[:, 2:] < boxes[:, :2]).any():
            raise InputError("boxes_xyxy holds a reversed box; rows are x0, y0, x1 ≥ x0, y1 ≥ y0")
        scores = _float32(self.scores, "scores")
        if scores.shape != (len(boxes),):
            raise InputError(f"scores must be {len(boxes)} finite numbers, one for each box")
        labels = tuple(self.labels) if _is_list(self.labels) else (None,)
        if len(labels) != len(boxes) or not all(isinstance(label, str) for label in labels):
            raise InputError(
                f"labels must be {len(boxes)} str, one for each box, not {shorten(self.labels)}"
            )
        if self.masks is not None and not isinstance(self.masks, Masks):
            raise InputError(
                f"masks is {type(self.masks).__name__}; it must be Masks or None: pixels (N, H, W) "
                "become such by Masks.from_dense(pixels, image_size)"
            )
        for name in ("dropped", "removed"):
            if not _is_list(getattr(self, name)):
                raise InputError(f"{name} is {shorten(getattr(self, name))}; it must be a tuple")
        if self.masks is not None and (
            len(self.masks) != len(boxes) or self.masks.image_size != size_wh
        ):
            raise InputError(f"{self.masks} do not fit {len(boxes)} boxes in {size_wh}")
        if not isinstance(self.text, str):
            raise InputError(
                f"text is {shorten(self.text)}; it must be the str that the model said"
            )
        if self.finish_reason not in ("stop", "length"):
            raise InputError(
                f"finish_reason is {shorten(self.finish_reason)}; it must be stop or length"
            )
        boxes.flags.writeable = scores.flags.writeable = False
        for name, value in (
            ("image_size", size_wh),
            ("boxes_xyxy", boxes),
            ("scores", scores),
            ("labels", labels),
            ("dropped", tuple(self.dropped)),
            ("removed", tuple(self.removed)),
        ):
            object.__setattr__(self, name, value)

    # --- looking at it ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Detection]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Detection: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | NDArray[Any]) -> "Detections": ...
    def __getitem__(self, index: Any) -> "Detection | Detections":
        chosen = chosen_places(index, len(self))
        masks = None if self.masks is None else self.masks[np.atleast_1d(chosen)]
        if isinstance(chosen, int):
            x0, y0, x1, y1 = self.boxes_xyxy[chosen].tolist()
            return Detection(
                self.labels[chosen], float(self.scores[chosen]), (x0, y0, x1, y1), masks
            )
        return replace(
            self,
            boxes_xyxy=self.boxes_xyxy[chosen],
            labels=tuple(self.labels[i] for i in chosen),
            scores=self.scores[chosen],
            masks=masks,
        )

    def __repr__(self) -> str:
        width, height = self.image_size
        counts = ", ".join(f"{n} {label!r}" for label, n in Counter(self.labels).items())
        extra = f", {len(self.dropped)} dropped" if self.dropped else ""
        extra += f", {len(self.removed)} removed" if self.removed else ""
        extra += ", cut" if self.finish_reason == "length" else ""
        return f"Detections({counts or 'nothing'} in {width}×{height} pixels{extra})"

    @property
    def boxes_xywh(self) -> NDArray[np.float32]:
        """(N, 4) float32: x, y, width, height in pixels, as COCO has them."""
        return xyxy_to_xywh(self.boxes_xyxy).astype(np.float32)

    @property
    def boxes_norm(self) -> NDArray[np.float32]:
        """(N, 4) float32: corners as fractions of width and height."""
        return pixels_to_norm(self.boxes_xyxy, self.image_size).astype(np.float32)

    def rle(self, index: int) -> RLE | None:
        """COCO run lengths of one object's mask; None for an object without mask."""
        if self.masks is None or not self.masks.has_mask(index):
            return None
        return self.masks.rle(index)

    def deduplicated(self) -> "Detections":
        """Without exact repetitions (same label, same box, same mask); the first one stays."""
        first: dict[Any, int] = {}
        for index in range(len(self)):
            mask = None if self.masks is None else self.masks.content(index)
            key = self.labels[index], self.boxes_xyxy[index].tobytes(), mask
            first.setdefault(key, index)
        return self.keeping(list(first.values()), "duplicate")

    @classmethod
    def concatenated(cls, parts: Sequence["Detections"]) -> "Detections":
        """Several results of one picture as one, in their order.

        text: the answers line by line; the spans of `dropped` count within their own answer.
        InputError for none at all, and for pictures of different sizes.
        """
        if not parts or len({part.image_size for part in parts}) > 1:
            raise InputError("results of one picture are joined: at least one, of one image_size")
        if len(parts) == 1:
            return parts[0]
        size_wh = parts[0].image_size
        masks = [part.masks for part in parts if part.masks is not None]
        return cls(
            boxes_xyxy=np.concatenate([part.boxes_xyxy for part in parts]),
            labels=tuple(label for part in parts for label in part.labels),
            scores=np.concatenate([part.scores for part in parts]),
            image_size=size_wh,
            masks=Masks.joined(masks, size_wh) if masks else None,
            text="\n".join(part.text for part in parts),
            finish_reason="length" if any(p.finish_reason == "length" for p in parts) else "stop",
            dropped=tuple(record for part in parts for record in part.dropped),
            removed=tuple(gone for part in parts for gone in part.removed),
        )

    def without_overlaps(self, iou: float) -> "Detections":
        """Class-wise non-maximum suppression: of boxes of one class whose intersection over union
        is above `iou` (0..1) only the one of the highest score stays. OpenCV's.

        A box without area overlaps nothing, as `vlmtasks.boxes.box_iou` has it, and stays.
        """
        iou = plain_number(iou)
        if isinstance(iou, bool) or not isinstance(iou, int | float) or not 0 <= iou <= 1:
            raise InputError(f"the overlap is {shorten(iou)}; it must be a number of 0..1")
        if len(self) < 2:
            return self
        import cv2

        boxes, has_area = xyxy_to_xywh(self.boxes_xyxy), box_areas(self.boxes_xyxy) > 0
        kept = np.flatnonzero(~has_area).tolist()
        for label in dict.fromkeys(self.labels):
            same = [i for i, other in enumerate(self.labels) if other == label and has_area[i]]
            if not same:
                continue
            # class by class: OpenCV keeps classes apart by moving their boxes, which fails where
            # coordinates are negative; NMSBoxes would do, but drops every score of 0
            one_class, rows, scores = [0] * len(same), boxes[same], self.scores[same]
            chosen = cv2.dnn.NMSBoxesBatched(
                rows.tolist(), scores.tolist(), one_class, -math.inf, float(iou)
            )
            kept += [same[place] for place in np.ravel(chosen)]
        return self.keeping(sorted(kept), "overlap")

    def keeping(self, indices: Sequence[int], reason: RemovalReason) -> "Detections":
        """Only these objects; the others go to `removed`."""
        if len(indices) == len(self):
            return self
        others = sorted(set(range(len(self))) - set(indices))
        gone = [
            Removed(o.label, o.score, o.box_xyxy, reason) for o in map(self.__getitem__, others)
        ]
        return replace(self[list(indices)], removed=(*self.removed, *gone))

    def plot(self, image: Any, **style: Any) -> Image.Image:
        """A new picture with boxes, labels and masks. See `vlmtasks.draw.draw_detections`."""
        from vlmtasks.draw import draw_detections

        return draw_detections(image, self, **style)

    # --- files -----------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, floats and str, nothing rounded; masks as COCO run lengths."""
        objects = []
        for index, found in enumerate(self):
            entry: dict[str, Any] = {
                "label": found.label,
                "score": found.score,
                "box_xyxy": list(found.box_xyxy),
            }
            if self.masks is not None:
                entry["mask"] = self.rle(index)
            objects.append(entry)
        return {
            "image_size": list(self.image_size),
            "objects": objects,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "dropped": [
                {
                    "problem": record.problem,
                    "label": record.label,
                    "loc_yxyx": list(record.loc_yxyx),
                    "span": list(record.span),
                }
                for record in self.dropped
            ],
            "removed": [
                {
                    "reason": gone.reason,
                    "label": gone.label,
                    "score": gone.score,
                    "box_xyxy": list(gone.box_xyxy),
                }
                for gone in self.removed
            ],
        }

    def to_json(self, *, ensure_ascii: bool = True, indent: int | None = None) -> str:
        """`to_dict` as JSON; ASCII unless told otherwise, so that any console can print it."""
        return json.dumps(self.to_dict(), ensure_ascii=ensure_ascii, indent=indent, allow_nan=False)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Detections":
        """The inverse of `to_dict`. InputError for anything else."""
        try:
            objects = _saved_objects(saved)
            size_wh = check_image_size(saved["image_size"])
            has_masks = any("mask" in entry for entry in objects)
            return cls(
                boxes_xyxy=check_boxes([entry["box_xyxy"] for entry in objects]),  # type: ignore[arg-type]
                labels=tuple(entry["label"] for entry in objects),
                scores=[entry["score"] for entry in objects],  # type: ignore[arg-type]
                image_size=size_wh,
                masks=Masks.from_rles([entry.get("mask") for entry in objects], size_wh)
                if has_masks
                else None,
                text=saved.get("text", ""),
                finish_reason=saved.get("finish_reason", "stop"),
                dropped=tuple(_read_dropped(record) for record in saved.get("dropped", ())),
                removed=tuple(_read_removed(entry) for entry in saved.get("removed", ())),
            )
        except InputError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"these are no saved detections: {error!r}; see to_dict") from error

    def save(self, path: str | os.PathLike[str], image: Any = None, **style: Any) -> None:
        """Write a .json file, or with any suffix of a picture the overlay on `image`."""
        path = Path(os.path.expanduser(path))
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent}; make it first")
        if path.is_dir():
            raise InputError(f"{str(path)!r} is a folder; name a file in it")
        if path.suffix.lower() == ".json":
            text = self.to_json(ensure_ascii=False, indent=2) + "\n"
            # half a surrogate pair is escaped, as in \ud83d, which JSON reads back
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            return
        kind = Image.registered_extensions().get(path.suffix.lower())
        if kind not in Image.SAVE:
            raise InputError(f"{str(path)!r} must end in .json, .png, .jpg or another picture type")
        if image is None:
            raise InputError(f"to draw {str(path)!r} the picture is needed: save(path, image)")
        encoded = io.BytesIO()
        drawn = self.plot(image, **style)
        try:
            drawn.save(encoded, kind)
        except Exception as error:  # each of dozens of encoders has its own limits and errors
            raise InputError(
                f"{drawn.width} x {drawn.height} pixels cannot be written as {kind} "
                f"({error}); choose .png"
            ) from error
        path.write_bytes(encoded.getvalue())  # whole, or the file that was there stays

    # --- other formats; see vlmtasks.exports -----------------------------------------------------

    def to_coco(
        self, image_id: int | str, category_ids: Any, *, keep_unknown: bool = False
    ) -> list[dict[str, Any]]:
        """Entries of a COCO results file: image_id, category_id, bbox, score; masks as RLE.

        category_ids: {name: id}, COCO's list of categories, or `CocoCategories`; compared without
            case and with blanks collapsed.
        keep_unknown: give labels that are no category a new id, in the `CocoCategories` that was
            passed. Otherwise they are left out, and one log message counts them.
        """
        return exports.to_coco(self, image_id, category_ids, keep_unknown=keep_unknown)

    @classmethod
    def from_coco(
        cls,
        entries: Sequence[Mapping[str, Any]],
        image_size: SizeWH,
        category_ids: Any,
        *,
        image_id: int | str | None = None,
    ) -> "Detections":
        """The inverse of `to_coco`, for the entries of one picture, or those of `image_id`.

        Labels are the names of the categories. Segmentation must be run lengths; a missing score is
        1. InputError for entries that are no results.
        """
        return cls(**exports.from_coco(entries, image_size, category_ids, image_id=image_id))

    def to_torchvision(self, category_ids: Any = None) -> "dict[str, torch.Tensor]":
        """What torchvision's detectors return: boxes, labels, scores and, if any, masks (uint8).

        labels: ids of `category_ids`; without it 1, 2, … in order of appearance, since 0 is the
            background there. InputError for a label that is no category.
        """
        return exports.to_torchvision(self, category_ids)

    def to_supervision(self, category_ids: Any = None) -> "supervision.Detections":
        """`supervision.Detections`, with the labels in data["class_name"].

        class_id: ids of `category_ids`; without it 0, 1, … in order of appearance.
        MissingExtraError when the package is not installed.
        """
        return exports.to_supervision(self, category_ids)


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | Set)


def _float32(values: Any, name: str) -> NDArray[np.float32]:
    """A copy that is float32 and finite."""
    try:
        with np.errstate(over="ignore"):
            array = np.array(values).astype(np.float32)
    except OverflowError:
        raise InputError(f"{name} must be finite numbers; it holds an integer too large") from None
    except (TypeError, ValueError):
        raise InputError(f"{name} is {shorten(values)}; it must be numbers") from None
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite numbers; it holds NaN, infinity or 1e39 and more")
    return array


def _saved_objects(saved: Any) -> list[Mapping[str, Any]]:
    """The entries of what `to_dict` saved, or InputError in its terms."""
    if not isinstance(saved, Mapping):
        kind = type(saved).__name__
        raise InputError(
            f"these are no saved detections: they are a {kind}; they must be an object with "
            "'objects' and 'image_size', as to_dict makes it"
        )
    for name in ("objects", "image_size"):
        if name not in saved:
            raise InputError(f"these are no saved detections: {name!r} is missing; see to_dict")
    objects = saved["objects"]
    if not isinstance(objects, list | tuple):
        raise InputError(
            f"these are no saved detections: 'objects' is {shorten(objects)}; it must be a list"
        )
    for entry in objects:
        if not isinstance(entry, Mapping):
            raise InputError(f"an entry of 'objects' is {shorten(entry)}; it must be an object")
        for name in ("label", "score", "box_xyxy"):
            if name not in entry:
                raise InputError(f"an entry of 'objects' has no {name!r}; see to_dict")
    return list(objects)


def _read_dropped(record: Mapping[str, Any]) -> ParsedObject:
    start, stop = (operator.index(place) for place in record["span"])
    bins = tuple(operator.index(value) for value in record["loc_yxyx"])
    label, problem = record["label"], record["problem"]
    if not isinstance(label, str) or not isinstance(problem, str):
        raise TypeError(f"label {label!r} and problem {problem!r} must be str")
    return ParsedObject(label, bins, None, None, problem, (start, stop))


def _read_removed(entry: Mapping[str, Any]) -> Removed:
    x0, y0, x1, y1 = check_boxes([entry["box_xyxy"]])[0].tolist()
    label, score, reason = entry["label"], entry["score"], entry["reason"]
    if not isinstance(label, str) or reason not in get_args(RemovalReason):
        raise TypeError(
            f"label {label!r} must be str and reason {reason!r} one of those of Removed"
        )
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise TypeError(f"score {score!r} must be a number")
    return Removed(label, score, (x0, y0, x1, y1), reason)
