"""The verbs: a picture and words in; boxes, masks or text out.

    vlm = vlmtasks.load("path/to/checkpoint")
    vlm.detect("photo.jpg", "cat ; dog")     # one picture in, one result out
    vlm.caption(["a.jpg", "b.jpg"])          # a list in, a list out

The functions of the same names ask the default model: the checkpoint that the environment variable
VLMTASKS_MODEL names, otherwise the bundled one. It is loaded when it is first needed.
"""

import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import numpy as np
from numpy.typing import ArrayLike

from vlmtasks import prompts, tasks
from vlmtasks.batches import AnyPicture, Options, PromptFor, Settings, ask, encode_all
from vlmtasks.boxes import SizeWH, box_areas, check_boxes, clip_boxes
from vlmtasks.errors import InputError, PromptError
from vlmtasks.finding import Finder, Names, Search, find
from vlmtasks.generation import Generation
from vlmtasks.object_options import ObjectOptions, ObjectSettings
from vlmtasks.results import Detections
from vlmtasks.shorten import shorten
from vlmtasks.sidecar import Sidecar, load_codec
from vlmtasks.streams import ObjectStream, check_streamable, stream_text
from vlmtasks.tasks.reading import Reading
from vlmtasks.tokens import encode_box

if TYPE_CHECKING:
    from vlmtasks.engine import EncodedImage, Engine
    from vqvae import MaskCodec

DEFAULT_MODEL = "VLMTASKS_MODEL"  # environment variable
FREE_TEXT_TOKENS = 128
BUNDLED = {"demo": Path(__file__).parent / "demo" / "checkpoint"}

P = ParamSpec("P")
T = TypeVar("T")


def load(
    source: str | Path = "demo",
    *,
    device: str = "auto",
    dtype: str = "auto",
    quantize: str | None = None,
    mask_codec: "str | Path | MaskCodec | None" = None,
    **options: Any,
) -> "VLM":
    """Load a checkpoint.

    source: "demo" (the bundled one), a folder as transformers saves it, or a name on the hub.
    device: "auto" (a GPU where there is one), "cpu", "cuda", "cuda:1" …
    dtype: "auto" (as stored), "float32", "bfloat16" or "float16".
    mask_codec: the codec of the segment codes, where the checkpoint does not name it itself:
        a `vae-oid.npz`, a safetensors file, or a `vqvae.MaskCodec`.
    options: what `Engine.load` takes besides: resolution, adapter, revision, token …

    CheckpointError, MissingFileError or MaskCodecError say what cannot be used and why.
    """
    model = LazyVLM(
        source, device=device, dtype=dtype, quantize=quantize, mask_codec=mask_codec, **options
    )
    return model.loaded()


