"""The language of boxes and masks that PaliGemma speaks.

    answer := record (" ; " record)*
    record := LOC LOC LOC LOC  SEG×16?  label?
    LOC    := <loc0000> … <loc1023>      y_min x_min y_max x_max, in this order
    SEG    := <seg000> … <seg127>        the 4×4 codes of a 64×64 mask, row by row

Models do not always keep to it, so `parse_objects` takes anything and says what was wrong:

- White space may stand between tokens; white space and line ends between box, codes and label.
- A label runs to the next ";", line end, LOC, SEG or end token. It is stripped, not altered. A box
  without a label has the label "".
- LOCs in a row belong together: four are a box, eight are two boxes of which the first has no
  label, and three or five are none, because nobody knows which one is missing or doubled.
- `<loc1024>`, `<loc12>` or `<seg128>` is a mistake, and so is the record around it. `<LOC0001>` is
  text. Text outside of records is ignored.

Pixels and bins, both directions (x with the width, y with the height):

    pixel = bin * size / scale           `decode_box`, a float, not rounded
    bin   = round(pixel * scale / size)  `encode_box`, half to even, then clamped to 0..1023

`scale` is BOX_SCALE = 1024 wherever it is not given: the official demo, the Hugging Face examples
and the fine-tuning tools use it. big_vision trains with 1023; pass `scale=1023` to both directions
for that. The two differ by 0.1 % of the side.
"""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from vlmtasks.boxes import SizeWH, check_boxes, check_image_size
from vlmtasks.errors import InputError
from vlmtasks.id_text import RenderedIds, TokenVocabulary
from vlmtasks.records import (
    CUT_TOKEN,
    LABEL_END,
    LOC_BINS,
    MASK_CODES,
    PROBLEMS,
    SEG_CODES,
    TRUNCATED,
    BoxXYXY,
    ParsedObject,
    bins_to_pixels,
    read_records,
)
from vlmtasks.shorten import shorten

__all__ = [
    "BOX_SCALE",
    "BOX_SCALES",
    "LOC_BINS",
    "MASK_CODES",
    "PROBLEMS",
    "SEG_CODES",
    "TRUNCATED",
    "BoxXYXY",
    "ParsedObject",
    "TokenVocabulary",
    "bins_to_pixels",
    "check_bins",
    "check_codes",
    "check_label",
    "check_scale",
    "decode_box",
    "encode_box",
    "format_object",
    "format_objects",
    "parse_objects",
]

BOX_SCALE = 1024
BOX_SCALES = (1024, 1023)


def parse_objects(
    text_or_ids: str | Iterable[int],
    image_size: SizeWH | Any,
    *,
    scale: int = BOX_SCALE,
    vocabulary: TokenVocabulary | None = None,
) -> list[ParsedObject]:
    """Read every record of an answer, good or bad, in order of appearance.

    text_or_ids: the answer as text, or as token ids together with their `vocabulary`. In ids, only
        real loc and seg tokens count; the same characters spelled out are text.
    image_size: (width, height) in pixels of the picture that was asked about, or that PIL picture.
    scale: 1024 or 1023, see the head of this file.

    No text and no ids raise; time is linear in the length. Records with `problem` not None are
    those to drop. InputError: a wrong size or scale, ids without vocabulary, neither text nor ids.

    >>> parse_objects("<loc0256><loc0128><loc0768><loc0512> cat", image_size=(640, 480))[0].box_xyxy
    (80.0, 120.0, 320.0, 360.0)
    """
    size_wh = check_image_size(image_size)
    check_scale(scale)
    if isinstance(text_or_ids, str):
        return read_records(text_or_ids, size_wh, scale)
    rendered = RenderedIds(_check_ids(text_or_ids), _check_vocabulary(vocabulary))
    return [rendered.restore(found) for found in read_records(rendered.text, size_wh, scale)]


def encode_box(
    box_xyxy: Sequence[float], image_size: SizeWH | Any, scale: int = BOX_SCALE
) -> tuple[int, int, int, int]:
    """Pixels to location bins (y_min, x_min, y_max, x_max), each 0..1023.

    bin = round(pixel * scale / size), half to even as big_vision's tf.round, then clamped, so a box
    that leaves the picture is cut at its border. A box thinner than a bin may get twice the same
    bin; it then parses as a "degenerate box". InputError: not four finite numbers, or x1 < x0.
    """
    width, height = check_image_size(image_size)
    check_scale(scale)
    x0, y0, x1, y1 = check_boxes([box_xyxy], name="box_xyxy")[0].tolist()
    if x1 < x0 or y1 < y0:
        raise InputError(
            f"box_xyxy is {(x0, y0, x1, y1)}; it must be (x0, y0, x1, y1) with x1 >= x0 and "
            "y1 >= y0; boxes of (x, y, width, height) go through vlmtasks.boxes.xywh_to_xyxy"
        )
    y_min, x_min, y_max, x_max = (
        round(min(max(pixel * scale / size, 0), LOC_BINS - 1))
        for pixel, size in ((y0, height), (x0, width), (y1, height), (x1, width))
    )
    return y_min, x_min, y_max, x_max


