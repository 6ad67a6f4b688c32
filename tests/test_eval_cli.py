"""`vlmtasks eval …` from the command line to the files, with a stub for the model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stub_vlm import StubVLM
from typer.testing import CliRunner, Result

import vlmtasks.api
from vlmtasks.eval_cli import app
from vlmtasks.results import Detections
from vlmtasks.tasks.calibration import Calibration

CAT = "<loc0256><loc0128><loc0768><loc0512>"
WHOLE = "<seg000>" * 16

Eval = Callable[..., Result]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with eleven pictures, each with a cat, and files of every benchmark about them."""
    names = [f"{n}.png" for n in range(11)]
    for place, name in enumerate(names):
        Image.new("RGB", (64 + place, 64)).save(tmp_path / name)
    square = [8, 16, 32, 16, 32, 48, 8, 48]
    instances = {
        "images": [
            {"id": n, "file_name": name, "width": 64 + n, "height": 64}
            for n, name in enumerate(names)
        ],
        "categories": [{"id": 3, "name": "cat"}],
        "annotations": [
            {"id": n, "image_id": n, "category_id": 3, "bbox": [8, 16, 24, 32], "area": 768}
            | {"iscrowd": 0, "segmentation": [square]}
            for n in range(11)
        ],
    }
    (tmp_path / "instances.json").write_text(json.dumps(instances))
    lines = {
        "vqa": {"question": "how many cats?", "answers": ["1"] * 10},
        "ocr": {"text": "STOP here"},
        "spot": {"words": [{"text": "STOP", "box": [8, 16, 32, 48]}]},
        "captions": {"captions": ["a cat", "one cat"]},
        "phrases": {"phrase": "left cat", "segmentation": [square], "box": [8, 16, 32, 48]},
    }
    for kind, fields in lines.items():
        records = [json.dumps({"image": name, **fields}) for name in names[:3]]
        (tmp_path / f"{kind}.jsonl").write_text("\n".join(records))
    return tmp_path


def said(_: tuple[int, int], prompt: str) -> str:
    return {
        "answer en how many cats?": "1",
        "ocr": "STOP her",
        "caption en": "a cat",
        "spot": f"{CAT} stop",
        "segment left cat": f"{CAT}{WHOLE} left cat",
    }[prompt]


@pytest.fixture
def stub(data: Path, monkeypatch: pytest.MonkeyPatch) -> StubVLM:
    sizes = [(64 + n, 64) for n in range(11)]
    vlm = StubVLM(data, {size: {"cat": [f"{CAT}{WHOLE} cat"]} for size in sizes}, said)
    vlm.loaded = lambda: vlm  # type: ignore[attr-defined]
    monkeypatch.setattr(vlmtasks.api, "LazyVLM", lambda *_, **__: vlm)
    return vlm


@pytest.fixture
def run(data: Path, stub: StubVLM, monkeypatch: pytest.MonkeyPatch) -> Eval:
    monkeypatch.chdir(data)

    def run(*words: str, out: str | None = "out") -> Result:
        where = ["--out", out] if out else []
        return CliRunner().invoke(app, [*words, *where])

    return run


COCO = ("coco", "--annotations", "instances.json", "--images", ".")


