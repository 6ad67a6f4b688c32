"""The verbs with odd arguments, and command lines."""

import contextlib
import io
import json
import sys
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from tests.fuzz.cases import Target
from tests.fuzz.mutations import NUMBERS, TEXTS
from tests.stub_engine import StubEngine
from tests.tiny_checkpoints import tiny_folder
from vlmtasks import api, cli
from vlmtasks.api import VLM, load

_ODD: tuple[Any, ...] = (
    None, True, 0, -1, 3, 1.5, 10**400, float("nan"), float("inf"), "", " ", "x", "cat",
    "cat ; dog", "\ud800", "\0", "x" * 3000, b"cat", [], ["cat"], ["cat", None],
    ["cat", "Cat "], ("a", "b"), {"cat"}, {"cat": 1}, [[]], [["cat"]], np.array(["cat"]),
    np.float32(1), np.int64(2), object, *TEXTS,
)  # fmt: skip
_BOXES: tuple[Any, ...] = (
    (0, 0, 9, 9), [0, 0, 0, 0], [9, 9, 0, 0], [-5, -5, 500, 500], [1e308] * 4,
    [0, 0, 1e308, 1e308], [10**400] * 4, [[0, 0, 9, 9]], [[1, 2], [3]], [[[0, 0, 9, 9]]],
    np.zeros((0, 4)), np.array([0, 0, 9, 9]), [0, 0, 9], ["0", "0", "9", "9"],
    [0, 0, 9, float("nan")], np.array([1j] * 4), {}, *_ODD,
)  # fmt: skip
_PICTURES: tuple[Any, ...] = (
    "a.png", "gone.png", "", b"", b"x", np.zeros((3, 4, 3), np.uint8), np.zeros((2, 3, 4, 3)),
    [], (), None, ["a.png"], ["a.png", "a.png"], ["a.png", None, b"x"], [[]], Path("a.png"),
    io.BytesIO(), 5, "a\0b", "\ud800",
)  # fmt: skip
_VERBS = (
    "caption", "answer", "question", "ocr", "detect", "detect", "segment", "caption_box",
    "generate", "encode_image", "stream_detect", "stream_segment", "stream_caption",
)  # fmt: skip
_OPTIONS = (
    "max_new_tokens", "batch_size", "on_error", "temperature", "top_p", "seed", "num_beams",
    "best_of", "location_tokens",
)  # fmt: skip
_OBJECT_OPTIONS = (
    "constrain", "score", "calibrate", "boxes", "strategy", "tile", "stop_score", "max_objects",
    "recipe", "nms", "unique",
)  # fmt: skip
_OF_OBJECTS = ("detect", "segment", "stream_detect", "stream_segment")
_WORTH_TRYING = (
    "return", True, False, 0.0, 0.3, 1.0, 1, 2, 16, 30, "loc", "class", "mask", "product", "top",
    "expected", "joint", "separate", "plain", "noise",
)  # fmt: skip


@cache
def _model(folder: Path) -> VLM:
    Image.new("RGB", (40, 30), "red").save(folder / "a.png")
    model = load(tiny_folder(folder / "tiny"), device="cpu", dtype="float32")
    return VLM(model.engine, mask_codec=StubCodec())  # type: ignore[arg-type]


class StubCodec:
    fingerprint = "0" * 64

    def decode(self, codes: Any) -> Any:
        return np.ones((len(codes), 64, 64), np.float32)


