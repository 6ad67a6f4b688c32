"""Prompts and right answers for scenes, in PaliGemma's formats.

Conventions a model can learn exactly: records of `detect` and `segment` come by the class asked,
then from left to right by the centre of the box; captions name classes in class order with counts;
nothing found is an empty answer.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

from vlmtasks import prompts
from vlmtasks.demo.classes import (
    LABELS,
    LETTERING,
    NOTHING,
    NUMBER_WORDS,
    WHAT_OBJECTS,
    how_many,
    is_there,
    join_phrases,
    plural,
    what_color,
    with_article,
)
from vlmtasks.demo.scenes import Scene, SceneObject
from vlmtasks.errors import InputError
from vlmtasks.tokens import decode_box, encode_box, format_object, format_objects

MASK_SIDE = 64

_ABSENT_SHARE = 0.13

# a negative is often a thing that looks like one that is there
_LOOKALIKES = tuple(
    group.split()
    for group in (
        "cat dog horse pig",
        "fish boat airplane",
        "car bus bicycle",
        "apple ball clock pizza",
        "cake cup pizza banana",
        "tree flower umbrella",
        "house book bus",
        "key guitar banana",
    )
)


@dataclass(frozen=True, eq=False)
class Target:
    """One record of an answer.

    mask: (H, W) bool, the visible pixels; None for `detect`.
    """

    loc_yxyx: tuple[int, int, int, int]
    label: str
    mask: np.ndarray | None

    @cached_property
    def mask64(self) -> np.ndarray | None:
        """(64, 64) float32 of 0..1: the mask cut to the rounded box, computed when first used."""
        return None if self.mask is None else crop_mask(self.mask, self.loc_yxyx)


@dataclass(frozen=True, eq=False)
class Example:
    """A prompt and its answer: `text`, or `targets` for `detect` and `segment`."""

    prefix: str
    task: str
    text: str = ""
    targets: tuple[Target, ...] = ()

    @property
    def masks(self) -> np.ndarray:
        """The masks to encode, (N, 64, 64) float32; N = 0 when the answer needs none."""
        masks = [target.mask64 for target in self.targets if target.mask64 is not None]
        return np.array(masks, np.float32).reshape(-1, MASK_SIDE, MASK_SIDE)

    def suffix(self, codes: np.ndarray | Sequence[Sequence[int]] | None = None) -> str:
        """The answer's text; `codes` (N, 16) are those of `masks`, row by row."""
        if not self.targets:
            return self.text
        rows = [] if codes is None else [tuple(int(c) for c in row) for row in codes]
        masked = sum(target.mask is not None for target in self.targets)
        if len(rows) != masked:
            raise InputError(f"{len(rows)} rows of codes for {masked} masks; give one a mask")
        supply = iter(rows)
        return format_objects(
            format_object(t.loc_yxyx, t.label, None if t.mask is None else next(supply))
            for t in self.targets
        )


def make_prompts(scene: Scene, rng: np.random.Generator, count: int) -> list[Example]:
    """`count` random examples of a scene, no prompt twice; fewer when it allows no more."""
    makers, weights = zip(*_applicable_tasks(scene), strict=True)
    share = np.array(weights) / sum(weights)
    examples: dict[str, Example] = {}
    for _ in range(4 * count):
        example = makers[rng.choice(len(makers), p=share)](scene, rng)
        if example is not None:
            examples.setdefault(example.prefix, example)
        if len(examples) == count:
            break
    return list(examples.values())


def detect_example(scene: Scene, labels: Sequence[str]) -> Example:
    """`detect` with these classes, in this order."""
    return Example(prompts.detect(labels), "detect", targets=_targets(scene, labels, False))


def segment_example(scene: Scene, labels: Sequence[str]) -> Example:
    """`segment` with these classes, in this order."""
    return Example(prompts.segment(labels), "segment", targets=_targets(scene, labels, True))


def caption_of(scene: Scene) -> str:
    """Classes in class order with counts, lettering last: "a car, two cats and text"."""
    counts = Counter(item.label for item in scene.objects)
    phrases = [_count_phrase(label, counts[label]) for label in LABELS if counts[label]]
    return join_phrases(phrases + [LETTERING] * bool(scene.words)) or NOTHING