def test_what_a_data_set_lacks_is_told_in_a_line(
    run: Eval, data: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Also where warnings are errors, as they are here."""
    truth = json.loads((data / "instances.json").read_text())
    del truth["annotations"][0]["area"]
    (data / "lacking.json").write_text(json.dumps(truth))
    result = run("coco", "--annotations", "lacking.json", "--images", ".")
    assert result.exit_code == 0, result.output
    assert "vlmtasks eval: lacking.json: 1 annotations without area" in result.stderr
    assert "DatasetWarning" not in result.stderr
    assert not recwarn.list


def test_detect_writes_everything(run: Eval, data: Path) -> None:
    result = run(*COCO)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("COCO bbox\nAP         ")
    assert sorted(path.name for path in (data / "out").iterdir()) == [
        "predictions.jsonl",
        "report.html",
        "results.json",
        "scores.json",
    ]
    saved = json.loads((data / "out" / "scores.json").read_text())
    assert saved["scores"]["bbox"]["AP50"] == pytest.approx(1.0)
    assert saved["classes"]["bbox"]["cat"]["truths"] == 11
    assert saved["counts"] == {"pictures": 11, "failed": 0}
    made = saved["stamp"]
    assert made["command"] == "vlmtasks eval coco --annotations instances.json --images ."
    assert made["protocol"]["classes"].startswith("all")
    assert "location tokens" in made["protocol"]["score"]
    assert made["checkpoint"]["source"] == "demo"
    assert len(json.loads((data / "out" / "results.json").read_text())) == 11


def test_C02_nothing_found_is_a_table_of_zeros(run: Eval, data: Path, stub: StubVLM) -> None:
    stub._answers = {}
    result = run(*COCO)
    assert result.exit_code == 0, result.output
    assert {"AP         0.0000", "AP50       0.0000", "AR_100     0.0000"} <= {
        line.rstrip() for line in result.stdout.splitlines()
    }
    assert json.loads((data / "out" / "results.json").read_text()) == []


def test_segment_scores_masks(run: Eval, data: Path) -> None:
    result = run(*COCO, "--task", "segment")
    assert result.exit_code == 0, result.output
    saved = json.loads((data / "out" / "scores.json").read_text())
    assert saved["scores"]["segm"]["AP50"] == pytest.approx(1.0)
    assert saved["stamp"]["checkpoint"]["mask codec"]


def test_second_run_asks_nothing_and_writes_the_same_bytes(
    run: Eval, data: Path, stub: StubVLM
) -> None:
    run(*COCO)
    first = {path.name: path.read_bytes() for path in (data / "out").iterdir()}
    stub.asked.clear()
    assert run(*COCO).exit_code == 0
    assert stub.asked == []
    assert {path.name: path.read_bytes() for path in (data / "out").iterdir()} == first


def test_torn_run_goes_on_to_the_same_bytes(run: Eval, data: Path, stub: StubVLM) -> None:
    run(*COCO)
    first = {path.name: path.read_bytes() for path in (data / "out").iterdir()}
    predictions = data / "out" / "predictions.jsonl"
    predictions.write_bytes(first["predictions.jsonl"][:-700])
    stub.asked.clear()
    assert run(*COCO).exit_code == 0
    assert 0 < len(stub.asked) < 11
    assert {path.name: path.read_bytes() for path in (data / "out").iterdir()} == first


def test_saved_predictions_are_scored_without_a_model(
    run: Eval, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(*COCO)

    def no_model(*_: Any, **__: Any) -> Any:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(vlmtasks.api, "LazyVLM", no_model)
    for name in ("predictions.jsonl", "results.json"):
        result = run(*COCO[:3], "--predictions", f"out/{name}", out="again")
        assert result.exit_code == 0, result.output
        again = json.loads((data / "again" / "scores.json").read_text())
        saved = json.loads((data / "out" / "scores.json").read_text())
        assert again["scores"] == saved["scores"]


def test_foreign_results_may_end_in_capitals(run: Eval, data: Path) -> None:
    run(*COCO)
    (data / "out" / "results.json").rename(data / "Res.JSON")
    result = run(*COCO[:3], "--predictions", "Res.JSON", out="again")
    assert result.exit_code == 0, result.output
    saved = json.loads((data / "again" / "scores.json").read_text())
    assert saved["scores"]["bbox"]["AP50"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("metric", "message"),
    [("pope", "a truth of POPE is 'yes' or 'no'"), ("count", "needs whole numbers")],
)
def test_truths_of_another_metric_are_told_before_a_model_is_asked(
    run: Eval, data: Path, stub: StubVLM, metric: str, message: str
) -> None:
    record = {"image": "0.png", "question": "red?", "answer": "perhaps"}
    (data / "odd.jsonl").write_text(json.dumps(record))
    result = run("vqa", "--annotations", "odd.jsonl", "--images", ".", "--metric", metric)
    assert (result.exit_code, stub.asked) == (2, [])
    assert message in result.stderr


def test_other_settings_do_not_touch_the_old_run(run: Eval, data: Path) -> None:
    run(*COCO)
    before = (data / "out" / "predictions.jsonl").read_bytes()
    result = run(*COCO, "--classes", "present")
    assert result.exit_code == 2
    assert "belongs to another run" in result.stderr
    assert (data / "out" / "predictions.jsonl").read_bytes() == before


def test_limit_and_default_folder(run: Eval, data: Path) -> None:
    assert run(*COCO, "--limit", "2", out=None).exit_code == 0
    saved = json.loads((data / "eval" / "coco-detect-instances" / "scores.json").read_text())
    assert saved["counts"]["pictures"] == 2


def test_unreadable_picture_gives_exit_status_one(run: Eval, data: Path) -> None:
    (data / "4.png").write_bytes(b"broken")
    result = run(*COCO)
    assert result.exit_code == 1
    assert "1 pictures could not be read" in result.stderr
    assert json.loads((data / "out" / "scores.json").read_text())["counts"]["failed"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(COCO[:3], "images is missing", id="no-images"),
        pytest.param(("coco", "--annotations", "no.json"), "cannot be read", id="no-file"),
        pytest.param((*COCO[:4], "nowhere"), "11 of 11 pictures", id="no-pictures"),
        pytest.param((*COCO, "--scale", "999", "--oracle"), "scale is 999", id="scale"),
        pytest.param(("coco",), "annotations", id="no-annotations"),
        pytest.param((*COCO, "--task", "dance"), "dance", id="task"),
        pytest.param((*COCO, "--limit", "0"), "limit", id="limit"),
        pytest.param(
            ("vqa", "--annotations", "vqa.jsonl", "--images", ".", "--prompt", "answer en"),
            "must hold {}",
            id="prompt",
        ),
    ],
)
def test_wrong_usage_gives_exit_status_two(run: Eval, words: tuple[str, ...], message: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_oracle_prints_a_table(run: Eval, data: Path) -> None:
    result = run(*COCO[:3], "--oracle")
    assert result.exit_code == 0, result.output
    assert "| boxes | 1.0000 |" in result.stdout
    assert json.loads((data / "out" / "oracle.json").read_text())["scores"]["boxes"]["AP"] == 1.0


@pytest.mark.parametrize(
    ("words", "figures"),
    [
        pytest.param(("vqa", "vqa.jsonl"), {"vqa": 1.0, "questions": 3}, id="vqa"),
        pytest.param(
            ("vqa", "vqa.jsonl", "--metric", "count"), {"accuracy": 1.0, "valid": 1.0}, id="count"
        ),
        pytest.param(("ocr", "ocr.jsonl"), {"cer": 1 / 9, "wer": 0.5, "exact": 0.0}, id="ocr"),
        pytest.param(
            ("ocr", "spot.jsonl", "--metric", "spot", "--prompt", "spot"),
            {"precision": 1.0, "recall": 1.0, "f1": 1.0},
            id="spotting",
        ),
    ],
)
def test_text_benchmarks(
    run: Eval, data: Path, words: tuple[str, ...], figures: dict[str, float]
) -> None:
    name, annotations, *more = words
    result = run(name, "--annotations", annotations, "--images", ".", *more)
    assert result.exit_code == 0, result.output
    saved = json.loads((data / "out" / "scores.json").read_text())
    assert {key: saved["scores"][key] for key in figures} == pytest.approx(figures)
    again = run(name, "--annotations", annotations, "--images", ".", *more)
    assert again.stdout == result.stdout


def test_refcoco(run: Eval, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stub_vlm import StubCodec

    import vlmtasks.evaluation.commands as commands

    monkeypatch.setattr(commands, "_load_codec", lambda _: StubCodec())
    result = run("refcoco", "--annotations", "phrases.jsonl", "--images", ".")
    assert result.exit_code == 0, result.output
    saved = json.loads((data / "out" / "scores.json").read_text())
    assert saved["scores"]["miou"] > 0.9
    assert saved["scores"]["box_accuracy_75"] == 1.0
    assert saved["stamp"]["protocol"]["box scale"] == 1023


def test_captions(run: Eval, data: Path) -> None:
    pytest.importorskip("pycocoevalcap.cider.cider", reason="pip install 'vlmtasks[captions]'")
    result = run("captions", "--annotations", "captions.jsonl", "--images", ".")
    assert result.exit_code == 0, result.output
    saved = json.loads((data / "out" / "scores.json").read_text())
    assert saved["scores"]["bleu"][0] == pytest.approx(1.0)


def test_predictions_of_other_examples_are_refused(run: Eval, data: Path) -> None:
    words = ("--annotations", "vqa.jsonl", "--images", ".")
    assert run("vqa", *words, "--limit", "2").exit_code == 0
    result = run("vqa", *words, "--predictions", "out/predictions.jsonl", out="again")
    assert result.exit_code == 2
    assert "other examples" in result.stderr
    fine = run("vqa", *words, "--predictions", "out/predictions.jsonl", "--limit", "2", out="again")
    assert fine.exit_code == 0


# --- calibration ---------------------------------------------------------------------------------


@pytest.fixture
def unsure(data: Path, monkeypatch: pytest.MonkeyPatch) -> StubVLM:
    """A model that finds a cat in every picture, and in every second one also a wrong one."""
    vlm = StubVLM(data)
    vlm.loaded = lambda: vlm  # type: ignore[attr-defined]

    def detect(pictures: list[Image.Image], labels: Any, **options: Any) -> list[Detections]:
        assert options["calibrate"] is False
        return [_one_or_two(picture.size) for picture in pictures]

    vlm.detect = detect  # type: ignore[method-assign]
    monkeypatch.setattr(vlmtasks.api, "LazyVLM", lambda *_, **__: vlm)
    return vlm


def _one_or_two(size: tuple[int, int]) -> Detections:
    count = 1 + size[0] % 2
    boxes = np.array([[8, 16, 32, 48], [40, 2, 60, 9]], np.float32)[:count]
    scores = np.array([0.10 + size[0] / 2000, 0.06 + size[0] / 1500], np.float32)[:count]
    return Detections(boxes, ("cat",) * count, scores, size, text="…")


CALIBRATE = ["calibrate", "--annotations", "instances.json", "--images", "."]


def test_calibration_is_written_beside_the_checkpoint(
    data: Path, unsure: StubVLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    (data / "vlmtasks.json").write_text('{"box_scale": 1023}')
    result = CliRunner().invoke(app, [*CALIBRATE, "--score", "class"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("16 detections of detect, scored by class\n")
    saved = json.loads((data / "vlmtasks.json").read_text())
    assert saved["box_scale"] == 1023
    entry = saved["calibration"]["detect"]["class"]
    calibration = Calibration.from_metadata(saved, "detect", "class")
    assert calibration == Calibration(entry["temperature"], entry["bias"])
    assert calibration(0.13) > 0.6 > calibration(0.1)  # 11 of 16 are right


def test_calibration_of_nothing_is_refused(
    data: Path, stub: StubVLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    result = CliRunner().invoke(app, CALIBRATE)
    assert result.exit_code == 2
    assert "right and of wrong" in result.output
    assert not (data / "vlmtasks.json").exists()


def test_damaged_sidecar_is_not_overwritten(
    data: Path, unsure: StubVLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    (data / "vlmtasks.json").write_text("[]")
    result = CliRunner().invoke(app, CALIBRATE)
    assert result.exit_code == 2
    assert "cannot be completed" in result.output
    assert (data / "vlmtasks.json").read_text() == "[]"
