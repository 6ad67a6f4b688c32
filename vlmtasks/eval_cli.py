"""`vlmtasks eval …`: the benchmarks from the command line.

Figures go to stdout, words for people to stderr, files into --out. A run that was stopped goes on
where it was when the same command is given again. Exit status: 0 fine; 1 some pictures could not be
read; 2 wrong usage or data; 130 stopped by Ctrl-C.
"""

import shlex
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vlmtasks import cli_values
from vlmtasks.cli_words import say

if TYPE_CHECKING:
    from vlmtasks.evaluation.commands import Common

# Help texts are ASCII, because a console may know nothing else.
app = typer.Typer(
    name="eval",
    help="Benchmarks: COCO boxes and masks, RefCOCO, captions, questions, reading text.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_NOT_IN_COMMAND = frozenset({"out", "quiet"})  # they change no figure

_Annotations = Annotated[
    Path, typer.Option(metavar="FILE", parser=cli_values.path, help="The ground truth.")
]
_Images = Annotated[
    Path, typer.Option(metavar="DIR", parser=cli_values.path, help="The folder of the pictures.")
]
_Model = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        parser=cli_values.not_empty,
        help="Checkpoint. [default: VLMTASKS_MODEL or the bundled one]",
    ),
]
_Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
_Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
_BatchSize = Annotated[int, typer.Option(min=1, help="Pictures computed together.")]
_MaxNewTokens = Annotated[
    int | None, typer.Option(min=1, help="Longest answer. [default: depends on the task]")
]
_Limit = Annotated[int | None, typer.Option(min=1, help="Only the first pictures.")]
_Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        parser=cli_values.path,
        help="Where files go. [default: eval/BENCHMARK-ANNOTATIONS]",
    ),
]
_Predictions = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", parser=cli_values.path, help="Score this file; no model is loaded."
    ),
]
_MaskCodec = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        parser=cli_values.path,
        help="vae-oid.npz, where the checkpoint names no mask codec.",
    ),
]
_Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]
_Scale = Annotated[
    int | None,
    typer.Option(help="1024 or 1023 bins a side. [default: what the checkpoint says]"),
]


@app.command()
def coco(
    context: typer.Context,
    annotations: _Annotations,
    images: Annotated[
        Path | None,
        typer.Option(metavar="DIR", parser=cli_values.path, help="The folder of the pictures."),
    ] = None,
    task: Annotated[Literal["detect", "segment"], typer.Option()] = "detect",
    classes: Annotated[
        Literal["present", "all"],
        typer.Option(help="Ask for all classes, or only those in the picture (easier)."),
    ] = "all",
    prompts: Annotated[
        Literal["each", "joined"],
        typer.Option(help="A prompt for each class, or one for all of them."),
    ] = "each",
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Score the ground truth itself, through the tokens.")
    ] = False,
    predictions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=cli_values.path,
            help="Score this predictions.jsonl or COCO results .json; no model is loaded.",
        ),
    ] = None,
    keep_repetitions: Annotated[
        bool, typer.Option("--keep-repetitions", help="Keep exact repetitions of an object.")
    ] = False,
    backend: Annotated[
        Literal["pycocotools", "faster-coco-eval"],
        typer.Option(help="Same figures; the second is faster and needs 'vlmtasks[eval]'."),
    ] = "pycocotools",
    scale: Annotated[int, typer.Option(help="Of --oracle: 1024 or 1023 bins a side.")] = 1024,
    model: _Model = None,
    mask_codec: _MaskCodec = None,
    device: _Device = "auto",
    dtype: _Dtype = "auto",
    batch_size: _BatchSize = 8,
    max_new_tokens: _MaxNewTokens = None,
    limit: _Limit = None,
    out: _Out = None,
    quiet: _Quiet = False,
) -> None:
    """Box or mask AP: vlmtasks eval coco --annotations instances.json --images val2017/"""
    from vlmtasks.evaluation.commands import CocoOptions, evaluate_coco, show_oracle

    name = f"oracle-{task}" if oracle else f"coco-{task}"
    options = CocoOptions(
        annotations, images, task, classes, prompts, not keep_repetitions, backend, predictions
    )

    def do() -> int:
        common = _common(context, name)
        if oracle:
            _check_scale(scale)
            return show_oracle(common, options, scale, mask_codec)
        return evaluate_coco(common, options)

    _leave_with(do)


