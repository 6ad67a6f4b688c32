"""Where an answer looks: the patches that each of its tokens is about.

The decoder learns slowly what to look at when only its answers are marked. So the attention of two
of its heads is taught directly: while it is about to say a token, they look at the patches of the
object, mask cell or character that this token is about.

Letters: S patches, T tokens of an answer.
"""

import numpy as np

from vlmtasks.demo.dense import LOC_CHOICES, DenseTargets
from vlmtasks.demo.network import GRID, PATCH_SIZE
from vlmtasks.demo.scenes import Scene
from vlmtasks.demo.vocabulary import DemoVocabulary

SEG_SIDE = 4  # the codes of a mask stand for 4×4 cells of its box

Points = tuple[tuple[int, ...], ...]  # patches per token of the answer; empty: not taught


def points_of_objects(
    suffix: tuple[int, ...], order: list[int], boxes: list[np.ndarray], targets: DenseTargets,
    vocabulary: DemoVocabulary,
) -> Points:  # fmt: skip
    """Of records `<loc>…[<seg>…] label`, whose objects are `order`, in `boxes` of taught bins: a
    code looks at its own cell, everything else at the object."""
    points: list[tuple[int, ...]] = []
    record, locs, segs = 0, 0, 0
    for token in suffix:
        is_loc = 0 <= token - vocabulary.loc_start < 1024
        is_seg = 0 <= token - vocabulary.seg_start < 128
        if is_loc and locs == 4:  # the next record
            record, locs, segs = record + 1, 0, 0
        locs += is_loc
        if record >= len(order) or not (is_loc or is_seg):
            points.append(())
        elif is_seg:
            points.append(_cell_patches(boxes[record], segs))
            segs += 1
        else:
            points.append(_patches(targets, [order[record]]))
    return tuple(points)


def points_of_words(
    prefix: tuple[int, ...], suffix: tuple[int, ...], targets: DenseTargets,
    vocabulary: DemoVocabulary,
) -> Points:  # fmt: skip
    """Of an answer in words: a phrase ("two cats") looks at all objects of its class, an answer
    without class at those of the class that the prompt names."""
    asked = [vocabulary.class_of[token] for token in prefix if token in vocabulary.class_of]
    named = [vocabulary.class_of.get(token) for token in suffix]
    if len(asked) == 1:
        patches = _patches(targets, np.flatnonzero(targets.labels == asked[0]).tolist())
        return (patches,) + ((),) * (len(suffix) - 1)
    points: list[tuple[int, ...]] = []
    current: int | None = None
    for token, label in reversed(list(zip(suffix, named, strict=True))):
        if label is not None:
            current = label
        elif token in vocabulary.joints:
            current = None
        if current is None:
            points.append(())
        else:
            points.append(_patches(targets, np.flatnonzero(targets.labels == current).tolist()))
    return tuple(reversed(points))


def points_of_lettering(
    suffix: tuple[int, ...], scene: Scene, vocabulary: DemoVocabulary
) -> Points:
    """Of an `ocr` answer: each character looks at the patch that its centre lies in."""
    boxes = [box for word in scene.words for box in word.char_boxes_xyxy]
    spelled = [token in vocabulary.char_index for token in suffix]
    if sum(spelled) != len(boxes):
        return ((),) * len(suffix)
    supply = iter(boxes)
    points: list[tuple[int, ...]] = []
    for is_char in spelled:
        if not is_char:
            points.append(())
            continue
        x1, y1, x2, y2 = next(supply)
        column = int(np.clip((x1 + x2) / 2 // PATCH_SIZE, 0, GRID - 1))
        row = int(np.clip((y1 + y2) / 2 // PATCH_SIZE, 0, GRID - 1))
        points.append((row * GRID + column,))
    return tuple(points)


def _patches(targets: DenseTargets, objects: list[int]) -> tuple[int, ...]:
    shown = set(np.flatnonzero(np.isin(targets.patch_object, objects)).tolist())
    return tuple(sorted(shown | {int(targets.centers[index]) for index in objects}))


def _cell_patches(loc_choices: np.ndarray, code: int) -> tuple[int, ...]:
    """The up to four patches around the middle of a code's cell in a box of taught bins."""
    y1, x1, y2, x2 = LOC_CHOICES[loc_choices] * (GRID / 1024)
    row, column = divmod(code, SEG_SIDE)
    y = y1 + (y2 - y1) * (row + 0.5) / SEG_SIDE
    x = x1 + (x2 - x1) * (column + 0.5) / SEG_SIDE
    rows, columns = _around(y, y1, y2), _around(x, x1, x2)
    return tuple(sorted(r * GRID + c for r in rows for c in columns))


def _around(middle: float, low: float, high: float) -> set[int]:
    """The rows (or columns) before and after a coordinate, within low … high."""
    last = max(int(np.ceil(high)) - 1, int(low))
    return {int(np.clip(middle + side, int(low), last)) for side in (-0.5, 0.5)}
