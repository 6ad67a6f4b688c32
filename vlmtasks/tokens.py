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
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vlmtasks.boxes import SizeWH, check_boxes, check_image_size
from vlmtasks.errors import InputError

LOC_BINS = 1024  # <loc0000>…<loc1023>
SEG_CODES = 128  # <seg000>…<seg127>
MASK_CODES = 16  # 4×4 codes draw one mask
BOX_SCALE = 1024
BOX_SCALES = (1024, 1023)

TRUNCATED = "truncated"
BAD_BOX_COUNT = "bad box count"
BAD_LOC_TOKEN = "bad location token"
REVERSED_BOX = "reversed box"
DEGENERATE_BOX = "degenerate box"
BAD_CODE_COUNT = "bad code count"
BAD_SEG_TOKEN = "bad code token"
CODES_WITHOUT_BOX = "codes without a box"
PROBLEMS = (
    TRUNCATED,
    BAD_BOX_COUNT,
    BAD_LOC_TOKEN,
    REVERSED_BOX,
    DEGENERATE_BOX,
    BAD_CODE_COUNT,
    BAD_SEG_TOKEN,
    CODES_WITHOUT_BOX,
)

BoxXYXY = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class ParsedObject:
    """One record of an answer.

    label: the text behind the box, stripped, otherwise as the model wrote it; may be "".
    loc_yxyx: the location bins that were found; four (y_min, x_min, y_max, x_max) in a good record.
    box_xyxy: (x0, y0, x1, y1) in float pixels, not rounded; None when the four bins are no box.
    mask_codes: the 16 codes of the mask, 0..127; None when there is no mask.
    problem: None for a good record, otherwise one of PROBLEMS; such a record is not to be used.
    span: (start, stop) in the characters or ids that were parsed.
    """

    label: str
    loc_yxyx: tuple[int, ...]
    box_xyxy: BoxXYXY | None
    mask_codes: tuple[int, ...] | None
    problem: str | None
    span: tuple[int, int]


class TokenVocabulary(Protocol):
    """What the parser has to know of a tokenizer to read ids."""

    @property
    def loc_start(self) -> int:
        """The id of <loc0000>; the other 1023 follow."""
        ...

    @property
    def seg_start(self) -> int:
        """The id of <seg000>; the other 127 follow."""
        ...

    @property
    def size(self) -> int:
        """The number of ids that mean something; larger and negative ones are skipped."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """<eos>, <bos>, <pad> and their like: they end a label and are never part of it."""
        ...

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of ids within 0..size-1."""
        ...


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
        return _read_records(text_or_ids, size_wh, scale)
    rendered = _RenderedIds(_check_ids(text_or_ids), _check_vocabulary(vocabulary))
    return [rendered.restore(found) for found in _read_records(rendered.text, size_wh, scale)]


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
        min(max(round(pixel * scale / size), 0), LOC_BINS - 1)
        for pixel, size in ((y0, height), (x0, width), (y1, height), (x1, width))
    )
    return y_min, x_min, y_max, x_max


def decode_box(
    loc_yxyx: Sequence[int], image_size: SizeWH | Any, scale: int = BOX_SCALE
) -> BoxXYXY:
    """Location bins (y_min, x_min, y_max, x_max) to pixels (x0, y0, x1, y1): bin * size / scale."""
    width, height = check_image_size(image_size)
    check_scale(scale)
    return _decode(check_bins(loc_yxyx), width, height, scale)


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
    if isinstance(scale, bool) or scale not in BOX_SCALES:
        raise InputError(
            f"scale is {scale!r}; it must be 1024 (the public tools) or 1023 (big_vision)"
        )


def check_bins(loc_yxyx: Sequence[int]) -> tuple[int, int, int, int]:
    """Return four location bins as plain integers, or raise InputError."""
    bins = _check_integers(loc_yxyx, "loc_yxyx")
    if len(bins) != 4 or not all(0 <= value < LOC_BINS for value in bins):
        raise InputError(
            f"loc_yxyx is {bins}; it must be four bins (y_min, x_min, y_max, x_max) of 0..1023"
        )
    return bins[0], bins[1], bins[2], bins[3]


def check_codes(mask_codes: Sequence[int]) -> tuple[int, ...]:
    """Return 16 mask codes as plain integers, or raise InputError."""
    codes = _check_integers(mask_codes, "mask_codes")
    if len(codes) != MASK_CODES:
        raise InputError(f"{len(codes)} mask codes were given; a mask has exactly {MASK_CODES}")
    for code in codes:
        if not 0 <= code < SEG_CODES:
            raise InputError(f"mask code {code} was given; codes are 0..{SEG_CODES - 1}")
    return codes


