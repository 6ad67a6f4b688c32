"""What `detect` and `segment` can be told, and the checks of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vlmtasks.batches import Options, Settings
from vlmtasks.choices import check_choice
from vlmtasks.errors import InputError
from vlmtasks.plain_numbers import plain_number
from vlmtasks.shorten import shorten
from vlmtasks.tasks import Detect, Segment
from vlmtasks.tasks.reading import Boxes, Reading
from vlmtasks.tasks.scores import DEFAULT_SCORE, Score

Strategy = Literal["joint", "separate"]
Recipe = Literal["plain", "noise"]

MAX_OBJECTS = 100
NOISE_PROMPT = "detect all classes"
NOISE_SCORE: Score = "class"


class ObjectOptions(Options, total=False):
    """Keywords that `detect` and `segment` take besides those of every verb.

    constrain: keep the answer to the grammar of boxes and to the classes that were asked, see
        `vlmtasks.grammar`; True otherwise. False lets the model say what it likes.
    score: what scores are: "loc" otherwise, "class", "mask" or "product", see
        `vlmtasks.tasks.scores`.
    calibrate: turn scores into probabilities, where the checkpoint has a calibration for them;
        True otherwise. See `vlmtasks.tasks.calibration`.
    boxes: "top", the likeliest bins, otherwise; or "expected", the mean of the bins around them,
        see `vlmtasks.tasks.expected_boxes`.
    strategy: "joint" asks for all classes in one prompt, otherwise; "separate" asks one prompt a
        class about the same encoded picture and joins the answers in the order of the classes, for
        many classes or for models that stop after one object.
    tile: cut pictures larger than this into overlapping square tiles of so many pixels, ask about
        each and about the whole, and merge what is found, see `vlmtasks.tiling`.
    stop_score: do not let the model end its answer before it has named an object with a score below
        this one (0..1), or `max_objects`, or the same object twice. Scores then also count how sure
        the model was that there is one more object.
    max_objects: how many objects an answer has at most with `stop_score`; 100 otherwise.
    recipe: "noise" is for checkpoints that were trained with noise boxes (PaliGemma 2, appendix on
        COCO detection): the prompt is "detect all classes", the answer may not end by itself and a
        noise class is never named, and the score is the probability of the class.
    nms: class-wise non-maximum suppression: of boxes of one class that overlap by more than this
        (intersection over union, 0..1) only the one of the highest score stays.
    unique: leave out exact repetitions of an object; True otherwise.

    What the last four leave out is listed in `Detections.removed`.
    """

    constrain: bool
    score: Score
    calibrate: bool
    boxes: Boxes
    strategy: Strategy
    tile: int | None
    stop_score: float | None
    max_objects: int
    recipe: Recipe
    nms: float | None
    unique: bool


@dataclass(frozen=True)
class ObjectSettings:
    """Checked `ObjectOptions`. reading: without stop ids and calibration, which the engine knows.

    answers: those of every verb. stop_score: None where an answer may end by itself.
    """

    answers: Settings
    constrain: bool
    reading: Reading
    calibrate: bool
    strategy: Strategy
    tile: int | None
    stop_score: float | None
    max_objects: int
    prompt: str | None
    nms: float | None
    unique: bool

    @classmethod
    def from_options(cls, options: Mapping[str, Any], task: Detect | Segment) -> "ObjectSettings":
        """Fill in what is left out. TypeError for an unknown keyword, InputError for a bad value,
        or for two that do not go together."""
        answers = Settings.from_options(options, task.max_new_tokens, ObjectOptions.__annotations__)
        is_noise = _one_of(options, "recipe", get_args(Recipe)) == "noise"
        if is_noise and task.name != "detect":
            raise InputError(f'recipe="noise" is for detect; leave it out of {task.name}')
        usual_score = NOISE_SCORE if is_noise else DEFAULT_SCORE
        stop_score = _share(options, "stop_score")
        if is_noise and stop_score is None:
            stop_score = 0.0
        settings = cls(
            answers,
            _flag(options, "constrain"),
            Reading(options.get("score", usual_score), options.get("boxes", "top")),
            _flag(options, "calibrate"),
            _one_of(options, "strategy", get_args(Strategy)),
            _number(options.get("tile"), "tile", least=2),
            stop_score,
            _number(options.get("max_objects", MAX_OBJECTS), "max_objects", least=1) or MAX_OBJECTS,
            NOISE_PROMPT if is_noise else None,
            _share(options, "nms"),
            _flag(options, "unique"),
        )
        settings._check_together()
        return settings

    @property
    def compares_answers(self) -> bool:
        """Whether several answers to one prompt are compared by their probabilities."""
        sampling = self.answers.sampling
        return sampling.get("num_beams", 1) != 1 or sampling.get("best_of", 1) != 1

    def _check_together(self) -> None:
        if self.stop_score is not None and not self.constrain:
            raise InputError(
                'stop_score and recipe="noise" need the grammar: leave out constrain=False'
            )
        for name, wanted in (
            ("stop_score", self.stop_score is not None),
            ('boxes="expected"', self.reading.boxes == "expected"),
        ):
            if wanted and self.compares_answers:
                raise InputError(
                    f"{name} follows a single answer step by step; leave out num_beams and best_of"
                )


def _flag(options: Mapping[str, Any], name: str) -> bool:
    value = options.get(name, True)
    if not isinstance(value, bool):
        raise InputError(f"{name} is {shorten(value)}; it must be True or False")
    return value


def _one_of(options: Mapping[str, Any], name: str, allowed: tuple[Any, ...]) -> Any:
    return check_choice(options.get(name, allowed[0]), allowed, name)


def _share(options: Mapping[str, Any], name: str) -> float | None:
    value = plain_number(options.get(name))
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} is {shorten(value)}; it must be a number of 0..1, or None")
    return float(value)


def _number(value: Any, name: str, least: int) -> int | None:
    if value is None and name == "tile":
        return None
    value = plain_number(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(
            f"{name} is {shorten(value)}; it must be a whole number of at least {least}"
        )
    return value