class _Verb(Protocol[P, T]):
    """One picture in, one result out; a list (or tuple) in, a list out."""

    @overload
    def __call__(self, image: AnyPicture, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def __call__(
        self, image: Sequence[AnyPicture], *args: P.args, **kwargs: P.kwargs
    ) -> list[T]: ...


def _verb(
    method: "Callable[Concatenate[Any, list[AnyPicture], P], list[T]]",
) -> _Verb[P, T]:
    """Make a method for lists of pictures one for single pictures too."""
    signature = inspect.signature(method)
    result = str(signature.return_annotation).removeprefix("list[").removesuffix("]")

    @wraps(method)
    def verb(self: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(image, list | tuple):
            return method(self, list(image), *args, **kwargs)
        return method(self, [image], *args, **kwargs)[0]

    image = signature.parameters["image"].replace(annotation="Picture | list[Picture]")
    verb.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=list({**signature.parameters, "image": image}.values()),
        return_annotation=f"{result} | list[{result}]",
    )
    return cast("_Verb[P, T]", verb)


class VLM:
    """A loaded checkpoint and its verbs. Make one with `vlmtasks.load`.

    A picture is a path, the bytes of a file, a PIL picture, a numpy array (see
    `vlmtasks.images.open_image`) or what `encode_image` returned. One picture in, one result out; a
    list in, a list out. A question, an answer, a prompt or a box may be one for all pictures or a
    list with one for each. Every verb takes the keywords of `vlmtasks.batches.Options` too:
    max_new_tokens, batch_size, on_error and those of sampling.

    Wrong arguments raise InputError before any picture is looked at.
    """

    def __init__(
        self, engine: "Engine", *, mask_codec: "str | Path | MaskCodec | None" = None
    ) -> None:
        self._engine = engine
        self._sidecar = Sidecar.from_metadata(engine.metadata, engine.folder)
        self._codec = None if mask_codec is None else load_codec(self._sidecar, mask_codec)

    @property
    def engine(self) -> "Engine":
        return self._engine

    @property
    def box_scale(self) -> int:
        """1024 or 1023, as the checkpoint's `vlmtasks.json` says."""
        return self._sidecar.box_scale

    @property
    def mask_codec(self) -> "MaskCodec":
        """The codec of the checkpoint's segment codes. MaskCodecError where it is not known."""
        if self._codec is None:
            self._codec = load_codec(self._sidecar)
        return self._codec

    @_verb
    def caption(
        self,
        image: list[AnyPicture],
        lang: str = "en",
        style: str = "caption",
        **options: Unpack[Options],
    ) -> list[str]:
        """A description. style: "caption" (as in COCO), "cap" (as on the web) or "describe"."""
        prompt = prompts.caption(lang, style)
        return self._ask_text(tasks.CAPTION, image, prompt, options)

    @_verb
    def answer(
        self,
        image: list[AnyPicture],
        question: str | Sequence[str],
        lang: str = "en",
        **options: Unpack[Options],
    ) -> list[str]:
        """The answer to a question, in the language `lang`."""
        asked = _for_each(image, question, "question", lambda words: prompts.answer(words, lang))
        return self._ask_text(tasks.ANSWER, image, asked, options)

    @_verb
    def question(
        self,
        image: list[AnyPicture],
        answer: str | Sequence[str],
        lang: str = "en",
        **options: Unpack[Options],
    ) -> list[str]:
        """A question to which `answer` is the answer, in the language `lang`."""
        asked = _for_each(image, answer, "answer", lambda words: prompts.question(words, lang))
        return self._ask_text(tasks.QUESTION, image, asked, options)

    @_verb
    def ocr(self, image: list[AnyPicture], **options: Unpack[Options]) -> list[str]:
        """The text that is seen in the picture."""
        return self._ask_text(tasks.OCR, image, prompts.ocr(), options)

    @_verb
    def detect(
        self, image: list[AnyPicture], labels: str | Iterable[str], **options: Unpack[ObjectOptions]
    ) -> list[Detections]:
        """The boxes of what you name: "cat", "cat ; dog" or ["cat", "dog"].

        options: also those of `vlmtasks.object_options.ObjectOptions`.
        """
        return self._find(self._detector(), image, labels, options)

    @_verb
    def segment(
        self, image: list[AnyPicture], labels: str | Iterable[str], **options: Unpack[ObjectOptions]
    ) -> list[Detections]:
        """The boxes and masks of what you name, as in `detect`; "the dog on the left" is a name.

        MaskCodecError, before the model runs, when the checkpoint's mask codec is not known.
        """
        return self._find(self._segmenter(), image, labels, options)

    def stream_detect(
        self, image: AnyPicture, labels: str | Iterable[str], **options: Unpack[ObjectOptions]
    ) -> ObjectStream:
        """As `detect`, each `Detection` as soon as its record is complete; one picture.

        The stream's `result` is the whole at the end. Not with tile, nms, num_beams and best_of.
        """
        return self._stream(self._detector(), image, labels, options)

    def stream_segment(
        self, image: AnyPicture, labels: str | Iterable[str], **options: Unpack[ObjectOptions]
    ) -> ObjectStream:
        """As `segment`, each `Detection` as soon as its record is complete; see `stream_detect`."""
        return self._stream(self._segmenter(), image, labels, options)

    def stream_caption(
        self,
        image: AnyPicture,
        lang: str = "en",
        style: str = "caption",
        **options: Unpack[Options],
    ) -> Iterator[str]:
        """As `caption`, in pieces that add up to it; one picture. Not with num_beams, best_of."""
        prompt = prompts.caption(lang, style)
        settings = Settings.from_options(options, tasks.CAPTION.max_new_tokens)
        check_streamable(settings)
        (encoded,) = encode_all(lambda: self.engine, [image], settings)
        return stream_text(self.engine, encoded, prompt, settings)

    @_verb
    def caption_box(
        self, image: list[AnyPicture], box_xyxy: ArrayLike, **options: Unpack[Options]
    ) -> list[str]:
        """A description of what is in a box. box_xyxy: (4,), or (N, 4) for N pictures; pixels."""
        try:
            one_for_all = np.ndim(box_xyxy) == 1  # type: ignore[arg-type]
        except ValueError:  # rows of unequal length, which the check names
            one_for_all = False
        rows: Any = [box_xyxy] if one_for_all else box_xyxy
        boxes = check_boxes(rows, name="box_xyxy")
        box: Any = boxes[0] if one_for_all else list(boxes)
        asked = _for_each(image, box, "box_xyxy", self._box_prompt)
        return self._ask_text(tasks.CAPTION_BOX, image, asked, {**options, "location_tokens": True})

    @_verb
    def generate(
        self, image: list[AnyPicture], prompt: str | Sequence[str], **options: Unpack[Options]
    ) -> list[Generation]:
        """What the model says to a prompt of your own; 128 tokens unless max_new_tokens says else.

        The prompt has no <bos> and no final line end; <image> in it is ordinary text.
        """
        asked = _for_each(image, prompt, "prompt", prompts.free_text)
        return self._ask(FREE_TEXT_TOKENS, image, asked, lambda generation, _: generation, options)

    @_verb
    def encode_image(
        self, image: list[AnyPicture], **options: Unpack[Options]
    ) -> "list[EncodedImage]":
        """Run the vision tower once; every verb takes the result in place of the picture."""
        settings = Settings.from_options(options, FREE_TEXT_TOKENS)
        return encode_all(lambda: self.engine, image, settings)

    def _ask_text(
        self,
        task: tasks.TextTask,
        pictures: list[AnyPicture],
        asked: PromptFor | Sequence[PromptFor],
        options: Options,
    ) -> list[str]:
        return self._ask(
            task.max_new_tokens,
            pictures,
            asked,
            lambda generation, _: task.parse(generation),
            options,
        )

    def _ask(
        self,
        max_new_tokens: int,
        pictures: list[AnyPicture],
        asked: PromptFor | Sequence[PromptFor],
        read: Callable[[Generation, SizeWH], T],
        options: Options,
    ) -> list[T]:
        settings = Settings.from_options(options, max_new_tokens)
        return ask(lambda: self.engine, pictures, asked, read, settings)

    def _detector(self) -> Finder:
        def read(
            generation: Generation, image_size: SizeWH, names: Names, reading: Reading
        ) -> Detections:
            return tasks.DETECT.parse(
                generation,
                image_size=image_size,
                labels=names,
                vocabulary=self.engine.vocabulary,
                scale=self.box_scale,
                reading=reading,
            )

        return Finder(tasks.DETECT, False, read)

    def _segmenter(self) -> Finder:
        def read(
            generation: Generation, image_size: SizeWH, names: Names, reading: Reading
        ) -> Detections:
            return tasks.SEGMENT.parse(
                generation,
                image_size=image_size,
                codec=self.mask_codec,
                labels=names,
                vocabulary=self.engine.vocabulary,
                scale=self.box_scale,
                reading=reading,
            )

        return Finder(tasks.SEGMENT, True, read)

    def _engine_for(self, finder: Finder) -> "Engine":
        if finder.with_codes:
            _ = self.mask_codec  # or its error, before the network works for nothing
        return self.engine

    def _find(
        self,
        finder: Finder,
        pictures: list[AnyPicture],
        labels: str | Iterable[str],
        options: ObjectOptions,
    ) -> list[Detections]:
        names = prompts.class_names(labels)
        settings = ObjectSettings.from_options(options, finder.task)
        return find(lambda: self._engine_for(finder), pictures, names, finder, settings)

    def _stream(
        self,
        finder: Finder,
        picture: AnyPicture,
        labels: str | Iterable[str],
        options: ObjectOptions,
    ) -> ObjectStream:
        names = prompts.class_names(labels)
        settings = ObjectSettings.from_options(options, finder.task)
        check_streamable(settings.answers, settings)
        (encoded,) = encode_all(lambda: self._engine_for(finder), [picture], settings.answers)
        return ObjectStream(Search(self.engine, names, finder, settings), encoded)

    def _box_prompt(self, box_xyxy: Any) -> Callable[[SizeWH], str]:
        def prompt(image_size: SizeWH) -> str:
            if not box_areas(clip_boxes([box_xyxy], image_size))[0]:
                raise InputError(
                    f"box_xyxy is {box_xyxy.tolist()}, which covers nothing of a picture of "
                    f"{image_size} pixels; it must be (x0, y0, x1, y1) with x1 > x0 and y1 > y0"
                )
            return prompts.caption_box(encode_box(box_xyxy, image_size, self.box_scale))

        return prompt


class LazyVLM(VLM):
    """A VLM whose checkpoint is loaded when the network is first needed, once, by any thread.

    source: as for `load`; None for the default model. Wrong arguments and pictures that cannot be
    read are told without loading anything.
    """

    def __init__(self, source: str | Path | None, **options: Any) -> None:
        self._source = source
        self._options = options
        self._lock = threading.Lock()
        self._loaded: VLM | None = None

    def loaded(self) -> VLM:
        """The loaded model. See `load` for the errors."""
        with self._lock:
            if self._loaded is None:
                source = default_source() if self._source is None else self._source
                self._loaded = _load(source, **self._options)
            return self._loaded

    @property
    def engine(self) -> "Engine":
        return self.loaded().engine

    @property
    def box_scale(self) -> int:
        return self.loaded().box_scale

    @property
    def mask_codec(self) -> "MaskCodec":
        return self.loaded().mask_codec


def default_source() -> str:
    """What VLMTASKS_MODEL names, or "demo"."""
    return os.environ.get(DEFAULT_MODEL) or "demo"


def _load(
    source: str | Path, *, mask_codec: "str | Path | MaskCodec | None" = None, **options: Any
) -> VLM:
    from vlmtasks.engine import Engine

    if isinstance(source, str):
        source = BUNDLED.get(source, source)
    return VLM(Engine.load(source, **options), mask_codec=mask_codec)


def _for_each(
    pictures: list[AnyPicture], value: Any, name: str, make: Callable[[Any], PromptFor]
) -> PromptFor | list[PromptFor]:
    """One prompt for all pictures from one value, or from a list one for each."""
    if not isinstance(value, list | tuple):
        if name != "box_xyxy" and not isinstance(value, str):
            raise PromptError(
                f"{name} is {shorten(value)}; it must be a str, or a list with one str for each "
                "picture"
            )
        return make(value)
    if len(value) != len(pictures):
        raise InputError(
            f"{name} is a list of {len(value)} for {len(pictures)} pictures; give one for all or "
            "one for each. To ask about one picture several times, encode it once: "
            "[vlm.encode_image(picture)] * 3"
        )
    made = []
    for place, one in enumerate(value):
        try:
            made.append(make(one))
        except InputError as error:
            where = f"{name} {place} (from 0) of {len(value)}"
            raise type(error)(f"{where}: {error}") from error
    return made


_default = LazyVLM(None)
caption = _default.caption
answer = _default.answer
question = _default.question
ocr = _default.ocr
detect = _default.detect
segment = _default.segment
caption_box = _default.caption_box
encode_image = _default.encode_image