def check_label(label: str) -> None:
    """Raise InputError for a label that a record cannot carry and give back unchanged."""
    if not isinstance(label, str):
        raise InputError(f"label is {label!r}; it must be a str")
    if label != label.strip() or _LABEL_END.search(label) or _CUT_TOKEN.search(label):
        raise InputError(
            f"label is {label!r}; a label has no blanks at its ends, no ';', no line end and no "
            "token such as <loc0000> or <eos>; clean it first"
        )


# --- reading text --------------------------------------------------------------------------------

# Possessive quantifiers (++) keep every pattern linear: nothing is tried twice.
_BLANKS = r"[^\S\r\n]*+"  # white space within a line
_LOC_RUN = rf"(?P<locs>(?:<loc\d*+>{_BLANKS})++)"
_SEG_RUN = rf"(?P<segs>(?:<seg\d*+>{_BLANKS})++)"
_NEXT_RUN = re.compile(rf"{_LOC_RUN}|{_SEG_RUN}")
_BEFORE_LABEL = re.compile(rf"\s*+(?:{_SEG_RUN}\s*+)?")
_LABEL_END = re.compile(
    r"[;\r\n]|<(?:loc|seg)\d*+>|<(?:eos|bos|pad|image|start_of_turn|end_of_turn)>"
)
_TOKEN = re.compile(r"<(?:loc|seg)(\d*+)>")
# What is left of a loc or seg token where a text was cut in its middle.
_CUT_TOKEN = re.compile(r"<(?:l(?:o(?:c[0-9]{0,4})?)?|s(?:e(?:g[0-9]{0,3})?)?)?\Z")

_LOC_NUMBERS = {f"{number:04d}": number for number in range(LOC_BINS)}
_SEG_NUMBERS = {f"{number:03d}": number for number in range(SEG_CODES)}


def _read_records(text: str, size_wh: SizeWH, scale: int) -> list[ParsedObject]:
    records: list[ParsedObject] = []
    cut = _CUT_TOKEN.search(text, max(0, len(text) - len("<loc0000")))
    end = cut.start() if cut else len(text)
    position = 0
    while run := _NEXT_RUN.search(text, position, end):
        if run.lastgroup == "segs":
            position = run.end()
            span = run.start(), run.start() + len(run.group().rstrip())
            records.append(ParsedObject("", (), None, None, CODES_WITHOUT_BOX, span))
            continue
        between = _BEFORE_LABEL.match(text, run.end(), end)
        assert between is not None  # it matches nothing, too
        codes, label_start = between["segs"], between.end()
        label_end = _LABEL_END.search(text, label_start, end)
        position = label_end.start() if label_end else end
        label = text[label_start:position].rstrip()
        *unlabelled, (bins, (start, stop)) = _boxes_of_run(text, *run.span())
        for four, span in unlabelled:
            records.append(_record(four, None, "", span, size_wh, scale))
        problem = None
        if label_start == end and (cut or _is_incomplete(bins, codes)):
            problem, stop, cut = TRUNCATED, len(text), None
        elif label:
            stop = label_start + len(label)
        elif codes:
            stop = between.start("segs") + len(codes.rstrip())
        records.append(_record(bins, codes, label, (start, stop), size_wh, scale, problem))
    if cut:
        records.append(ParsedObject("", (), None, None, TRUNCATED, (end, len(text))))
    return records


_Bins = list[int | None]  # None where there is no such token


def _boxes_of_run(text: str, start: int, stop: int) -> list[tuple[_Bins, tuple[int, int]]]:
    """The bins and the span of each box; a single entry when the count is wrong."""
    bins = [_LOC_NUMBERS.get(digits) for digits in _TOKEN.findall(text, start, stop)]
    if len(bins) <= 4 or len(bins) % 4:
        return [(bins, (start, start + len(text[start:stop].rstrip())))]
    spans = [token.span() for token in _TOKEN.finditer(text, start, stop)]
    return [
        (bins[first : first + 4], (spans[first][0], spans[first + 3][1]))
        for first in range(0, len(bins), 4)
    ]


def _record(
    found_bins: _Bins,
    codes: str | None,
    label: str,
    span: tuple[int, int],
    size_wh: SizeWH,
    scale: int,
    problem: str | None = None,
) -> ParsedObject:
    bins = tuple([value for value in found_bins if value is not None])
    box_problem = _box_problem(found_bins, bins)
    box_xyxy = None if box_problem else _decode(bins, *size_wh, scale)
    mask_codes, code_problem = (None, None) if codes is None else _read_codes(codes)
    problem = problem or box_problem or code_problem
    return ParsedObject(label, bins, box_xyxy, mask_codes, problem, span)


