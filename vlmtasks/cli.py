"""The command line: `vlmtasks detect photo.jpg "cat"`.

Task first, pictures next, words last. Results go to stdout, words for people to stderr, pictures
only where --save says. Exit status: 0 all is well; 1 some pictures failed; 2 the command line or
the checkpoint cannot be used and nothing was asked; 130, 143 or 129 stopped by Ctrl-C,
SIGTERM or SIGHUP.

Heavy imports happen inside functions, so that --help and mistakes are answered at once. A new
command is one more function here, or an app of its own module that `app.add_typer` adds.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vlmtasks import __version__, cli_values
from vlmtasks.cli_inputs import split_words
from vlmtasks.errors import InputError
from vlmtasks.eval_cli import app as eval_app

# Help texts are ASCII, because a console may know nothing else.
app = typer.Typer(
    name="vlmtasks",
    help="Ask a picture in plain words, get boxes, masks or text.",
    epilog="Exit status: 0 fine, 1 some pictures failed, 2 wrong usage.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(eval_app)


def main(arguments: list[str] | None = None) -> None:
    """Run a command line (default: the program's own) and leave with its exit status."""
    app(args=arguments, prog_name="vlmtasks")


@dataclass(frozen=True)
class Common:
    """The options of every task."""

    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            parser=cli_values.not_empty,
            help="Checkpoint: a folder or a name on the hub. "
            "[default: VLMTASKS_MODEL or the bundled one]",
        ),
    ] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto"
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto"
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures computed together.")] = 8
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer. [default: depends on the task]")
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", parser=cli_values.path, help="Write results there, not to stdout."
        ),
    ] = None
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Exit with 0 although some pictures failed.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False


_Pictures = Annotated[
    list[str],
    typer.Argument(metavar="PICTURE...", help="Files, folders, patterns such as 'shots/*.jpg'."),
]
_PicturesThenClasses = Annotated[
    list[str],
    typer.Argument(
        metavar="PICTURE... CLASSES",
        help="Files, folders or patterns; then what to look for, 'cat' or 'cat ; dog'.",
    ),
]
_PicturesThenQuestion = Annotated[
    list[str],
    typer.Argument(
        metavar="PICTURE... QUESTION", help="Files, folders or patterns; then the question."
    ),
]
_Classes = Annotated[
    list[str] | None,
    typer.Option(help="What to look for; all other words are pictures then. May be repeated."),
]
_Question = Annotated[
    str | None, typer.Option(help="The question; all other words are pictures then.")
]
_Lang = Annotated[str, typer.Option(help="Language of the answer: en, de, fr ...")]
_Save = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        parser=cli_values.path,
        help="Draw what was found into this folder, or for one picture into this .png or .jpg.",
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
_Format = Annotated[
    Literal["json", "coco"],
    typer.Option("--format", help="A JSON line for each picture, or one list of COCO results."),
]
_NoConstrain = Annotated[
    bool,
    typer.Option(
        "--no-constrain", help="Let the model write what it likes, not only boxes of your classes."
    ),
]
_Score = Annotated[
    Literal["loc", "class", "mask", "product"] | None,
    typer.Option(help="What scores are made of. [default: loc]"),
]
_Tile = Annotated[
    int | None,
    typer.Option(
        min=2, metavar="PIXELS", help="Look at large pictures also in tiles of this side."
    ),
]
_Separate = Annotated[
    bool, typer.Option("--separate", help="Ask one prompt a class instead of one for all.")
]
_StopScore = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Go on until an object has a lower score, though the model would end."
    ),
]
_Nms = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Of boxes that overlap more, keep the one of highest score."),
]