@app.command()
def refcoco(
    context: typer.Context,
    annotations: _Annotations,
    images: _Images,
    prompt: Annotated[
        str, typer.Option(help="{} is the phrase; checkpoints tuned on RefCOCO want '{}' alone.")
    ] = "segment {}",
    scale: _Scale = None,
    predictions: _Predictions = None,
    model: _Model = None,
    mask_codec: _MaskCodec = None,
    device: _Device = "auto",
    dtype: _Dtype = "auto",
    batch_size: _BatchSize = 8,
    max_new_tokens: _MaxNewTokens = None,
    limit: _Limit = None,
    out: _Out = None,
    quiet: _Quiet = False,
) -> None:
    """mIoU, cIoU, gIoU and box accuracy of masks for phrases, by big_vision's rules."""
    _text(context, "refcoco", prompt, scale=scale, mask_codec=mask_codec)


@app.command()
def captions(
    context: typer.Context,
    annotations: _Annotations,
    images: _Images,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = "caption en",
    meteor: Annotated[bool, typer.Option("--meteor", help="METEOR, too.")] = False,
    predictions: _Predictions = None,
    model: _Model = None,
    device: _Device = "auto",
    dtype: _Dtype = "auto",
    batch_size: _BatchSize = 8,
    max_new_tokens: _MaxNewTokens = None,
    limit: _Limit = None,
    out: _Out = None,
    quiet: _Quiet = False,
) -> None:
    """CIDEr, BLEU and ROUGE-L of captions. Needs Java and 'vlmtasks[captions]'."""
    _text(context, "captions", prompt, meteor=meteor)


@app.command()
def vqa(
    context: typer.Context,
    annotations: _Annotations,
    images: _Images,
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", parser=cli_values.path, help="VQA v2's questions, if not in the lines."
        ),
    ] = None,
    image_name: Annotated[
        str, typer.Option(help="File names of VQA v2's pictures.")
    ] = "COCO_val2014_{:012d}.jpg",
    metric: Annotated[
        Literal["vqa", "exact", "anls", "relaxed", "pope", "count"],
        typer.Option(help="vqa: v2, TextVQA ...; anls: DocVQA ...; relaxed: ChartQA."),
    ] = "vqa",
    lower: Annotated[
        bool, typer.Option("--lower", help="Lower-case first, as DocVQA and OCR-VQA want it.")
    ] = False,
    prompt: Annotated[str, typer.Option(help="{} is the question.")] = "answer en {}",
    predictions: _Predictions = None,
    model: _Model = None,
    device: _Device = "auto",
    dtype: _Dtype = "auto",
    batch_size: _BatchSize = 8,
    max_new_tokens: _MaxNewTokens = None,
    limit: _Limit = None,
    out: _Out = None,
    quiet: _Quiet = False,
) -> None:
    """Accuracy of answers to questions: VQA v2, DocVQA, ChartQA, POPE, counting."""
    more = {"questions": questions, "image_name": image_name, "metric": metric, "lower": lower}
    _text(context, "vqa", prompt, **more)


@app.command()
def ocr(
    context: typer.Context,
    annotations: _Annotations,
    images: _Images,
    metric: Annotated[
        Literal["read", "spot"],
        typer.Option(help="Error rates of the whole text, or F1 of words with boxes."),
    ] = "read",
    prompt: Annotated[str, typer.Option(help="What to ask.")] = "ocr",
    scale: _Scale = None,
    predictions: _Predictions = None,
    model: _Model = None,
    device: _Device = "auto",
    dtype: _Dtype = "auto",
    batch_size: _BatchSize = 8,
    max_new_tokens: _MaxNewTokens = None,
    limit: _Limit = None,
    out: _Out = None,
    quiet: _Quiet = False,
) -> None:
    """Character and word error rate of read text, or F1 of words with boxes."""
    _text(context, "ocr" if metric == "read" else "spotting", prompt, scale=scale)


