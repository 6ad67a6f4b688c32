"""`detect` and `segment`: classes and pictures in, `Detections` out.

A picture gives one view or, in tiles, several; a view gives one prompt or one for each class. All
prompts of some pictures go through the engine in batches, and what they find is put together again:
the classes of a view, the views of a picture, then duplicates and overlaps go.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vlmtasks.batches import (
    AnyPicture,
    Settings,
    encode,
    generate,
    generation_limit,
    opened_batches,
)
from vlmtasks.boxes import SizeWH
from vlmtasks.continuation import TOP_LOGPROBS, ContinuedConstraint
from vlmtasks.errors import InputError
from vlmtasks.generation import Generation
from vlmtasks.grammar import ObjectGrammar, RecordConstraint
from vlmtasks.object_options import ObjectSettings
from vlmtasks.results import Detections
from vlmtasks.tasks import Detect, Segment
from vlmtasks.tasks.calibration import Calibration
from vlmtasks.tasks.expected_boxes import CANDIDATES
from vlmtasks.tasks.reading import Reading
from vlmtasks.tasks.scores import NEEDS_CLASS
from vlmtasks.tiling import Tile, merge_tiles, tile_boxes

if TYPE_CHECKING:
    from vlmtasks.engine import EncodedImage, Engine

Names = tuple[str, ...]
Read = Callable[[Generation, SizeWH, Names, Reading], Detections]


@dataclass(frozen=True)
class Finder:
    """What tells detect and segment apart. read: the result of one answer about some classes."""

    task: Detect | Segment
    with_codes: bool
    read: Read


def find(
    engine: "Callable[[], Engine]",
    pictures: Sequence[AnyPicture],
    names: Names,
    finder: Finder,
    settings: ObjectSettings,
) -> list[Detections]:
    """The objects of every picture, in the order of the pictures; errors as in `batches.ask`."""
    results: list[Any] = []
    search: Search | None = None
    for batch in opened_batches(pictures, settings.answers):
        if batch.readable():
            search = search or Search(engine(), names, finder, settings)
            views = batch.each(lambda _, picture, search=search: search.views(picture))
            found = search.run(list(views.values()))
            for place, one in zip(views, found, strict=True):
                batch.items[place - batch.start] = one
        results += batch.items
    return results


class Search:
    """One call of a verb on a loaded engine: its prompts and grammars, made once."""

    def __init__(
        self, engine: "Engine", names: Names, finder: Finder, settings: ObjectSettings
    ) -> None:
        self.engine, self.finder, self.settings = engine, finder, settings
        separate = settings.strategy == "separate"
        self.groups: list[Names] = [(name,) for name in names] if separate else [names]
        self.prompts = [settings.prompt or finder.task.prompt(group) for group in self.groups]
        self.reading = replace(
            settings.reading,
            stop_ids=None if settings.stop_score is None else engine.stop_ids,
            calibration=self._calibration(),
        )
        self._grammars: dict[int, ObjectGrammar] = {}
        self._asked = 0

    def run(self, views: "Sequence[list[View]]") -> list[Detections]:
        """The objects of some pictures, each given by its views."""
        encoded = [
            seen
            for some in _chunks([v.picture for one in views for v in one], self.settings.answers)
            for seen in encode(self.engine, some)
        ]
        questions = [(seen, group) for seen in encoded for group in range(len(self.groups))]
        answers = iter(
            [one for some in _chunks(questions, self.settings.answers) for one in self._ask(some)]
        )
        results = []
        for some in views:
            of_views = [Detections.concatenated([next(answers) for _ in self.groups]) for _ in some]
            if len(some) == 1:
                results.append(self.cleaned(of_views[0]))
                continue
            tiles = [view.tile for view in some]
            results.append(self.cleaned(merge_tiles(tiles, of_views, _size(some[0].picture))))
        return results

    def constraint(self, group: int, max_new_tokens: int) -> "Constraint":
        """The rules for one answer about the classes of a group."""
        settings = self.settings
        if group not in self._grammars:
            self._grammars[group] = ObjectGrammar(
                self.groups[group],
                self.engine.vocabulary,
                self.engine.stop_ids,
                with_codes=self.finder.with_codes,
                class_scores=settings.reading.score in NEEDS_CLASS,
            )
        records = self._grammars[group].constraint(max_new_tokens)
        if settings.stop_score is None:
            return records
        return ContinuedConstraint(
            records,
            self.engine.vocabulary,
            self.reading,
            settings.stop_score,
            settings.max_objects,
        )

    def keywords(self) -> dict[str, Any]:
        """What the engine has to be told besides the rules."""
        settings = self.settings
        keywords: dict[str, Any] = {}
        if settings.constrain and not settings.compares_answers:
            keywords["raw_logprobs"] = False
        top = TOP_LOGPROBS if settings.stop_score is not None else 0
        top = CANDIDATES if settings.reading.boxes == "expected" else top
        return keywords | ({"top_logprobs": top} if top else {})

    def read(self, generation: Generation, image_size: SizeWH, group: int) -> Detections:
        """The result of one answer about the classes of a group."""
        return self.finder.read(generation, image_size, self.groups[group], self.reading)

    def cleaned(self, found: Detections) -> Detections:
        """Without low scores, repetitions and overlaps, as far as was asked for."""
        settings = self.settings
        if settings.stop_score:
            enough = np.flatnonzero(found.scores >= settings.stop_score).tolist()
            found = found.keeping(enough, "low score")
        if settings.unique:
            found = found.deduplicated()
        return found if settings.nms is None else found.without_overlaps(settings.nms)

    def _calibration(self) -> Calibration | None:
        if not self.settings.calibrate:
            return None
        score = self.settings.reading.score
        return Calibration.from_metadata(self.engine.metadata, self.finder.task.name, score)

    def views(self, picture: "Image.Image | EncodedImage") -> "list[View]":
        """What of a picture is asked about. InputError: encoded elsewhere, not to be cut."""
        width, height = _size(picture)
        if not isinstance(picture, Image.Image):
            self.engine.room(picture, "")  # or why this engine cannot use it
        if self.settings.tile is None:
            return [View((0, 0, width, height), picture)]
        if not isinstance(picture, Image.Image):
            raise InputError(
                "tile= cuts the picture itself; pass it rather than what encode_image returned"
            )
        tiles = tile_boxes((width, height), self.settings.tile)
        return [View(tile, picture.crop(tile) if n else picture) for n, tile in enumerate(tiles)]

    def _ask(self, questions: "Sequence[tuple[EncodedImage, int]]") -> list[Detections]:
        """One batch of encoded pictures with the groups of classes that are asked."""
        encoded = [seen for seen, _ in questions]
        groups = [group for _, group in questions]
        rules: dict[int, Constraint] = {}

        def more(limit: int, rows: Sequence[int]) -> dict[str, Any]:
            if not self.settings.constrain:
                return self.keywords()
            some = [self.constraint(groups[row], limit) for row in rows]
            rules.update(zip(rows, some, strict=True))
            keywords = {"constraints": some, **self.keywords()}
            if self.settings.stop_score is not None:
                keywords["on_step"] = lambda step: some[step.row].add(step)
            return keywords

        prompts = [self.prompts[group] for group in groups]
        start, self._asked = self._asked, self._asked + len(questions)
        limits = [
            generation_limit(self.engine, seen, prompt, self.settings.answers)
            for seen, prompt in zip(encoded, prompts, strict=True)
        ]
        answers = generate(
            self.engine, encoded, prompts, limits, self.settings.answers, start, more
        )
        answers = [
            with_true_end(answer, rules[row]) if row in rules else answer
            for row, answer in enumerate(answers)
        ]
        return [
            self.read(answer, seen.image_size, group)
            for answer, seen, group in zip(answers, encoded, groups, strict=True)
        ]


Constraint = RecordConstraint | ContinuedConstraint


def with_true_end(generation: Generation, rules: Constraint) -> Generation:
    """An answer that ended only for want of room was cut."""
    if generation.finish_reason == "stop" and rules.was_cut(generation.token_ids):
        return replace(generation, finish_reason="length")
    return generation


@dataclass(frozen=True)
class View:
    """A part of a picture, or all of it. tile: where it lies."""

    tile: Tile
    picture: "Image.Image | EncodedImage"


def _size(picture: "Image.Image | EncodedImage") -> SizeWH:
    return picture.size if isinstance(picture, Image.Image) else picture.image_size


def _chunks(items: Sequence[Any], settings: Settings) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), settings.batch_size):
        yield items[start : start + settings.batch_size]