def description_of(scene: Scene) -> str:
    """As the caption, with the colour of classes of which there is one with a certain colour."""
    counts = Counter(item.label for item in scene.objects)
    single = {item.label: item for item in scene.objects if counts[item.label] == 1}
    phrases = [
        _object_phrase(single[label]) if label in single else _count_phrase(label, counts[label])
        for label in LABELS
        if counts[label]
    ]
    return join_phrases(phrases + [LETTERING] * bool(scene.words)) or NOTHING


def crop_mask(mask: np.ndarray, loc_yxyx: Sequence[int]) -> np.ndarray:
    """Mask (H, W) bool cut to the rounded box of the bins and resized, (64, 64) float32 of 0..1.

    PIL's bilinear filter equals the antialiased one that the official encoder was trained with.
    """
    height, width = mask.shape
    x1, y1, x2, y2 = (round(v) for v in decode_box(loc_yxyx, (width, height)))
    crop = mask[y1 : max(y2, y1 + 1), x1 : max(x2, x1 + 1)].astype(np.float32)
    resized = Image.fromarray(crop).resize((MASK_SIDE, MASK_SIDE), Image.Resampling.BILINEAR)
    return np.asarray(resized)


def _applicable_tasks(scene: Scene) -> list[tuple[Callable, float]]:
    """Makers of examples with their weights; a maker may still return None."""
    tasks: list[tuple[Callable, float]] = [
        (_ask_boxes, 3),
        (_ask_masks, 14),
        (_ask_caption, 2.0),
        (_ask_presence, 1.2),
    ]
    if scene.words:
        tasks.append((_ask_lettering, 3))
    elif scene.known_labels == LABELS:  # photographs may show lettering that nobody wrote down
        tasks.append((_ask_lettering, 0.3))
    if scene.kind != "photograph":
        tasks += [(_ask_count, 1.5), (_ask_total, 0.4), (_ask_inventory, 0.4)]
        if scene.objects:
            tasks += [(_ask_color, 1.3), (_ask_question, 0.5), (_ask_box_caption, 1.2)]
    return tasks


def _ask_boxes(scene: Scene, rng: np.random.Generator) -> Example:
    return detect_example(scene, _labels_to_ask(scene, rng))


def _ask_masks(scene: Scene, rng: np.random.Generator) -> Example:
    return segment_example(scene, _labels_to_ask(scene, rng))


def _ask_caption(scene: Scene, rng: np.random.Generator) -> Example:
    style = str(rng.choice(("caption", "cap", "describe"), p=(0.6, 0.2, 0.2)))
    text = description_of(scene) if style == "describe" else caption_of(scene)
    return Example(prompts.caption(style=style), style, text)


def _ask_presence(scene: Scene, rng: np.random.Generator) -> Example:
    label = _pick_label(scene, rng, absent=rng.random() < 0.5)
    return Example(prompts.answer(is_there(label)), "presence", _yes_no(scene, label))


def _ask_count(scene: Scene, rng: np.random.Generator) -> Example:
    """Rare counts are asked for more often, so that no constant is a good answer."""
    label = _pick_label(scene, rng, absent=rng.random() < 0.12, favour=2.5)
    number = sum(item.label == label for item in scene.objects)
    return Example(prompts.answer(how_many(label)), "count", str(number))


def _ask_total(scene: Scene, rng: np.random.Generator) -> Example:
    return Example(prompts.answer(how_many(None)), "total", str(len(scene.objects)))


def _ask_inventory(scene: Scene, rng: np.random.Generator) -> Example:
    present = {item.label for item in scene.objects}
    text = ", ".join(label for label in LABELS if label in present) or NOTHING
    return Example(prompts.answer(WHAT_OBJECTS), "inventory", text)


def _ask_color(scene: Scene, rng: np.random.Generator) -> Example | None:
    """Only about a class of which there is one, with a certain colour."""
    counts = Counter(item.label for item in scene.objects)
    items = [item for item in scene.objects if counts[item.label] == 1 and item.color]
    if not items:
        return None
    item = items[rng.integers(len(items))]
    return Example(prompts.answer(what_color(item.label)), "color", item.color or "")


