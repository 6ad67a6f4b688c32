"""Many pictures through the engine: in batches, each with its own result or its own error."""

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar

from PIL import Image

from vlmtasks.boxes import SizeWH
from vlmtasks.choices import check_choice
from vlmtasks.engine.decoding_options import DecodingOptions
from vlmtasks.errors import InputError, PromptError
from vlmtasks.generation import Generation
from vlmtasks.images import Picture, open_image
from vlmtasks.shorten import shorten

if TYPE_CHECKING:
    from vlmtasks.engine import EncodedImage, Engine

AnyPicture: TypeAlias = "Picture | EncodedImage"
PromptFor: TypeAlias = str | Callable[[SizeWH], str]  # the latter where the size matters
T = TypeVar("T")

BATCH_SIZE = 8
SAMPLING = ("temperature", "top_p", "seed", "num_beams", "best_of")


class Options(TypedDict, total=False):
    """Keywords that every verb takes.

    max_new_tokens: where the answer is cut; each task has its own limit otherwise.
    batch_size: how many pictures go through the network together; 8 otherwise.
    on_error: what becomes of a picture that cannot be read or asked about, as where its own prompt
        is too long: "raise" the error (otherwise), or "return" it in the list, in the place of the
        result. What is wrong for all pictures alike is always raised.
    temperature, top_p, seed, num_beams, best_of: other than greedy decoding; see
        `vlmtasks.engine.decoding_options.DecodingOptions`. A seed gives the same answers as long
        as the pictures and batch_size are the same.
    location_tokens: read <loc0000>…<loc1023> in a prompt of `VLM.generate` as location tokens.
    """

    max_new_tokens: int
    batch_size: int
    on_error: Literal["raise", "return"]
    temperature: float
    top_p: float
    seed: int | None
    num_beams: int
    best_of: int
    location_tokens: bool


@dataclass(frozen=True)
class Settings:
    """Checked `Options`.

    max_new_tokens: what the user says, or None. usual_tokens: the limit of the task, which gives
        way where the model's context leaves less.
    """

    max_new_tokens: int | None
    usual_tokens: int
    batch_size: int
    on_error: str
    sampling: Mapping[str, Any]

    @classmethod
    def from_options(
        cls, options: Mapping[str, Any], usual_tokens: int, known: Collection[str] | None = None
    ) -> "Settings":
        """Fill in what is left out. TypeError for an unknown keyword, InputError for a bad value.

        known: all keywords of the verb, where it has more than `Options`.
        """
        known = Options.__annotations__ if known is None else known
        unknown = sorted(options.keys() - set(known))
        if unknown:
            raise TypeError(f"unexpected keyword {unknown[0]!r}; known are {', '.join(known)}")
        on_error = options.get("on_error", "raise")
        check_choice(on_error, ("raise", "return"), "on_error")
        given = options.get("max_new_tokens")
        return cls(
            None if given is None else _at_least_one(given, "max_new_tokens"),
            usual_tokens,
            _at_least_one(options.get("batch_size", BATCH_SIZE), "batch_size"),
            on_error,
            _sampling(options),
        )


def ask(
    engine: "Callable[[], Engine]",
    pictures: Sequence[AnyPicture],
    asked: PromptFor | Sequence[PromptFor],
    read: Callable[[Generation, SizeWH], T],
    settings: Settings,
) -> list[T]:
    """Ask about every picture; results in the order of the pictures.

    engine: gives the engine; called only when there is a picture that can be read.
    asked: one prompt for all pictures, or a list with one for each.
    read: makes the result from a generation and the picture's size.
    ImageError and InputError name the picture and its place. With on_error "return" the list holds
    them instead, except for a prompt for all that is too long for the context.
    """
    results: list[T] = []
    is_shared = isinstance(asked, str) or callable(asked)
    own = [asked] * len(pictures) if isinstance(asked, str) or callable(asked) else asked
    for batch in opened_batches(pictures, settings):
        prompts = batch.each(lambda place, seen: _prompt(own[place], seen))
        if prompts:
            encode_batch(engine(), batch)

            def limit(place: int, seen: Any, prompts: Mapping[int, str] = prompts) -> int:
                return generation_limit(engine(), seen, prompts[place], settings)

            limits = batch.each(limit, always_raised=PromptError if is_shared else ())
            encoded = batch.readable()
            answers = generate(
                engine(),
                list(encoded.values()),
                [prompts[place] for place in encoded],
                list(limits.values()),
                settings,
                batch.start,
            )
            for (place, seen), answer in zip(encoded.items(), answers, strict=True):
                batch.items[place - batch.start] = read(answer, seen.image_size)
        results += batch.items
    return results


def encode_all(
    engine: "Callable[[], Engine]", pictures: Sequence[AnyPicture], settings: Settings
) -> "list[EncodedImage]":
    """Run the vision tower over every picture; errors as in `ask`."""
    results: list[Any] = []
    for batch in opened_batches(pictures, settings):
        if batch.readable():
            encode_batch(engine(), batch)
        results += batch.items
    return results


