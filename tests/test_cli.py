"""The command line: grammar of arguments, outputs, exit status."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stub_engine import StubCodec, StubEncoded, StubEngine

from vlmtasks import api, cli
from vlmtasks.api import VLM
from vlmtasks.cli_inputs import Input, find_pictures, looks_like_picture, split_words
from vlmtasks.cli_outputs import image_ids
from vlmtasks.errors import InputError, NumericsError

CAT = "<loc0256><loc0128><loc0768><loc0512> cat"
DOG = "<loc0000><loc0000><loc0512><loc0512> dog"
MASKED_CAT = "<loc0256><loc0128><loc0768><loc0512>" + "<seg005>" * 16 + " cat"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def picture(here: Path) -> Callable[[str], str]:
    def make(name: str) -> str:
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (640, 480), "white").save(path)
        return name

    return make


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StubEngine:
    """The engine that the command line uses; `loads` holds the arguments of loading."""
    engine = StubEngine(CAT)
    engine.loads = []  # type: ignore[attr-defined]

    def load(source: Any, **options: Any) -> VLM:
        engine.loads.append((source, options))  # type: ignore[attr-defined]
        return VLM(engine, mask_codec=StubCodec())  # type: ignore[arg-type]

    monkeypatch.setattr(api, "_load", load)
    monkeypatch.delenv("VLMTASKS_MODEL", raising=False)
    return engine


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit status, stdout and stderr of a command line."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as leaving:
            cli.main(list(arguments))
        captured = capsys.readouterr()
        return int(leaving.value.code or 0), captured.out, captured.err

    return run


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


OBJECT_OPTIONS = [
    pytest.param((), {"raw_logprobs": False}, id="usual"),
    pytest.param(("--no-constrain",), {}, id="no-constrain"),
    pytest.param(("--stop-score", "0.1"), {"top_logprobs": 8}, id="stop-score"),
]


@pytest.mark.parametrize("task", ["detect", "segment"])
@pytest.mark.parametrize(("words", "keywords"), OBJECT_OPTIONS)
def test_grammar_is_on_unless_told(
    run: Run, picture: Any, engine: Any, task: str, words: tuple[str, ...], keywords: dict[str, Any]
) -> None:
    engine.answer = MASKED_CAT if task == "segment" else CAT
    assert run(task, picture("a.png"), "cat", *words)[0] == 0
    (told,) = engine.keywords
    assert ("constraints" in told) == (words != ("--no-constrain",))
    assert keywords.items() <= told.items()


def test_classes_can_be_asked_apart_and_overlaps_removed(
    run: Run, picture: Any, engine: Any
) -> None:
    status, out, err = run(
        "detect", picture("a.png"), "cat ; dog", "--separate", "--nms", "0.5", "--score", "class"
    )
    assert status == 0
    assert engine.prompts == [["detect cat", "detect dog"]]
    (found,) = lines(out)
    assert [gone["reason"] for gone in found["removed"]] == ["duplicate"]
    assert found["objects"][0]["score"] == pytest.approx(np.exp(-2.0))
    assert "1 removed as doubled or unsure" in err


def test_large_picture_is_cut_into_tiles(run: Run, picture: Any, engine: Any) -> None:
    assert run("detect", picture("a.png"), "cat", "--tile", "400")[0] == 0
    assert [size for batch in engine.encoded for size in batch] == [(640, 480), *[(400, 400)] * 4]


# --- words and pictures --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("positional", "option", "expected"),
    [
        pytest.param(["a.jpg", "cat"], None, (["a.jpg"], "cat"), id="one"),
        pytest.param(["a.jpg", "b.jpg", "cat ; dog"], None, (["a.jpg", "b.jpg"], "cat ; dog")),
        pytest.param(["a.jpg", "b.jpg"], "cat", (["a.jpg", "b.jpg"], "cat"), id="option"),
        pytest.param(["a.jpg", "read image.jpg"], None, (["a.jpg"], "read image.jpg"), id="phrase"),
        pytest.param(["a.jpg", "left/right"], None, (["a.jpg"], "left/right"), id="slash"),
        pytest.param(["*.jpg", "cat"], None, (["*.jpg"], "cat"), id="pattern"),
    ],
)
def test_last_word_is_the_question(
    positional: list[str], option: str | None, expected: tuple[list[str], str], here: Path
) -> None:
    assert split_words(positional, option, "detect needs a class name") == expected


def test_folder_named_like_a_class_is_a_class(here: Path) -> None:
    (here / "cat").mkdir()
    assert split_words(["a.jpg", "cat"], None, "…") == (["a.jpg"], "cat")
    assert looks_like_picture("cat/")


@pytest.mark.parametrize(
    "positional",
    [
        pytest.param(["a.jpg"], id="only a picture"),
        pytest.param(["a.jpg", "B.PNG"], id="only pictures"),
        pytest.param(["cat"], id="only a word"),
        pytest.param(["cat", "a.jpg"], id="wrong order"),
        pytest.param(["a.jpg", "shots/*.png"], id="pattern last"),
    ],
)
def test_missing_words_are_told(positional: list[str], here: Path) -> None:
    with pytest.raises(InputError, match="detect needs a class name"):
        split_words(positional, None, "detect needs a class name")


def test_folders_and_patterns_become_sorted_pictures(picture: Any, here: Path) -> None:
    for name in ("d/b.png", "d/a.JPG", "d/.hidden.png", "d/deep/c.png", "e[1].png"):
        picture(name)
    (here / "d/notes.txt").write_text("x")
    found = find_pictures(["d", "e[1].png", "d/**/*.png", "gone.png", "*.gif", "d/deep/none*"])
    assert found == [
        Input("d/a.JPG"),
        Input("d/b.png"),
        Input("e[1].png"),
        Input("d/b.png"),
        Input("d/deep/c.png"),
        Input("gone.png", "there is no such file"),
        Input("*.gif", "no picture matches this pattern"),
        Input("d/deep/none*", "no picture matches this pattern"),
    ]


def test_folder_without_pictures_is_told(here: Path) -> None:
    (here / "empty").mkdir()
    assert find_pictures(["empty"]) == [Input("empty", "the folder holds no pictures")]


# --- results -------------------------------------------------------------------------------------


def test_detect_prints_a_json_line_for_each_picture(run: Run, picture: Any, engine: Any) -> None:
    status, out, err = run("detect", picture("a.png"), picture("b.png"), "cat")
    assert status == 0
    first, second = lines(out)
    assert first == {
        "image": "a.png",
        "image_size": [640, 480],
        "objects": [
            {
                "label": "cat",
                "score": pytest.approx(np.exp(-0.5)),
                "box_xyxy": [80.0, 120.0, 320.0, 360.0],
            }
        ],
        "text": CAT,
        "finish_reason": "stop",
        "dropped": [],
        "removed": [],
    }
    assert second["image"] == "b.png"
    assert err.splitlines() == ["[1/2] a.png: 1 object", "[2/2] b.png: 1 object"]


def test_segment_prints_masks_as_run_lengths(run: Run, picture: Any, engine: Any) -> None:
    engine.answer = MASKED_CAT
    status, out, _ = run("segment", picture("a.png"), "cat")
    assert status == 0
    assert lines(out)[0]["objects"][0]["mask"]["size"] == [480, 640]


@pytest.mark.parametrize(
    ("arguments", "prompt"),
    [
        pytest.param(["caption", "a.png"], "caption en", id="caption"),
        pytest.param(
            ["caption", "a.png", "--lang", "de", "--style", "describe"], "describe de", id="style"
        ),
        pytest.param(["answer", "a.png", "how many?"], "answer en how many?", id="answer"),
        pytest.param(
            ["answer", "a.png", "--question", "who.png", "--lang", "fr"],
            "answer fr who.png",
            id="question option",
        ),
        pytest.param(["ocr", "a.png"], "ocr", id="ocr"),
        pytest.param(["detect", "a.png", "cat;dog"], "detect cat ; dog", id="detect"),
        pytest.param(["detect", "a.png", "--classes", "cat"], "detect cat", id="classes option"),
    ],
)
def test_task_asks_its_prompt(
    run: Run, picture: Any, engine: Any, arguments: list[str], prompt: str
) -> None:
    picture("a.png")
    status, _, err = run(*arguments)
    assert (status, engine.prompts) == (0, [[prompt]]), err


def test_text_task_prints_text_and_finish_reason(run: Run, picture: Any, engine: Any) -> None:
    engine.answer = " a cat\n"
    _, out, _ = run("caption", picture("a.png"))
    assert lines(out) == [{"image": "a.png", "text": "a cat", "finish_reason": "stop"}]


def test_options_reach_loading_and_generation(run: Run, picture: Any, engine: Any) -> None:
    names = [picture(f"{place}.png") for place in range(3)]
    options = ["--model", "m", "--device", "cpu", "--dtype", "float32", "--mask-codec", "v.npz"]
    run("segment", *names, "cat", *options, "--batch-size", "2", "--max-new-tokens", "9")
    assert engine.loads == [
        ("m", {"device": "cpu", "dtype": "float32", "mask_codec": Path("v.npz")})
    ]
    assert [len(batch) for batch in engine.prompts] == [2, 1]
    assert {keywords["max_new_tokens"] for keywords in engine.keywords} == {9}


def test_model_of_the_environment_is_used(
    run: Run, picture: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLMTASKS_MODEL", "some/folder")
    run("ocr", picture("a.png"))
    assert engine.loads[0][0] == "some/folder"


def test_output_goes_to_the_file(run: Run, picture: Any, engine: Any, here: Path) -> None:
    status, out, _ = run("detect", picture("a.png"), "cat", "--output", "found.jsonl")
    assert (status, out) == (0, "")
    assert lines((here / "found.jsonl").read_text("utf-8"))[0]["image"] == "a.png"


def test_quiet_says_nothing_but_errors(run: Run, picture: Any, engine: Any) -> None:
    _, _, err = run("detect", picture("a.png"), "gone.png", "cat", "--quiet")
    assert err == "[2/2] gone.png: there is no such file\n"


# --- COCO ----------------------------------------------------------------------------------------


def test_coco_prints_one_list_with_ids_in_order(run: Run, picture: Any, engine: Any) -> None:
    engine.answer = f"{DOG} ; {CAT}"
    arguments = [picture("a.png"), "gone.png", picture("b.png"), "cat ; dog", "--format", "coco"]
    status, out, _ = run("detect", *arguments)
    assert status == 1
    rows = json.loads(out)
    assert [(row["image_id"], row["category_id"]) for row in rows] == [
        (1, 2),
        (1, 1),
        (3, 2),
        (3, 1),
    ]
    assert rows[1]["bbox"] == [80, 120, 240, 240]


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        pytest.param(["000000397133.jpg", "x/000000000007.jpg"], [397133, 7], id="numbers"),
        pytest.param(["a/1.jpg", "b/1.jpg"], [1, 2], id="twice the same number"),
        pytest.param(["7.jpg", "b.jpg"], [1, 2], id="not all numbers"),
        pytest.param(["².jpg"], [1], id="superscript"),
    ],
)
def test_image_ids_come_from_names_or_places(names: list[str], ids: list[int]) -> None:
    assert image_ids([Input(name) for name in names]) == ids


def test_coco_of_nothing_found_is_an_empty_list(run: Run, picture: Any, engine: Any) -> None:
    engine.answer = ""
    status, out, _ = run("detect", picture("a.png"), "cat", "--format", "coco")
    assert (status, json.loads(out)) == (0, [])


def test_coco_leaves_out_and_tells_unknown_labels(
    run: Run, picture: Any, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine.answer = f"{CAT}t ; {DOG}"
    _, out, _ = run("detect", picture("a.png"), "cat ; dog", "--format", "coco")
    assert [row["category_id"] for row in json.loads(out)] == [2]
    assert caplog.messages == ["1 detection with unknown label: catt"]


def test_coco_captions(run: Run, picture: Any, engine: Any) -> None:
    engine.answer = "a cat"
    _, out, _ = run("caption", picture("a.png"), "--format", "coco")
    assert json.loads(out) == [{"image_id": 1, "caption": "a cat"}]


# --- overlays ------------------------------------------------------------------------------------


def test_save_draws_into_a_folder_without_collisions(
    run: Run, picture: Any, engine: Any, here: Path
) -> None:
    names = [picture("a/x.jpg"), picture("b/x.png"), picture("b/y.png")]
    status, _, err = run("detect", *names, "cat", "--save", "out/deep")
    assert status == 0
    drawn = sorted(path.name for path in (here / "out/deep").iterdir())
    assert drawn == ["x_detect-2.png", "x_detect.png", "y_detect.png"]
    with Image.open(here / "out/deep/x_detect.png") as overlay:
        assert overlay.size == (640, 480)
        assert len(overlay.convert("RGB").getcolors(1 << 20) or ()) > 1  # no longer only white
    assert "drawn in out/deep/x_detect-2.png" in err.replace(os.sep, "/")


def test_save_never_writes_over_a_picture(run: Run, picture: Any, engine: Any, here: Path) -> None:
    names = [picture("x.png"), picture("x_detect.png")]
    before = (here / "x_detect.png").read_bytes()
    run("detect", *names, "cat", "--save", ".")
    assert (here / "x_detect.png").read_bytes() == before
    assert {"x_detect-2.png", "x_detect_detect.png"} <= set(os.listdir(here))


def test_save_takes_a_file_for_one_picture(run: Run, picture: Any, engine: Any, here: Path) -> None:
    assert run("detect", picture("a.png"), "cat", "--save", "demo.png")[0] == 0
    assert (here / "demo.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["a.png", "b.png", "cat", "--save", "o.png"], "one file for 2", id="two"),
        pytest.param(["a.png", "cat", "--save", "a.png"], "the picture itself", id="itself"),
        pytest.param(["a.png", "cat", "--output", "a.png"], "one of the pictures", id="output"),
        pytest.param(["a.png", "cat", "--output", "no/x.json"], "folder that exists", id="folder"),
    ],
)
def test_targets_that_cannot_be_are_refused(
    run: Run, picture: Any, engine: Any, arguments: list[str], message: str
) -> None:
    picture("a.png")
    picture("b.png")
    status, out, err = run("detect", *arguments)
    assert (status, out, engine.loads) == (2, "", [])
    assert message in err


# --- exit status ---------------------------------------------------------------------------------


def test_keep_going_exits_with_0(run: Run, picture: Any, engine: Any) -> None:
    status, out, _ = run("detect", picture("a.png"), "gone.png", "cat", "--keep-going")
    assert status == 0
    assert lines(out)[1] == {"image": "gone.png", "error": "there is no such file"}


def test_only_bad_pictures_load_no_model(run: Run, here: Path, engine: Any) -> None:
    status, out, _ = run("segment", "gone.png", "https://a.b/c.png", "cat")
    assert (status, engine.loads) == (1, [])
    assert "nothing is fetched" in lines(out)[1]["error"]


def test_checkpoint_that_cannot_be_loaded_exits_with_2(run: Run, picture: Any, here: Path) -> None:
    (here / "old.jsonl").write_text("precious")
    arguments = ["--model", "no/such/folder", "--output", "old.jsonl", "--format", "coco"]
    status, out, err = run("detect", picture("a.png"), "cat", *arguments)
    assert (status, out) == (2, "")
    assert "no/such/folder" in err
    assert (here / "old.jsonl").read_text() == "precious"


def test_failure_in_the_middle_keeps_what_was_found(run: Run, picture: Any, engine: Any) -> None:
    def fail_for_the_second(prompt: str, image: StubEncoded) -> str:
        if len(engine.prompts) > 1:
            raise NumericsError("the decoder computed NaN")
        return CAT

    engine.answer = fail_for_the_second
    names = [picture("a.png"), picture("b.png")]
    status, out, err = run("detect", *names, "cat", "--batch-size", "1", "--format", "coco")
    assert (status, len(json.loads(out))) == (1, 1)
    assert err.splitlines()[-1] == "vlmtasks detect: the decoder computed NaN"


def test_interrupt_exits_with_130_and_keeps_what_was_found(
    run: Run, picture: Any, engine: Any
) -> None:
    def interrupt_the_second(prompt: str, image: StubEncoded) -> str:
        if len(engine.prompts) > 1:
            raise KeyboardInterrupt
        return CAT

    engine.answer = interrupt_the_second
    status, out, _ = run("detect", picture("a.png"), picture("b.png"), "cat", "--batch-size", "1")
    assert (status, len(lines(out))) == (130, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["detekt", "a.png", "cat"], id="unknown task"),
        pytest.param(["detect"], id="nothing"),
        pytest.param(["detect", "a.png", "cat", "--batch-size", "0"], id="batch size"),
        pytest.param(["detect", "a.png", "cat", "--format", "voc"], id="format"),
        pytest.param(["caption", "a.png", "--save", "x"], id="nothing to draw"),
        pytest.param(["answer", "a.png", "who?", "--format", "coco"], id="no COCO form"),
    ],
)
def test_wrong_usage_exits_with_2(
    run: Run, picture: Any, engine: Any, arguments: list[str]
) -> None:
    picture("a.png")
    status, out, err = run(*arguments)
    assert (status, out, engine.loads) == (2, "", [])
    assert err


# --- as a process --------------------------------------------------------------------------------


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, **options
    )


def test_version_and_help_of_the_module() -> None:
    import vlmtasks

    assert process("-m", "vlmtasks", "--version").stdout == f"vlmtasks {vlmtasks.__version__}\n"
    assert "detect" in process("-m", "vlmtasks", "--help").stdout


@pytest.mark.parametrize("task", ["", "detect", "segment", "caption", "answer", "ocr"])
def test_help_is_ascii(task: str, run: Run) -> None:
    status, out, _ = run(*filter(None, [task]), "--help")
    assert status == 0
    assert out.isascii()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no broken pipes of this kind")
def test_reader_that_leaves_is_no_traceback(picture: Any, here: Path) -> None:
    names = [picture(f"{place}.png") for place in range(4)]
    script = Path(__file__).with_name("stubbed_cli.py")
    command = [sys.executable, str(script), json.dumps(CAT * 1000), "detect", *names, "cat"]
    running = subprocess.Popen(
        [*command, "--batch-size", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout is not None
    running.stdout.close()
    _, err = running.communicate()
    assert running.returncode == 141
    assert b"Traceback" not in err
    assert b"Exception" not in err


def test_real_checkpoint_answers(run: Run, picture: Any, tiny_checkpoint: Path, here: Path) -> None:
    arguments = ["--model", str(tiny_checkpoint), "--max-new-tokens", "3", "--device", "cpu"]
    status, out, err = run("answer", picture("a.png"), "how many?", *arguments)
    assert status == 0, err
    assert lines(out)[0]["finish_reason"] == "length"
    status, out, err = run("segment", "a.png", "cat", *arguments)
    assert (status, out) == (2, "")
    assert "mask_codec" in err