def _command(function: Callable[..., None]) -> None:
    """Register a task; its parameter `common` becomes the options of `Common`."""
    signature = inspect.signature(function)
    own = [value for name, value in signature.parameters.items() if name != "common"]
    shared = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in fields(Common)
    ]

    def command(**values: Any) -> None:
        common = Common(**{field.name: values.pop(field.name) for field in fields(Common)})
        function(**values, common=common)

    command.__signature__ = signature.replace(  # pyright: ignore[reportFunctionMemberAccess]
        parameters=[own[0], *own[1:], *shared]
    )
    command.__annotations__ = {}
    app.command(function.__name__, help=function.__doc__)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vlmtasks {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@_command
def detect(
    pictures: _PicturesThenClasses,
    common: Common,
    classes: _Classes = None,
    save: _Save = None,
    form: _Format = "json",
    score: _Score = None,
    tile: _Tile = None,
    separate: _Separate = False,
    stop_score: _StopScore = None,
    nms: _Nms = None,
    no_constrain: _NoConstrain = False,
) -> None:
    """Boxes of what you name.

    Example: vlmtasks detect photo.jpg 'cat ; dog'
    """
    names, labels = _split(pictures, _joined(classes), "detect needs a class name")
    options = _object_options(score, tile, separate, stop_score, nms, no_constrain)
    _run("detect", names, common, {"labels": labels}, save=save, form=form, options=options)


@_command
def segment(
    pictures: _PicturesThenClasses,
    common: Common,
    classes: _Classes = None,
    save: _Save = None,
    form: _Format = "json",
    score: _Score = None,
    tile: _Tile = None,
    separate: _Separate = False,
    stop_score: _StopScore = None,
    nms: _Nms = None,
    no_constrain: _NoConstrain = False,
    mask_codec: _MaskCodec = None,
) -> None:
    """Boxes and masks of what you name.

    Example: vlmtasks segment shots/ 'the dog on the left' --save overlays/
    """
    names, labels = _split(pictures, _joined(classes), "segment needs a class name")
    options = _object_options(score, tile, separate, stop_score, nms, no_constrain)
    more = {"save": save, "form": form, "mask_codec": mask_codec, "options": options}
    _run("segment", names, common, {"labels": labels}, **more)


@_command
def caption(
    pictures: _Pictures,
    common: Common,
    lang: _Lang = "en",
    style: Annotated[
        Literal["caption", "cap", "describe"],
        typer.Option(help="As in COCO, as on the web, or longer."),
    ] = "caption",
    form: _Format = "json",
) -> None:
    """A description of each picture.

    Example: vlmtasks caption a.jpg b.jpg --lang de
    """
    _run("caption", pictures, common, {"lang": lang, "style": style}, form=form)


@_command
def answer(
    pictures: _PicturesThenQuestion,
    common: Common,
    question: _Question = None,
    lang: _Lang = "en",
) -> None:
    """The answer to a question.

    Example: vlmtasks answer photo.jpg 'how many cats are there?'
    """
    names, words = _split(pictures, question, "answer needs a question")
    _run("answer", names, common, {"question": words, "lang": lang})


@_command
def ocr(pictures: _Pictures, common: Common) -> None:
    """The text that is seen in each picture.

    Example: vlmtasks ocr 'scans/*.png'
    """
    _run("ocr", pictures, common, {})


def _object_options(
    score: str | None,
    tile: int | None,
    separate: bool,
    stop_score: float | None,
    nms: float | None,
    no_constrain: bool,
) -> dict[str, Any]:
    """The keywords of the verb that differ from its own defaults."""
    given: dict[str, Any] = {"score": score, "tile": tile, "stop_score": stop_score, "nms": nms}
    options = {name: value for name, value in given.items() if value is not None}
    if separate:
        options["strategy"] = "separate"
    if no_constrain:
        options["constrain"] = False
    return options


def _joined(classes: list[str] | None) -> str | None:
    return " ; ".join(classes) if classes else None


def _split(positional: list[str], option: str | None, needs: str) -> tuple[list[str], str]:
    try:
        return split_words(positional, option, needs)
    except InputError as error:
        typer.echo(f"vlmtasks: {error}", err=True)
        raise typer.Exit(2) from None


def _run(
    task: str, names: list[str], common: Common, arguments: dict[str, Any], **more: Any
) -> None:
    from vlmtasks.cli_run import Job, run

    raise typer.Exit(run(Job(task, names, common, arguments, **more)))
