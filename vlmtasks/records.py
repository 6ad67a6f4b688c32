"""Reading the records of an answer: four location tokens, sixteen codes or none, a label.

The grammar stands in `vlmtasks.tokens`, which is the door to this.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vlmtasks.boxes import SizeWH

LOC_BINS = 1024  # <loc0000>…<loc1023>
SEG_CODES = 128  # <seg000>…<seg127>
MASK_CODES = 16  # 4×4 codes draw one mask

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


# Possessive quantifiers (++) keep every pattern linear: nothing is tried twice.
_BLANKS = r"[^\S\r\n]*+"  # white space within a line
_LOC_RUN = rf"(?P<locs>(?:<loc\d*+>{_BLANKS})++)"
_SEG_RUN = rf"(?P<segs>(?:<seg\d*+>{_BLANKS})++)"
_NEXT_RUN = re.compile(rf"{_LOC_RUN}|{_SEG_RUN}")
_BEFORE_LABEL = re.compile(rf"\s*+(?:{_SEG_RUN}\s*+)?")
LABEL_END = re.compile(
    r"[;\r\n]|<(?:loc|seg)\d*+>|<(?:eos|bos|pad|image|start_of_turn|end_of_turn)>"
)
_TOKEN = re.compile(r"<(?:loc|seg)(\d*+)>")
# What is left of a loc or seg token where a text was cut in its middle.
CUT_TOKEN = re.compile(r"<(?:l(?:o(?:c[0-9]{0,4})?)?|s(?:e(?:g[0-9]{0,3})?)?)?\Z")

_LOC_NUMBERS = {f"{number:04d}": number for number in range(LOC_BINS)}
_SEG_NUMBERS = {f"{number:03d}": number for number in range(SEG_CODES)}


def read_records(text: str, size_wh: SizeWH, scale: int) -> list[ParsedObject]:
    """Every record of a text, good or bad, in order; linear in its length; nothing raises."""
    records: list[ParsedObject] = []
    cut = CUT_TOKEN.search(text, max(0, len(text) - len("<loc0000")))
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
        label_end = LABEL_END.search(text, label_start, end)
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
    box_xyxy = None if box_problem else bins_to_pixels(bins, size_wh, scale)
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


def bins_to_pixels(loc_yxyx: Sequence[float], size_wh: SizeWH, scale: int) -> BoxXYXY:
    """Four bins (y_min, x_min, y_max, x_max) → (x0, y0, x1, y1): bin * size / scale."""
    width, height = size_wh
    y_min, x_min, y_max, x_max = loc_yxyx
    return (
        x_min * width / scale,
        y_min * height / scale,
        x_max * width / scale,
        y_max * height / scale,
    )
