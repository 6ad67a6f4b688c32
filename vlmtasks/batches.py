"""Many pictures through the engine: in batches, each with its own result or its own error."""

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar

from PIL import Image

from vlmtasks.boxes import SizeWH
from vlmtasks.errors import ImageError, InputError
from vlmtasks.generation import Generation
from vlmtasks.images import Picture, open_image

if TYPE_CHECKING:
    from vlmtasks.engine import EncodedImage, Engine

AnyPicture: TypeAlias = "Picture | EncodedImage"
PromptFor: TypeAlias = str | Callable[[SizeWH], str]  # the latter where the size matters
T = TypeVar("T")

BATCH_SIZE = 8
SAMPLING = ("temperature", "top_p", "seed", "num_beams", "best_of", "location_tokens")


class Options(TypedDict, total=False):
    """Keywords that every verb takes.

    max_new_tokens: where the answer is cut; each task has its own limit otherwise.
    batch_size: how many pictures go through the network together; 8 otherwise.
    on_error: what becomes of a picture that cannot be read: "raise" its error (otherwise), or
        "return" it in the list, in the place of the result.
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

        known: all keywords of the verb, where it has more than `Options`. The values of the
        sampling keywords are checked by the engine.
        """
        known = Options.__annotations__ if known is None else known
        unknown = sorted(options.keys() - set(known))
        if unknown:
            raise TypeError(f"unexpected keyword {unknown[0]!r}; known are {', '.join(known)}")
        on_error = options.get("on_error", "raise")
        if on_error not in ("raise", "return"):
            raise InputError(f'on_error is {on_error!r}; it must be "raise" or "return"')
        given = options.get("max_new_tokens")
        return cls(
            None if given is None else _at_least_one(given, "max_new_tokens"),
            usual_tokens,
            _at_least_one(options.get("batch_size", BATCH_SIZE), "batch_size"),
            on_error,
            {name: options[name] for name in SAMPLING if name in options},
        )


def ask(
    engine: "Callable[[], Engine]",
    pictures: Sequence[AnyPicture],
    asked: Sequence[PromptFor],
    read: Callable[[Generation, SizeWH], T],
    settings: Settings,
) -> list[T]:
    """Ask about every picture; results in the order of the pictures.

    engine: gives the engine; called only when there is a picture that can be read.
    asked: a prompt for each picture.
    read: makes the result from a generation and the picture's size.
    ImageError names the picture and its place. With on_error "return" the list holds it instead.
    """
    results: list[T] = []
    for batch in opened_batches(pictures, settings):
        readable = batch.readable()
        if readable:
            ready = [_prompt(asked[place], seen) for place, seen in readable.items()]
            encoded = encode(engine(), readable.values())
            answers = generate(engine(), encoded, ready, settings, batch.start)
            for place, seen, answer in zip(readable, encoded, answers, strict=True):
                batch.items[place - batch.start] = read(answer, seen.image_size)
        results += batch.items
    return results


def encode_all(
    engine: "Callable[[], Engine]", pictures: Sequence[AnyPicture], settings: Settings
) -> "list[EncodedImage]":
    """Run the vision tower over every picture; errors as in `ask`."""
    results: list[Any] = []
    for batch in opened_batches(pictures, settings):
        readable = batch.readable()
        if readable:
            for place, seen in zip(readable, encode(engine(), readable.values()), strict=True):
                batch.items[place - batch.start] = seen
        results += batch.items
    return results


@dataclass
class Batch:
    """Some pictures in a row. items: an RGB picture, an encoded one, or an ImageError; later what
    came of it."""

    start: int
    items: list[Any]

    def readable(self) -> dict[int, Any]:
        """Those without error, by their place among all pictures."""
        places = enumerate(self.items, self.start)
        return {place: item for place, item in places if not isinstance(item, ImageError)}


def opened_batches(pictures: Sequence[AnyPicture], settings: Settings) -> Iterator[Batch]:
    """The pictures, opened batch by batch; errors as in `ask`."""
    for start in range(0, len(pictures), settings.batch_size):
        places = range(start, min(start + settings.batch_size, len(pictures)))
        yield Batch(start, [_open(pictures, place, settings.on_error) for place in places])


def _open(pictures: Sequence[Any], place: int, on_error: str) -> Any:
    picture = pictures[place]
    if hasattr(picture, "image_size"):  # an EncodedImage, told without importing the engine
        return picture
    try:
        return open_image(picture)
    except ImageError as error:
        if on_error == "return":
            return error
        if len(pictures) == 1:
            raise
        raise type(error)(f"picture {place} (from 0) of {len(pictures)}: {error}") from error


def _prompt(asked: PromptFor, picture: Any) -> str:
    if isinstance(asked, str):
        return asked
    return asked(picture.size if isinstance(picture, Image.Image) else picture.image_size)


def encode(engine: "Engine", pictures: Collection[Any]) -> "list[EncodedImage]":
    """Only what did not pass through the vision tower yet passes through it now."""
    raw = [picture for picture in pictures if isinstance(picture, Image.Image)]
    fresh = iter(engine.encode_image(raw) if raw else ())
    return [next(fresh) if isinstance(picture, Image.Image) else picture for picture in pictures]


def generate(
    engine: "Engine",
    encoded: "Sequence[EncodedImage]",
    ready: Sequence[str],
    settings: Settings,
    start: int,
    more: Callable[[int], Mapping[str, Any]] = lambda _: {},
) -> list[Generation]:
    """One batch through the engine.

    start: how many prompts were asked before. more: further keywords of `Engine.generate`, from the
    number of tokens that the answers may have.
    """
    limit = generation_limit(engine, encoded, ready, settings)
    sampling = dict(settings.sampling)
    if type(sampling.get("seed")) is int:
        sampling["seed"] += start  # or else every batch would draw the same numbers
    return engine.generate(
        encoded,
        ready,
        max_new_tokens=limit,
        batch_size=settings.batch_size,
        **sampling,
        **more(limit),
    )


def generation_limit(
    engine: "Engine", encoded: "Sequence[EncodedImage]", ready: Sequence[str], settings: Settings
) -> int:
    """How many tokens the answers may have: what the user says, or what task and context allow."""
    if settings.max_new_tokens is not None:
        return settings.max_new_tokens
    room = (engine.room(*pair) for pair in zip(encoded, ready, strict=True))
    return min(settings.usual_tokens, *room)


def _at_least_one(value: Any, name: str) -> int:
    try:
        whole = 0 if isinstance(value, bool) else operator.index(value)  # NumPy's integers, too
    except TypeError:
        whole = 0
    if whole < 1:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least 1")
    return whole