def _box_problem(found_bins: _Bins, bins: tuple[int, ...]) -> str | None:
    if len(bins) != len(found_bins):
        return BAD_LOC_TOKEN
    if len(bins) != 4:
        return BAD_BOX_COUNT
    y_min, x_min, y_max, x_max = bins
    if y_max < y_min or x_max < x_min:
        return REVERSED_BOX
    if y_max == y_min or x_max == x_min:
        return DEGENERATE_BOX
    return None


def _read_codes(codes: str) -> tuple[tuple[int, ...] | None, str | None]:
    numbers = [_SEG_NUMBERS.get(digits) for digits in _TOKEN.findall(codes)]
    valid = tuple([number for number in numbers if number is not None])
    if len(valid) != len(numbers):
        return None, BAD_SEG_TOKEN
    if len(valid) != MASK_CODES:
        return None, BAD_CODE_COUNT
    return valid, None


def _is_incomplete(bins: _Bins, codes: str | None) -> bool:
    return len(bins) < 4 if codes is None else codes.count("<") < MASK_CODES


def _decode(bins: Sequence[int], width: int, height: int, scale: int) -> BoxXYXY:
    y_min, x_min, y_max, x_max = bins
    return (
        x_min * width / scale,
        y_min * height / scale,
        x_max * width / scale,
        y_max * height / scale,
    )


# --- reading ids ---------------------------------------------------------------------------------

_SPELLED_OUT = "\udc3c"  # stands for a "<" that is a character; no decoder can produce it


class _RenderedIds:
    """Ids written as text that the text parser reads, with the way back from characters to ids."""

    def __init__(self, ids: list[int], vocabulary: TokenVocabulary) -> None:
        self._vocabulary = vocabulary
        self._marks: dict[int, str | None] = {}
        self._pieces: list[str] = []
        self._starts: list[int] = []  # first character of each piece
        self._spans: list[tuple[int, int]] = []  # the ids that each piece stands for
        self._length = 0
        self._render(ids)
        self.text = "".join(self._pieces)

    def restore(self, found: ParsedObject) -> ParsedObject:
        """Bring a record of `text` back to the ids: its span, and characters that stood in."""
        first = bisect_right(self._starts, found.span[0]) - 1
        last = bisect_right(self._starts, found.span[1] - 1) - 1
        span = self._spans[first][0], self._spans[last][1]
        return replace(found, label=found.label.replace(_SPELLED_OUT, "<"), span=span)

    def _render(self, ids: list[int]) -> None:
        words: list[tuple[int, int]] = []
        for index, token_id in enumerate(ids):
            if token_id not in self._marks:
                self._marks[token_id] = self._mark(token_id)
            mark = self._marks[token_id]
            if mark is None:
                words.append((index, token_id))
            else:
                self._add_words(words)
                words = []
                self._add(mark, index, index + 1)
        self._add_words(words)

    def _mark(self, token_id: int) -> str | None:
        """The text of a token with a meaning in the grammar, None for a piece of a word."""
        vocabulary = self._vocabulary
        if 0 <= token_id - vocabulary.loc_start < LOC_BINS:
            return f"<loc{token_id - vocabulary.loc_start:04d}>"
        if 0 <= token_id - vocabulary.seg_start < SEG_CODES:
            return f"<seg{token_id - vocabulary.seg_start:03d}>"
        if token_id in vocabulary.end_ids:
            return "<eos>"
        if not 0 <= token_id < vocabulary.size:
            return ""
        text = self._decode([token_id])
        return text if any(stop in text for stop in ";\r\n") else None

    def _add_words(self, words: list[tuple[int, int]]) -> None:
        if not words:
            return
        whole = self._decode([token_id for _, token_id in words])
        singles = [self._decode([token_id]) for _, token_id in words]
        if "".join(singles) == whole:
            for (index, _), text in zip(words, singles, strict=True):
                self._add(text, index, index + 1)
        else:  # letters that several tokens share (UTF-8 bytes): one piece
            self._add(whole, words[0][0], words[-1][0] + 1)

    def _add(self, text: str, first_id: int, stop_id: int) -> None:
        if text:
            self._pieces.append(text)
            self._starts.append(self._length)
            self._spans.append((first_id, stop_id))
            self._length += len(text)

    def _decode(self, ids: list[int]) -> str:
        return self._vocabulary.decode(ids).replace("<", _SPELLED_OUT)


def _check_vocabulary(vocabulary: TokenVocabulary | None) -> TokenVocabulary:
    if vocabulary is None:
        raise InputError(
            "token ids were given without vocabulary=; pass engine.vocabulary, or text"
        )
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
        raise InputError(f"{name} is {values!r}; it must be a sequence of whole numbers") from None
