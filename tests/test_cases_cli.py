"""The reported problems of command lines (S…), and others where the command line decides.

S01 non-ASCII on old consoles · S03 missing options · S05 image sizes · S07 partial results ·
I09 damaged files · G10 finish reasons · T05, T10 prompts · W13 adapters · C02 nothing found
"""

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile
from stub_engine import StubEngine

import vlmtasks
from vlmtasks import api, cli
from vlmtasks.api import VLM, LazyVLM

BOX = "<loc0256><loc0128><loc0768><loc0512>"
STUBBED = Path(__file__).with_name("stubbed_cli.py")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with good.png and good2.png."""
    monkeypatch.chdir(tmp_path)
    for name in ("good.png", "good2.png"):
        Image.new("RGB", (640, 480), "white").save(name)
    return tmp_path


def process(answer: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """The command line as a process of its own, on an engine that says `answer`."""
    return subprocess.run(
        [sys.executable, str(STUBBED), json.dumps(answer), *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, **env},
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The same without a process: `run(answer, *arguments)` → exit status, stdout, stderr."""

    def run(answer: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(api, "_load", lambda *_, **__: VLM(StubEngine(answer)))
        with pytest.raises(SystemExit) as leaving:
            cli.main(list(arguments))
        return int(leaving.value.code or 0), *capsys.readouterr()

    return run


# --- S01: any label on any console ---------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
@pytest.mark.parametrize("form", ["json", "coco"])
def test_s01_labels_survive_every_console(here: Path, encoding: str, form: str) -> None:
    done = process(
        f"{BOX} 猫", "detect", "good.png", "猫", "--format", form, PYTHONIOENCODING=encoding
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.decode(encoding))
    if form == "json":
        assert result["objects"][0]["label"] == "猫"
    else:
        assert result[0]["category_id"] == 1


def test_s01_picture_names_survive_too(here: Path) -> None:
    os.rename("good.png", "кот 🐈.png")
    done = process("a cat", "caption", "кот 🐈.png", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["image"] == "кот 🐈.png"


def test_s01_output_file_is_utf8(here: Path) -> None:
    done = process("猫", "caption", "good.png", "--output", "o.jsonl", PYTHONIOENCODING="cp1252")
    assert done.returncode == 0
    assert json.loads((here / "o.jsonl").read_text("utf-8"))["text"] == "猫"


@pytest.mark.parametrize("arguments", [["--help"], ["detect", "--help"], ["detect", "猫.png"]])
def test_s01_help_and_messages_too(here: Path, arguments: list[str]) -> None:
    done = process("", *arguments, PYTHONIOENCODING="ascii")
    assert b"Traceback" not in done.stderr
    assert done.returncode == (0 if "--help" in arguments else 2)


# --- S03: what is missing is told before anything is loaded --------------------------------------

S03_COMMANDS = [
    ("S03-option-of-others", ["detect", "--image", "good.png"]),
    ("S03-no-classes", ["detect", "good.png"]),
    ("S03-no-classes-two-pictures", ["segment", "good.png", "good2.png"]),
    ("S03-empty-classes", ["detect", "good.png", " ; "]),
    ("S03-empty-classes-option", ["detect", "good.png", "--classes", ""]),
    ("S03-no-question", ["answer", "good.png"]),
    ("S03-blank-question", ["answer", "good.png", "  "]),
    ("S03-no-picture", ["detect", "cat"]),
    ("S03-nothing", ["ocr"]),
    ("S03-unknown-task", ["detekt", "good.png", "cat"]),
    ("S03-no-tokens", ["detect", "good.png", "cat", "--max-new-tokens", "0"]),
    ("S03-fewer-tokens", ["detect", "good.png", "cat", "--max-new-tokens", "-5"]),
    ("S03-tokens-in-words", ["detect", "good.png", "cat", "--max-new-tokens", "many"]),
    ("S03-language", ["caption", "good.png", "--lang", "english"]),
    ("S03-style", ["caption", "good.png", "--style", "long"]),
]


@pytest.mark.parametrize(
    "arguments", [case[1] for case in S03_COMMANDS], ids=[case[0] for case in S03_COMMANDS]
)
def test_s03_command_line(
    arguments: list[str],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(api, "_load", lambda *_, **__: pytest.fail("the model was loaded"))
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    captured = capsys.readouterr()
    assert leaving.value.code == 2
    assert captured.out == ""
    message = captured.err.splitlines()[-1]
    assert message.startswith(("vlmtasks", "Error: "))


S03_CALLS = [
    ("S03-none", lambda vlm: vlm.detect("good.png", None)),
    ("S03-empty", lambda vlm: vlm.detect("good.png", "")),
    ("S03-empty-list", lambda vlm: vlm.segment("good.png", [])),
    ("S03-list-of-none", lambda vlm: vlm.detect("good.png", [None])),
    ("S03-question", lambda vlm: vlm.answer("good.png", None)),
    ("S03-tokens", lambda vlm: vlm.detect("good.png", "cat", max_new_tokens=0)),
    ("S03-tokens-negative", lambda vlm: vlm.caption("good.png", max_new_tokens=-1)),
    ("S03-tokens-bool", lambda vlm: vlm.caption("good.png", max_new_tokens=True)),
]


@pytest.mark.parametrize(
    "call", [case[1] for case in S03_CALLS], ids=[case[0] for case in S03_CALLS]
)
def test_s03_call(call: Any, here: Path) -> None:
    with pytest.raises(ValueError, match=r"classes|class|question|max_new_tokens"):
        call(LazyVLM("a model that would be an error of its own"))


# --- S05: image sizes ----------------------------------------------------------------------------

S05_SIZES = [
    ("S05-zero", (0, 480)),
    ("S05-negative", (640, -200)),
    ("S05-fraction", (1000.5, 480)),
    ("S05-nan", (float("nan"), 480)),
    ("S05-infinite", (float("inf"), 480)),
    ("S05-words", ("640", "480")),
    ("S05-one-number", 640),
    ("S05-shape", (480, 640, 3)),
    ("S05-bool", (True, True)),
    ("S05-none", None),
]


@pytest.mark.parametrize("size", [case[1] for case in S05_SIZES], ids=[c[0] for c in S05_SIZES])
def test_s05_wrong_size(size: Any) -> None:
    with pytest.raises(ValueError, match="image_size is"):
        vlmtasks.parse_objects(f"{BOX} cat", image_size=size)


@pytest.mark.parametrize(
    ("size", "box"),
    [
        pytest.param((640, 480), (80, 120, 320, 360), id="S05-pair"),
        pytest.param(Image.new("1", (640, 480)), (80, 120, 320, 360), id="S05-picture"),
        pytest.param(np.array([640, 480]), (80, 120, 320, 360), id="S05-array"),
        pytest.param((1, 1), (0.125, 0.25, 0.5, 0.75), id="S05-one-pixel-is-no-fraction"),
    ],
)
def test_s05_right_size(size: Any, box: tuple[float, ...]) -> None:
    (found,) = vlmtasks.parse_objects(f"{BOX} cat", image_size=size)
    assert found.box_xyxy == box


# --- S07, I09: one bad picture among good ones ---------------------------------------------------


def _half_a_jpeg() -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "JPEG")
    return stream.getvalue()[: stream.tell() // 2]


BAD = [
    ("S07-truncated", _half_a_jpeg(), "truncated"),
    ("S07-empty", b"", "empty"),
    ("S07-text", b"<html>not found</html>", "no picture"),
    ("S07-missing", None, "no such file"),
]


@pytest.mark.parametrize(
    ("content", "reason"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
@pytest.mark.parametrize("batch_size", ["1", "8"])
def test_s07_good_pictures_are_answered_and_the_bad_one_told(
    here: Path, run: Any, content: bytes | None, reason: str, batch_size: str
) -> None:
    if content is not None:
        (here / "bad.jpg").write_bytes(content)
    names = ["good.png", "bad.jpg", "good2.png"]
    status, out, err = run(f"{BOX} cat", "detect", *names, "cat", "--batch-size", batch_size)
    assert status == 1
    first, second, third = (json.loads(line) for line in out.splitlines())
    assert (first["image"], len(first["objects"])) == ("good.png", 1)
    assert (third["image"], len(third["objects"])) == ("good2.png", 1)
    assert second.keys() == {"image", "error"}
    assert second["image"] == "bad.jpg"
    assert reason in second["error"]
    assert "bad.jpg" in err


def test_s07_coco_has_the_good_ones_and_status_1(here: Path, run: Any) -> None:
    (here / "bad.jpg").write_bytes(_half_a_jpeg())
    arguments = ["good.png", "bad.jpg", "good2.png", "cat", "--format", "coco"]
    status, out, err = run(f"{BOX} cat", "detect", *arguments)
    assert status == 1
    assert [row["image_id"] for row in json.loads(out)] == [1, 3]
    assert "bad.jpg: " in err


def test_s07_keep_going_exits_with_0(here: Path, run: Any) -> None:
    status, out, _ = run(f"{BOX} cat", "detect", "good.png", "bad.jpg", "cat", "--keep-going")
    assert status == 0
    assert len(out.splitlines()) == 2


def test_s07_folder_with_a_bad_picture(here: Path, run: Any) -> None:
    (here / "bad.jpg").write_bytes(b"")
    status, out, _ = run("a cat", "caption", str(here))
    assert status == 1
    names = [Path(json.loads(line)["image"]).name for line in out.splitlines()]
    assert names == ["bad.jpg", "good.png", "good2.png"]


def test_i09_batch_call_names_the_bad_picture_and_goes_on(here: Path) -> None:
    (here / "bad.jpg").write_bytes(_half_a_jpeg())
    vlm = VLM(StubEngine(f"{BOX} cat"))  # type: ignore[arg-type]
    names = ["good.png", "bad.jpg", "good2.png"]
    first, error, third = vlm.detect(names, "cat", on_error="return")
    assert (len(first), len(third)) == (1, 1)
    assert "bad.jpg" in str(error)
    assert "truncated" in str(error)
    with pytest.raises(ValueError, match=r"picture 1 \(from 0\) of 3: .*bad\.jpg.*truncated"):
        vlm.detect(names, "cat")
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


# --- G10: why it ended ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "reason"),
    [pytest.param("4", "stop", id="eos"), pytest.param("3", "length", id="cut")],
)
def test_g10_json_says_why_it_ended(here: Path, run: Any, limit: str, reason: str) -> None:
    _, out, err = run("abc", "caption", "good.png", "--max-new-tokens", limit)
    assert json.loads(out)["finish_reason"] == reason
    assert ("cut" in err) == (reason == "length")


def test_g10_cut_answer_is_told_with_what_was_dropped(here: Path, run: Any) -> None:
    _, out, _ = run(f"{BOX} cat ; {BOX} cat", "detect", "good.png", "cat", "--max-new-tokens", "13")
    result = json.loads(out)
    assert len(result["objects"]) == 1
    assert [record["problem"] for record in result["dropped"]] == ["truncated"]


# --- C02: nothing found --------------------------------------------------------------------------


def test_c02_nothing_found_is_an_empty_list(here: Path, run: Any) -> None:
    status, out, _ = run("", "detect", "good.png", "cat", "--format", "coco")
    assert (status, json.loads(out)) == (0, [])


# --- T05, T10: words that the model cannot take as they are -------------------------------------


def test_t10_prompt_longer_than_the_context_is_refused_with_the_numbers(
    here: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = "Tell me something. " * 4000
    with pytest.raises(SystemExit) as leaving:
        cli.main(["answer", "good.png", question, "--model", str(tiny_checkpoint)])
    captured = capsys.readouterr()
    assert (leaving.value.code, captured.out) == (2, "")
    assert "16 image tokens" in captured.err
    assert "exceed the 512 positions" in captured.err


def test_t05_image_token_in_a_question_is_text(here: Path, tiny_checkpoint: Path) -> None:
    vlm = vlmtasks.load(tiny_checkpoint, device="cpu")
    before = vlm.generate("good.png", "caption en", max_new_tokens=4)
    after = vlm.generate("good.png", "<image><image>caption en\r\n", max_new_tokens=4)
    assert before == after
    assert vlm.answer("good.png", "what does <image> mean?", max_new_tokens=4) is not None


# --- W13: an adapter is no model -----------------------------------------------------------------


def test_w13_adapter_folder_as_model_is_named_with_its_base(here: Path) -> None:
    adapter = here / "lora"
    adapter.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": "some/base-model", "r": 1}
    config |= {"lora_alpha": 2, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-m", "vlmtasks", "detect", "good.png", "cat", "--model", "lora"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "adapter" in done.stderr
    assert "some/base-model" in done.stderr
    assert "Traceback" not in done.stderr


# --- invented later ------------------------------------------------------------------------------


LINES = [
    ("brackets-in-a-name", ["c[1].png", "cat"], ["c[1].png"]),
    ("name-like-an-option", ["--", "-b.png", "cat"], ["-b.png"]),
    ("name-like-an-option-in-a-folder", ["./-b.png", "cat"], ["./-b.png"]),
    ("twice-the-same", ["good.png", "good.png", "cat"], ["good.png", "good.png"]),
    ("folder-with-upper-case-endings", ["shots", "cat"], ["shots/D.JPG"]),
    ("pattern-through-folders", ["sho*/**/*.JPG", "cat"], ["shots/D.JPG"]),
    ("class-with-a-slash", ["good.png", "cat/dog"], ["good.png"]),
    ("dash-is-standard-output", ["good.png", "cat", "--output", "-"], ["good.png"]),
    ("home-in-quotes", ["~/good*.png", "cat"], ["HOME/good.png", "HOME/good2.png"]),
    ("home-of-one-file", ["~/good.png", "cat"], ["HOME/good.png"]),
]


@pytest.mark.parametrize(
    ("arguments", "names"), [case[1:] for case in LINES], ids=[case[0] for case in LINES]
)
def test_pictures_that_a_command_line_names(
    here: Path, run: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], names: list[str]
) -> None:
    monkeypatch.setenv("HOME", str(here))
    (here / "shots").mkdir()
    for name in ("c[1].png", "-b.png", "shots/D.JPG"):
        Image.new("RGB", (64, 48)).save(here / name)
    status, out, _ = run(f"{BOX} cat", "detect", *arguments)
    assert status == 0
    found = [json.loads(line)["image"] for line in out.splitlines()]
    assert found == [name.replace("HOME", str(here)) for name in names]
    assert not (here / "-").exists()


def test_two_classes_in_two_words_are_told_what_to_do(here: Path, run: Any) -> None:
    status, out, _ = run(f"{BOX} dog", "detect", "good.png", "cat", "dog")
    assert status == 1
    good, cat = (json.loads(line) for line in out.splitlines())
    assert (good["image"], len(good["objects"])) == ("good.png", 1)
    assert cat["error"] == (
        "there is no such file; what is looked for comes last and in one word: 'cat ; dog'"
    )


REFUSALS = [
    ("save-onto-a-file", ["detect", "good.png", "cat", "--save", "plain"]),
    ("output-is-a-folder", ["detect", "good.png", "cat", "--output", "."]),
    ("output-in-no-folder", ["detect", "good.png", "cat", "--output", "no/o.json"]),
    ("output-is-the-picture", ["detect", "good.png", "cat", "--output", "good.png"]),
    ("language-of-no-letters", ["caption", "good.png", "--lang", ""]),
    ("question-in-another-encoding", ["answer", "good.png", "caf\udce9?"]),
    ("class-in-another-encoding", ["detect", "good.png", "caf\udce9"]),
    ("eval-without-file", ["eval", "coco", "--annotations", "no.json", "--images", "."]),
    ("eval-of-a-folder", ["eval", "coco", "--annotations", ".", "--images", "."]),
    ("eval-of-a-picture", ["eval", "coco", "--annotations", "good.png", "--images", "."]),
]


@pytest.mark.parametrize(
    "arguments", [case[1] for case in REFUSALS], ids=[case[0] for case in REFUSALS]
)
def test_command_lines_that_are_refused(here: Path, run: Any, arguments: list[str]) -> None:
    (here / "plain").write_text("")
    status, out, err = run("", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("vlmtasks ")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("caf\udce9.png", "no such file", id="name-in-another-encoding"),
        pytest.param("empty", "holds no pictures", id="empty-folder"),
        pytest.param("*.xyz", "no picture matches", id="pattern-of-nothing"),
        pytest.param("https://example.org/a.png", "nothing is fetched", id="address"),
        pytest.param("lfs.png", "git lfs pull", id="lfs"),
    ],
)
def test_pictures_that_are_none(here: Path, run: Any, name: str, reason: str) -> None:
    (here / "empty").mkdir()
    (here / "lfs.png").write_text("version https://git-lfs.github.com/spec/v1\nsize 9\n")
    status, out, _ = run("a cat", "caption", name, "good.png")
    assert status == 1
    bad, good = (json.loads(line) for line in out.splitlines())
    assert reason in bad["error"]
    assert good["text"] == "a cat"


@pytest.mark.parametrize("head", ['{"protocol": 5}', '{"protocol": null}', '{"protocol": []}'])
def test_predictions_with_a_foreign_protocol_are_refused(here: Path, run: Any, head: str) -> None:
    truth = {"images": [{"id": 1, "file_name": "good.png", "width": 640, "height": 480}]}
    truth |= {"annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    (here / "g.json").write_text(json.dumps(truth))
    (here / "p.jsonl").write_text(f'{{"run": {head}}}\n')
    arguments = ["--annotations", "g.json", "--predictions", "p.jsonl", "--out", "out"]
    status, out, err = run("", "eval", "coco", *arguments)
    assert (status, out) == (2, "")
    assert "the protocol of the predictions is" in err


# --- overlays, and words that mean something else than they look like ----------------------------


def test_overlay_that_cannot_be_drawn_costs_no_other_picture(here: Path, run: Any) -> None:
    long = "x" * 245 + ".png"  # with _detect behind it too long for a file
    Image.new("RGB", (640, 480)).save(here / long)
    arguments = [long, "good.png", "cat", "--save", "drawn"]
    status, out, err = run(f"{BOX} cat", "detect", *arguments)
    assert status == 1
    assert [len(json.loads(line)["objects"]) for line in out.splitlines()] == [1, 1]
    assert "not drawn" in err
    assert (here / "drawn" / "good_detect.png").is_file()


EARLY = [
    ("save-in-no-folder", ["detect", "good.png", "cat", "--save", "no/such/o.png"], "folder that"),
    ("save-nowhere", ["detect", "good.png", "cat", "--save", ""], "is empty"),
    ("output-nowhere", ["detect", "good.png", "cat", "--output", ""], "is empty"),
    ("codec-nowhere", ["segment", "good.png", "cat", "--mask-codec", ""], "is empty"),
    ("model-nowhere", ["detect", "good.png", "cat", "--model", ""], "is empty"),
    ("no-class", ["detect", "good.png", "--classes", "", "--classes", " "], "names nothing"),
]


@pytest.mark.parametrize(
    ("arguments", "words"), [case[1:] for case in EARLY], ids=[case[0] for case in EARLY]
)
def test_told_before_anything_is_asked(
    here: Path, run: Any, arguments: list[str], words: str
) -> None:
    status, out, err = run(f"{BOX} cat", *arguments)
    assert (status, out) == (2, "")
    assert words in err


def test_classes_given_one_by_one(here: Path, run: Any) -> None:
    answer = f"{BOX} cat ; <loc0100><loc0200><loc0300><loc0400> dog"
    arguments = ["good.png", "--classes", "cat", "--classes", "dog", "--format", "coco"]
    status, out, _ = run(answer, "detect", *arguments)
    assert (status, [row["category_id"] for row in json.loads(out)]) == (0, [1, 2])


@pytest.mark.parametrize(
    ("arguments", "is_told"),
    [
        pytest.param(["good.png", "cat, dog"], True, id="commas"),
        pytest.param(["good.png", "the dog, left ; cat"], False, id="both"),
        pytest.param(["good.png", "cat, dog", "--quiet"], False, id="quiet"),
        pytest.param(["good.png", "cat"], False, id="one-class"),
    ],
)
def test_commas_between_classes_are_told(
    here: Path, run: Any, arguments: list[str], is_told: bool
) -> None:
    """A comma is part of a name, so the command does what it says; but who meant two is told."""
    status, _, err = run("", "detect", *arguments)
    assert status == 0
    assert ("one class; several are written 'cat ; dog'" in err) == is_told


@pytest.mark.parametrize("task", ["caption", "ocr"])
@pytest.mark.parametrize("name", ["-", "photo", ""])
def test_tasks_without_words_do_not_speak_of_words(
    here: Path, run: Any, task: str, name: str
) -> None:
    status, out, _ = run("", task, name, "good.png")
    assert status == 1
    error = json.loads(out.splitlines()[0])["error"]
    assert error.startswith("there is no such file")
    assert "last" not in error


@pytest.mark.parametrize(
    "arguments", [["-h"], ["detect", "-h"], ["eval", "-h"], ["eval", "vqa", "-h"]]
)
def test_short_for_help(here: Path, run: Any, arguments: list[str]) -> None:
    status, out, _ = run("", *arguments)
    assert status == 0
    assert "Usage: vlmtasks" in out


def test_one_picture_of_too_many_tiles_costs_no_other(
    here: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (6000, 4000)).save(here / "large.png")
    Image.new("RGB", (32, 24)).save(here / "small.png")
    arguments = ["large.png", "small.png", "cat", "--tile", "32", "--max-new-tokens", "3"]
    with pytest.raises(SystemExit) as leaving:
        cli.main(["detect", *arguments, "--model", str(tiny_checkpoint)])
    large, small = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert leaving.value.code == 1
    assert "2000 at most" in large["error"]
    assert small["objects"] == []


def test_one_question_too_long_does_not_end_an_evaluation(
    here: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"image": "good.png", "question": question, "answers": ["yes"]}
        for question in ("ok?", "Tell me something. " * 4000, "and now?")
    ]
    (here / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ["--annotations", "q.jsonl", "--images", ".", "--model", str(tiny_checkpoint)]
    with pytest.raises(SystemExit) as leaving:
        cli.main(["eval", "vqa", *arguments, "--out", "out", "--max-new-tokens", "3", "--quiet"])
    captured = capsys.readouterr()
    assert leaving.value.code == 1
    assert "1 pictures could not be read or asked about" in captured.err
    assert json.loads((here / "out" / "scores.json").read_text())["scores"]["questions"] == 3


@pytest.mark.parametrize("option", ["--model", "--out", "--predictions", "--images"])
def test_empty_options_of_evaluations(here: Path, run: Any, option: str) -> None:
    arguments = ["--annotations", "q.jsonl", "--images", ".", option, ""]
    status, out, err = run("", "eval", "vqa", *arguments)
    assert (status, out) == (2, "")
    assert "is empty" in err


@pytest.mark.skipif(os.name == "nt", reason="closes stdout as a POSIX shell does")
def test_a_closed_stdout_is_told_and_nothing_is_asked():
    command = f"{shlex.quote(sys.executable)} -m vlmtasks caption gone.jpg >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "stdout is closed" in done.stderr
    assert "--output" in done.stderr