def make_verb(random: Random) -> dict[str, Any]:
    verb = random.choice(_VERBS)
    usual = {"answer": "how many?", "question": "two", "generate": "caption en"}.get(verb, "cat")
    arguments: list[Any] = []
    if verb in ("caption", "stream_caption"):
        arguments = [random.choice(("en", "de", *_ODD)), random.choice(("cap", "caption", *_ODD))]
        arguments = arguments[: random.randrange(3)]
    elif verb == "caption_box":
        arguments = [random.choice(_BOXES)]
    elif verb not in ("ocr", "encode_image"):
        arguments = [usual if random.random() < 0.6 else random.choice(_ODD)]
    options: dict[str, Any] = {"max_new_tokens": 2}
    names = (*_OPTIONS, *_OBJECT_OPTIONS) if verb in _OF_OBJECTS else _OPTIONS
    for name in random.sample(names, random.choice((0, 0, 1, 2, 3))):
        options[name] = random.choice(random.choice((_WORTH_TRYING, NUMBERS, _ODD)))
    for name in ("num_beams", "best_of"):  # large values are slow, and rightly so
        if isinstance(options.get(name), int) and 8 < options[name] <= 1000:
            options[name] = 8
    picture = "a.png" if random.random() < 0.6 else random.choice(_PICTURES)
    return {"verb": verb, "picture": picture, "arguments": arguments, "options": options}


def feed_verb(value: dict[str, Any], folder: Path) -> None:
    model = _model(folder)
    picture = _placed(value["picture"], folder)
    result = getattr(model, value["verb"])(picture, *value["arguments"], **value["options"])
    if value["verb"].startswith("stream"):
        for _ in result:
            pass
        return
    many = isinstance(picture, list | tuple)
    assert isinstance(result, list) == many, "a list for one picture, or the other way round"
    assert not many or len(result) == len(picture)


def _placed(picture: Any, folder: Path) -> Any:
    if isinstance(picture, list):
        return [_placed(one, folder) for one in picture]
    return folder / "a.png" if str(picture) == "a.png" else picture


# --- command lines -------------------------------------------------------------------------------

_COMMANDS = ("detect", "segment", "caption", "answer", "ocr", "eval", "detekt", "")
_WORDS = (
    "a.png", "b.jpg", "gone.png", "*.png", "*.xyz", "[", "sub", ".", "", "cat", "cat ; dog",
    ";", "how many?", "--classes", "cat", "--question", "x", "--lang", "de", "--format", "coco",
    "--save", "out", "one.png", "--output", "o.json", "--max-new-tokens", "5", "0", "-1",
    "--batch-size", "2", "--keep-going", "--quiet", "--help", "--version", "--model",
    "--device", "cpu", "--dtype", "float32", "-", "--", "\udcff", "猫", "coco", "vqa",
    "--annotations", "g.json", "--images", "--limit", "1", "--out", "--oracle", "a\\b", "~",
)  # fmt: skip
_ANSWERS = (
    "",
    "a cat",
    "<loc0100><loc0100><loc0900><loc0900> cat",
    "<loc0100><loc0100> cat ; 猫 \ud800",
)


def make_command(random: Random) -> dict[str, Any]:
    words = random.choices(_WORDS, k=random.choice((0, 1, 2, 3, 5, 8)))
    command = random.choice(_COMMANDS)
    if random.random() < 0.5:
        words = ["a.png", *words, "cat"]
    return {"words": [command, *words], "answer": random.choice(_ANSWERS)}


def feed_command(value: dict[str, Any], folder: Path) -> None:
    place = folder / "commands"
    if not place.exists():
        (place / "sub").mkdir(parents=True)
        Image.new("RGB", (40, 30), "red").save(place / "a.png")
        (place / "b.jpg").write_bytes(b"no picture")
    before = api._load
    api._load = lambda *_, **__: VLM(StubEngine(value["answer"]), mask_codec=StubCodec())  # type: ignore
    out, err = io.StringIO(), io.StringIO()
    try:
        with (
            contextlib.chdir(place),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            cli.main(value["words"])
    except SystemExit as leaving:
        _check_output(leaving.code, out.getvalue(), value["words"])
    finally:
        api._load = before
    assert "Traceback" not in err.getvalue()


def _check_output(status: Any, out: str, words: list[str]) -> None:
    assert status in (None, 0, 1, 2), f"status {status!r}"
    if words[0] == "eval" or {"--help", "--version"} & set(words):
        return
    if "coco" in words and out.startswith("["):
        json.loads(out)
    else:
        for line in out.splitlines():
            assert isinstance(json.loads(line), dict)
    sys.stdout.flush()


TARGETS = (
    Target("verb", make_verb, feed_verb, 500),
    Target("command", make_command, feed_command, 150),
)