@app.command()
def calibrate(
    annotations: _Annotations,
    images: _Images,
    task: Annotated[Literal["detect", "segment"], typer.Option()] = "detect",
    score: Annotated[
        Literal["loc", "class", "mask", "product"], typer.Option(help="What scores are made of.")
    ] = "loc",
    classes: Annotated[
        Literal["present", "all"],
        typer.Option(help="Ask for all classes, or only those in the picture (easier)."),
    ] = "all",
    model: _Model = None,
    mask_codec: _MaskCodec = None,
    device: _Device = "auto",
    dtype: _Dtype = "auto",
    batch_size: _BatchSize = 8,
    limit: _Limit = None,
) -> None:
    """Make scores probabilities: fit a calibration and write it to the checkpoint's vlmtasks.json.

    Use data that the model was not trained on.
    """
    from vlmtasks.api import LazyVLM
    from vlmtasks.evaluation.calibrate import calibrate as fit_and_store

    lazy = LazyVLM(model, device=device, dtype=dtype, mask_codec=mask_codec)
    more = {"classes": classes, "batch_size": batch_size, "limit": limit}
    _leave_with(lambda: fit_and_store(lazy.loaded(), annotations, images, task, score, **more))


def _text(context: typer.Context, benchmark: str, prompt: str, **more: Any) -> None:
    from vlmtasks.evaluation.commands import TextOptions, evaluate_text

    given = context.params

    def do() -> int:
        _check_scale(more.get("scale"))
        options = TextOptions(
            benchmark,
            given["annotations"],
            given["images"],
            prompt,
            given["predictions"],
            **more,
        )
        return evaluate_text(_common(context, benchmark), options)

    _leave_with(do)


def _common(context: typer.Context, name: str) -> "Common":
    from vlmtasks.api import LazyVLM, default_source
    from vlmtasks.evaluation.commands import Common

    given = context.params
    source = default_source() if given["model"] is None else given["model"]

    def load() -> Any:
        model = LazyVLM(
            source,
            device=given["device"],
            dtype=given["dtype"],
            mask_codec=given.get("mask_codec"),
        )
        return model.loaded()

    return Common(
        command=_command_line(context),
        load=load,
        source=source,
        out=given["out"] or Path("eval") / f"{name}-{given['annotations'].stem}",
        batch_size=given["batch_size"],
        max_new_tokens=given["max_new_tokens"],
        limit=given["limit"],
        quiet=given["quiet"],
    )


def _command_line(context: typer.Context) -> str:
    """The command with every option that was given and may change a figure, in a fixed order."""
    words = ["vlmtasks", "eval", context.info_name or ""]
    for parameter in context.command.params:
        name = parameter.name or ""
        value = context.params.get(name)
        if name in _NOT_IN_COMMAND or value == parameter.default or value is None:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    return shlex.join(words)


def _check_scale(scale: int | None) -> None:
    from vlmtasks.tokens import check_scale

    if scale is not None:
        check_scale(scale)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """What a reader of data sets warns of becomes a line for people, whatever Python's filters."""
    from vlmtasks.datasets.problems import DatasetWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", DatasetWarning)
        show = warnings.showwarning

        def tell(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, DatasetWarning):
                say(f"vlmtasks eval: {message}")
            else:
                show(message, category, *rest, **more)

        warnings.showwarning = tell
        yield


def _leave_with(do: Callable[[], int]) -> None:
    """Run an evaluation and leave with its exit status; our errors and warnings become lines."""
    from vlmtasks.errors import VlmtasksError

    try:
        with _warnings_as_lines():
            status = do()
    except (VlmtasksError, OSError) as error:
        say(f"vlmtasks eval: {error}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        say("vlmtasks eval: stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    raise typer.Exit(status)