@dataclass
class Batch:
    """Some pictures in a row. items: an RGB picture, an encoded one, or an error; later what came
    of it. total: how many pictures the whole call has."""

    start: int
    items: list[Any]
    total: int
    on_error: str

    def readable(self) -> dict[int, Any]:
        """Those without error, by their place among all pictures."""
        places = enumerate(self.items, self.start)
        return {place: item for place, item in places if not isinstance(item, InputError)}

    def each(
        self,
        work: Callable[[int, Any], T],
        always_raised: type[InputError] | tuple[()] = (),
    ) -> dict[int, T]:
        """What `work` makes of each readable item and its place, by place.

        An InputError takes the item's place, or is raised and names it, as `on_error` says;
        `always_raised` are those that do not belong to one picture alone.
        """
        made: dict[int, T] = {}
        for place, item in self.readable().items():
            try:
                made[place] = work(place, item)
            except InputError as error:
                if isinstance(error, always_raised):
                    raise
                if self.on_error == "raise":
                    if self.total == 1:
                        raise
                    where = f"picture {place} (from 0) of {self.total}"
                    raise type(error)(f"{where}: {error}") from error
                self.items[place - self.start] = error
        return made


def opened_batches(pictures: Sequence[AnyPicture], settings: Settings) -> Iterator[Batch]:
    """The pictures, opened batch by batch; errors as in `ask`."""
    for start in range(0, len(pictures), settings.batch_size):
        given = pictures[start : start + settings.batch_size]
        # what on_error="return" gave in place of a picture is no picture, but this call's error
        some = [_Failed(one) if isinstance(one, InputError) else one for one in given]
        batch = Batch(start, some, len(pictures), settings.on_error)
        for place, picture in batch.each(lambda _, picture: _open(picture)).items():
            batch.items[place - start] = picture
        yield batch


@dataclass(frozen=True)
class _Failed:
    error: InputError


def _open(picture: Any) -> Any:
    if isinstance(picture, _Failed):
        raise picture.error
    if hasattr(picture, "image_size"):  # an EncodedImage, told without importing the engine
        return picture
    return open_image(picture)


def _prompt(asked: PromptFor, picture: Any) -> str:
    if isinstance(asked, str):
        return asked
    return asked(picture.size if isinstance(picture, Image.Image) else picture.image_size)


def encode(engine: "Engine", pictures: Collection[Any]) -> "list[EncodedImage]":
    """Only what did not pass through the vision tower yet passes through it now."""
    raw = [picture for picture in pictures if isinstance(picture, Image.Image)]
    fresh = iter(engine.encode_image(raw) if raw else ())
    return [next(fresh) if isinstance(picture, Image.Image) else picture for picture in pictures]


def encode_batch(engine: "Engine", batch: Batch) -> None:
    """Put encoded pictures in the place of those that can be read."""
    readable = batch.readable()
    for place, seen in zip(readable, encode(engine, readable.values()), strict=True):
        batch.items[place - batch.start] = seen


def generate(
    engine: "Engine",
    encoded: "Sequence[EncodedImage]",
    ready: Sequence[str],
    limits: Sequence[int],
    settings: Settings,
    start: int,
    more: Callable[[int, Sequence[int]], Mapping[str, Any]] = lambda limit, rows: {},
) -> list[Generation]:
    """One batch through the engine.

    limits: how many tokens each answer may have. Answers of different limits are generated apart,
        or a long prompt would cut the answers beside it.
    start: how many prompts were asked before. more: further keywords of `Engine.generate`, from a
        limit and the rows of the batch that it is for.
    """
    answers: dict[int, Generation] = {}
    for limit in dict.fromkeys(limits):
        rows = [row for row, its in enumerate(limits) if its == limit]
        sampling = dict(settings.sampling)
        if sampling.get("seed") is not None:
            # or else every batch would draw the same numbers
            sampling["seed"] += start + len(answers)
        some = engine.generate(
            [encoded[row] for row in rows],
            [ready[row] for row in rows],
            max_new_tokens=limit,
            batch_size=settings.batch_size,
            **sampling,
            **more(limit, rows),
        )
        answers |= zip(rows, some, strict=True)
    return [answers[row] for row in range(len(limits))]


def generation_limit(
    engine: "Engine", encoded: "EncodedImage", prompt: str, settings: Settings
) -> int:
    """How many tokens an answer may have: what the user says, or what task and context allow.

    PromptError when the context leaves fewer than the user says, or none. InputError for a picture
    that was encoded elsewhere.
    """
    room = engine.room(encoded, prompt, settings.max_new_tokens or 1)
    if settings.max_new_tokens is not None:
        return settings.max_new_tokens
    return min(settings.usual_tokens, room)


def _sampling(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of sampling that were given, checked."""
    given = {name: options[name] for name in SAMPLING if name in options}
    checked = DecodingOptions(1, **given)
    values = {name: getattr(checked, name) for name in given}
    if "location_tokens" in options:
        if not isinstance(options["location_tokens"], bool):
            shown = shorten(options["location_tokens"])
            raise InputError(f"location_tokens is {shown}; it must be True or False")
        values["location_tokens"] = options["location_tokens"]
    return values


def _at_least_one(value: Any, name: str) -> int:
    try:
        whole = 0 if isinstance(value, bool) else operator.index(value)  # NumPy's integers, too
    except TypeError:
        whole = 0
    # Python writes no number of thousands of digits, so no later message could name it
    if not 1 <= whole < 1 << 1000:
        raise InputError(f"{name} is {shorten(value)}; it must be a whole number of at least 1")
    return whole
