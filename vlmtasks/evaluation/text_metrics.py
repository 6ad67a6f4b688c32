"""Reading text: edit distance, character and word error rate, text spotting.

    CER = edits / reference characters     over all lines together, not a mean of lines
    WER = the same over words              words are what `str.split()` gives

Nothing is lower-cased or stripped here; do so before where a benchmark asks for it.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vlmtasks.boxes import box_iou
from vlmtasks.errors import InputError

SPOTTING_IOU = 0.5  # ICDAR 2015, end to end
DONT_CARE = "###"  # ICDAR's mark of a word that nobody can read


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and substitutions that turn a into b.

    a, b: texts, or any sequences of hashable things such as lists of words.
    One machine word of Python's long integers holds a whole column of the table (Myers 1999 in the
    form of Hyyrö 2003), so two pages of text take milliseconds.
    """
    if not a or not b:
        return max(len(a), len(b))
    places: dict[Hashable, int] = {}
    for row, item in enumerate(a):
        places[item] = places.get(item, 0) | 1 << row
    full, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    up, down, distance = full, 0, len(a)  # rows where the column rises or falls by one
    for item in b:
        match = places.get(item, 0)
        diagonal = (((match & up) + up) ^ up) | match | down
        rises = down | ~(diagonal | up) & full
        falls = up & diagonal
        distance += bool(rises & last) - bool(falls & last)
        rises, falls = (rises << 1 | 1) & full, falls << 1 & full
        up = falls | ~(diagonal | rises) & full
        down = rises & diagonal
    return distance


def character_error_rate(references: Sequence[str], predictions: Sequence[str]) -> float:
    """Edits over characters of the references, 0 for a perfect reading; may exceed 1.

    InputError: lists of unlike length, or no reference character at all.
    """
    return _error_rate(references, predictions, "characters")


def word_error_rate(references: Sequence[str], predictions: Sequence[str]) -> float:
    """Edits over words of the references, 0 for a perfect reading; may exceed 1.

    InputError: lists of unlike length, or no reference word at all.
    """
    return _error_rate(
        [text.split() for text in references], [text.split() for text in predictions], "words"
    )


@dataclass(frozen=True, slots=True)
class Word:
    """A word in a picture: its text, and its box (x0, y0, x1, y1) in pixels."""

    text: str
    box_xyxy: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class SpottingScore:
    """Word-level precision, recall and F1, 0..1; None where nothing was there to count."""

    precision: float | None
    recall: float | None
    f1: float | None
    matches: int
    predicted: int
    truths: int


def text_spotting(
    truths: Iterable[Sequence[Word]],
    predictions: Iterable[Sequence[Word]],
    *,
    case_sensitive: bool = False,
    iou_threshold: float = SPOTTING_IOU,
) -> SpottingScore:
    """Count words that were found in the right place and read right, over all pictures.

    truths, predictions: for each picture, in the same order, its words. A truth with the text
    "###" is not to be read: it costs nothing to miss, nor does a prediction that covers it.
    A prediction and a truth are one pair when their boxes overlap by at least `iou_threshold` and
    their texts are equal; each is used once, the best overlap first.
    """
    matches = predicted = wanted = 0
    for of_picture, found in zip(truths, predictions, strict=True):
        pairs, kept, readable = _spot(of_picture, found, case_sensitive, iou_threshold)
        matches, predicted, wanted = matches + pairs, predicted + kept, wanted + readable
    precision = matches / predicted if predicted else None
    recall = matches / wanted if wanted else None
    either = predicted + wanted
    return SpottingScore(
        precision, recall, 2 * matches / either if either else None, matches, predicted, wanted
    )


def _error_rate(
    references: Sequence[Sequence[Hashable]], predictions: Sequence[Sequence[Hashable]], unit: str
) -> float:
    if len(references) != len(predictions):
        raise InputError(
            f"{len(references)} references and {len(predictions)} predictions were given; "
            "there must be one prediction for each reference"
        )
    length = sum(len(reference) for reference in references)
    if not length:
        raise InputError(f"the references hold no {unit}, so an error rate has no meaning")
    pairs = zip(references, predictions, strict=True)
    return sum(edit_distance(reference, prediction) for reference, prediction in pairs) / length


def _spot(
    truths: Sequence[Word], found: Sequence[Word], case_sensitive: bool, threshold: float
) -> tuple[int, int, int]:
    """(pairs, predictions that count, truths that count) of one picture."""
    readable = [word for word in truths if word.text != DONT_CARE]
    overlap = box_iou(
        [word.box_xyxy for word in found], [word.box_xyxy for word in truths]
    )  # (predictions, truths)
    allowed = overlap >= threshold
    for column, truth in enumerate(truths):
        for row, prediction in enumerate(found):
            same = prediction.text == truth.text or (
                not case_sensitive and prediction.text.casefold() == truth.text.casefold()
            )
            allowed[row, column] &= same and truth.text != DONT_CARE
    used_rows: set[int] = set()
    used_columns: set[int] = set()
    for flat in np.argsort(-overlap, axis=None, kind="stable"):
        row, column = divmod(int(flat), max(len(truths), 1))
        if allowed[row, column] and row not in used_rows and column not in used_columns:
            used_rows.add(row)
            used_columns.add(column)
    unreadable = [column for column, word in enumerate(truths) if word.text == DONT_CARE]
    excused = sum(
        row not in used_rows and bool((overlap[row, unreadable] >= threshold).any())
        for row in range(len(found))
    )
    return len(used_rows), len(found) - excused, len(readable)