def _ask_question(scene: Scene, rng: np.random.Generator) -> Example | None:
    """Only answers that fit one question."""
    pairs = _unique_answers(scene)
    if not pairs:
        return None
    answer, question = pairs[rng.integers(len(pairs))]
    return Example(prompts.question(answer), "question", question)


def _ask_lettering(scene: Scene, rng: np.random.Generator) -> Example:
    return Example(prompts.ocr(), "ocr", scene.text)


def _ask_box_caption(scene: Scene, rng: np.random.Generator) -> Example:
    """The box is inexact by up to 4 % of its sides, as one drawn by hand."""
    item = scene.objects[rng.integers(len(scene.objects))]
    x1, y1, x2, y2 = item.box_xyxy
    sides = np.array([x2 - x1, y2 - y1, x2 - x1, y2 - y1])
    loose = np.clip(
        np.array(item.box_xyxy) + sides * rng.uniform(-0.04, 0.04, 4), 0, _size(scene)[0]
    )
    loc_yxyx = encode_box(loose.tolist(), _size(scene))
    return Example(prompts.caption_box(loc_yxyx), "caption_box", _object_phrase(item))


def _targets(scene: Scene, labels: Sequence[str], with_masks: bool) -> tuple[Target, ...]:
    targets = []
    for label in labels:
        items = [item for item in scene.objects if item.label == label]
        for item in sorted(items, key=lambda item: item.box_xyxy[0] + item.box_xyxy[2]):
            loc_yxyx = encode_box(item.box_xyxy, _size(scene))
            targets.append(Target(loc_yxyx, label, item.mask if with_masks else None))
    return tuple(targets)


def _size(scene: Scene) -> tuple[int, int]:
    height, width = scene.picture.shape[:2]
    return width, height


def _labels_to_ask(scene: Scene, rng: np.random.Generator) -> list[str]:
    """One class mostly, sometimes two or three; a fifth of them absent."""
    number = 1 + int(rng.choice(3, p=(0.72, 0.22, 0.06)))
    labels = [
        _pick_label(scene, rng, absent=rng.random() < _ABSENT_SHARE, favour=1.3)
        for _ in range(number)
    ]
    return list(dict.fromkeys(labels))


def _pick_label(
    scene: Scene, rng: np.random.Generator, *, absent: bool, favour: float = 1.0
) -> str:
    """An absent or present class; `favour` raises the odds of classes with several objects."""
    counts = Counter(item.label for item in scene.objects)
    missing = [label for label in scene.known_labels if label not in counts]
    if missing and (absent or not counts):
        if scene.kind == "photograph" and rng.random() < 0.6:  # what photographs are asked about
            missing = [label for label in missing if label in ("cat", "dog")] or missing
        alike = [
            label
            for group in _LOOKALIKES
            if counts.keys() & set(group)
            for label in group
            if label in missing
        ]
        choices = alike if alike and rng.random() < 0.4 else missing
        return choices[rng.integers(len(choices))]
    present = list(counts)
    weights = np.array([favour ** (min(counts[label], 3) - 1) for label in present])
    return present[rng.choice(len(present), p=weights / weights.sum())]


def _yes_no(scene: Scene, label: str) -> str:
    return "yes" if any(item.label == label for item in scene.objects) else "no"


def _unique_answers(scene: Scene) -> list[tuple[str, str]]:
    """(answer, question) pairs in which the answer leaves no doubt about the question."""
    counts = Counter(item.label for item in scene.objects)
    colors = Counter(item.color for item in scene.objects)
    pairs = []
    if not colors[None]:
        pairs += [
            (item.color, what_color(item.label))
            for item in scene.objects
            if item.color and colors[item.color] == 1 and counts[item.label] == 1
        ]
    numbers = Counter(counts.values())
    pairs += [
        (str(number), how_many(label))
        for label, number in counts.items()
        if number > 1 and numbers[number] == 1
    ]
    if len(counts) == 1:
        pairs.append(("yes", is_there(next(iter(counts)))))
    return pairs


def _count_phrase(label: str, number: int) -> str:
    return with_article(label) if number == 1 else f"{NUMBER_WORDS[number]} {plural(label)}"


def _object_phrase(item: SceneObject) -> str:
    return with_article(f"{item.color} {item.label}" if item.color else item.label)
