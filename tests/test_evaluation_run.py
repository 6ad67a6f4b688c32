"""The run: killed at random moments it loses nothing; another run's file is not touched."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vlmtasks.errors import DatasetError, InputError
from vlmtasks.evaluation.run import read_predictions, run_predictions
from vlmtasks.evaluation.stamp import checkpoint_hash, make_stamp

SCRIPT = Path(__file__).with_name("killed_run.py")


def stub(batch: Sequence[int]) -> list[dict[str, Any]]:
    return [{"text": f"answer {item}"} for item in batch]


def run(path: Path, items: Sequence[int] = range(10), predict: Any = stub, **head: Any) -> Any:
    return run_predictions(
        path, items, predict, item_id=lambda item: item, head={"a": 1} | head, batch_size=4
    )[1]


def fail(batch: Sequence[int]) -> list[dict[str, Any]]:
    raise AssertionError(f"asked again: {list(batch)}")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_three_times_gives_the_same_bytes(tmp_path: Path, seed: int) -> None:
    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    subprocess.run([sys.executable, SCRIPT, whole, "0"], check=True)
    chance = random.Random(seed)
    for _ in range(3):
        before = torn.stat().st_size if torn.exists() else 0
        process = subprocess.Popen([sys.executable, SCRIPT, torn, "0.02"])
        deadline = time.monotonic() + 60
        while not torn.exists() or torn.stat().st_size <= before:  # it writes something new
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.06))
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([sys.executable, SCRIPT, torn, "0"], check=True)
    assert torn.read_bytes() == whole.read_bytes()
    asked = Path(f"{torn}.asked").read_text().split()
    assert set(asked) == {str(item) for item in range(40)}
    assert len(asked) <= 40 + 3 * 3  # a kill costs at most the batch that was being computed


def test_every_place_of_a_tear_gives_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    run(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        records = run(path)
        assert path.read_bytes() == whole
        assert [record["id"] for record in records] == list(range(10))


def test_finished_run_asks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    first = run(path)
    assert run(path, predict=fail) == first
    assert first[3] == {"id": 3, "text": "answer 3"}


def test_higher_limit_goes_on_and_lower_limit_keeps_the_file(tmp_path: Path) -> None:
    path, other = tmp_path / "predictions.jsonl", tmp_path / "whole.jsonl"
    run(path, range(6))
    assert len(run(path, range(10))) == 10
    run(other, range(10))
    assert path.read_bytes() == other.read_bytes()
    assert len(run(path, range(3), predict=fail)) == 3
    assert path.read_bytes() == other.read_bytes()


def test_another_runs_file_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    run(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"a was 1 and is now 2; b was null and is now \"x\""):
        run(path, a=2, b="x")
    with pytest.raises(InputError, match=r"line 2.*for 0.*but 5 comes next"):
        run(path, range(5, 15))
    assert path.read_bytes() == before


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"

    def predict(batch: Sequence[int]) -> list[dict[str, Any]]:
        with pytest.raises(InputError, match="another process"):
            run(path)
        return stub(batch)

    assert len(run(path, range(3), predict=predict)) == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"hello\n", "line 1: is no prediction", id="text"),
        pytest.param(b'{"id": 1}\n', "line 1: is not the head", id="no-head"),
        pytest.param(b'{"run": {"a": 1, "batch_size": 4}}\n[1]\n', "line 2", id="list"),
        pytest.param(b"[" * 100_000 + b"\n", "line 1: is no prediction", id="deep"),
        pytest.param(b"1" * 5000 + b"\n", "line 1: is no prediction", id="huge-number"),
    ],
)
def test_foreign_files_are_refused_and_kept(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=words):
        run(path)
    assert path.read_bytes() == content


def test_predictions_are_read_without_a_model(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    records = run(path)
    path.write_bytes(path.read_bytes() + b'{"id": 99, "te')
    head, again = read_predictions(path)
    assert (head, again) == ({"a": 1, "batch_size": 4, "note": {}}, records)
    path.write_bytes(b'{"run"')
    with pytest.raises(DatasetError, match="no prediction yet"):
        read_predictions(path)


def test_wrong_number_of_answers_is_our_own_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="3 answers for 4 items"):
        run(tmp_path / "p.jsonl", predict=lambda batch: stub(batch)[:-1])


def test_progress_counts_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    run(path, range(8))
    seen: list[int] = []
    run_predictions(
        path,
        range(10),
        stub,
        item_id=lambda item: item,
        head={"a": 1},
        batch_size=4,
        report=seen.append,
    )
    assert seen == [8, 10]


def test_note_of_the_first_start_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    for items, commit in ((range(4), "abc"), (range(8), "def")):
        head, records = run_predictions(
            path,
            items,
            stub,
            item_id=lambda item: item,
            head={},
            note={"commit": commit},
            batch_size=4,
        )
        assert head == {"batch_size": 4, "note": {"commit": "abc"}}
        assert len(records) == len(items)


def test_checkpoint_hash_depends_on_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "README.md").write_bytes(b"words")
    first = checkpoint_hash(tmp_path)
    (tmp_path / "README.md").write_bytes(b"other words")
    assert checkpoint_hash(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    assert checkpoint_hash(tmp_path) != first


def test_stamp_says_how_to_repeat_and_is_the_same_twice() -> None:
    head = {"checkpoint": {"sha256": "0"}, "note": {"commit": "abc", "machine": "1 core"}}
    stamp = make_stamp("vlmtasks eval coco", {"classes": "all"}, head)
    assert json.loads(json.dumps(stamp)) == stamp
    assert stamp["versions"].keys() >= {"python", "vlmtasks", "numpy", "pycocotools"}
    assert (stamp["commit"], stamp["machine"]) == ("abc", "1 core")
    assert "core" in make_stamp("vlmtasks eval coco", {}, {})["machine"]