def decode_box(
    loc_yxyx: Sequence[int], image_size: SizeWH | Any, scale: int = BOX_SCALE
) -> BoxXYXY:
    """Location bins (y_min, x_min, y_max, x_max) to pixels (x0, y0, x1, y1): bin * size / scale."""
    size_wh = check_image_size(image_size)
    check_scale(scale)
    return bins_to_pixels(check_bins(loc_yxyx), size_wh, scale)


def format_object(
    loc_yxyx: Sequence[int], label: str = "", mask_codes: Sequence[int] | None = None
) -> str:
    """Write one record as the model does; `parse_objects` reads it back.

    InputError: bins outside 0..1023, not 16 codes of 0..127, or a label that would not come back
    (a ";", a line end, a token, blanks at its ends).
    """
    text = "".join(f"<loc{value:04d}>" for value in check_bins(loc_yxyx))
    if mask_codes is not None:
        text += "".join(f"<seg{code:03d}>" for code in check_codes(mask_codes))
    check_label(label)
    return f"{text} {label}" if label else text


def format_objects(records: Iterable[str]) -> str:
    """Join records of `format_object` with " ; ", the separator of the training data."""
    return " ; ".join(records)


def check_scale(scale: int) -> None:
    """Raise InputError unless scale is one of BOX_SCALES."""
    # of an array neither "in" nor "if" has an answer
    if isinstance(scale, bool) or getattr(scale, "ndim", 0) or scale not in BOX_SCALES:
        raise InputError(
            f"scale is {shorten(scale)}; it must be 1024 (the public tools) or 1023 (big_vision)"
        )


def check_bins(loc_yxyx: Sequence[int]) -> tuple[int, int, int, int]:
    """Return four location bins as plain integers, or raise InputError."""
    bins = _check_integers(loc_yxyx, "loc_yxyx")
    if len(bins) != 4 or not all(0 <= value < LOC_BINS for value in bins):
        raise InputError(
            f"loc_yxyx is {shorten(bins)}; it must be four bins (y_min, x_min, y_max, x_max) of "
            f"0..{LOC_BINS - 1}"
        )
    return bins[0], bins[1], bins[2], bins[3]


def check_codes(mask_codes: Sequence[int]) -> tuple[int, ...]:
    """Return 16 mask codes as plain integers, or raise InputError."""
    codes = _check_integers(mask_codes, "mask_codes")
    if len(codes) != MASK_CODES:
        raise InputError(f"{len(codes)} mask codes were given; a mask has exactly {MASK_CODES}")
    for code in codes:
        if not 0 <= code < SEG_CODES:
            raise InputError(f"mask code {shorten(code)} was given; codes are 0..{SEG_CODES - 1}")
    return codes


def check_label(label: str) -> None:
    """Raise InputError for a label that a record cannot carry and give back unchanged."""
    if not isinstance(label, str):
        raise InputError(f"label is {shorten(label)}; it must be a str")
    if label != label.strip() or LABEL_END.search(label) or CUT_TOKEN.search(label):
        raise InputError(
            f"label is {label!r}; a label has no blanks at its ends, no ';', no line end and no "
            "token such as <loc0000> or <eos>; clean it first"
        )


def _check_vocabulary(vocabulary: TokenVocabulary | None) -> TokenVocabulary:
    if vocabulary is None:
        raise InputError(
            "token ids were given without vocabulary=; pass engine.vocabulary, or text"
        )
    if not hasattr(vocabulary, "loc_start"):
        raise InputError(f"vocabulary is {shorten(vocabulary)}; pass engine.vocabulary")
    return vocabulary


def _check_ids(ids: Any) -> list[int]:
    if isinstance(ids, bytes | bytearray):
        raise InputError("the answer is bytes; decode it to str, or pass token ids")
    try:
        return [operator.index(token_id) for token_id in ids]
    except TypeError:
        raise InputError(
            f"the answer is {type(ids).__name__}; it must be a str or a flat sequence of token ids"
        ) from None


def _check_integers(values: Any, name: str) -> tuple[int, ...]:
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise InputError(
            f"{name} is {shorten(values)}; it must be a sequence of whole numbers"
        ) from None
