"""The command line where writing goes wrong: nothing computed is lost, nothing of the user's is."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from vlmtasks.cli_inputs import Input
from vlmtasks.cli_outputs import image_ids

CAT = "<loc0256><loc0128><loc0768><loc0512> cat"
STUBBED = Path(__file__).with_name("stubbed_cli.py")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="shells and signals of POSIX")

Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """A process of its own in a folder with the pictures 0.png … 3.png, started by a shell with
    words before and more behind; each batch takes `pause` seconds."""
    for place in range(4):
        Image.new("RGB", (64, 48), "white").save(tmp_path / f"{place}.png")

    def start(
        *arguments: str, before: str = "", more: str = "", pause: float = 0
    ) -> subprocess.Popen:
        command = ["sh", "-c", f'{before} exec "$@" {more}', "sh", sys.executable, str(STUBBED)]
        return subprocess.Popen(
            [*command, json.dumps(CAT), *arguments],
            cwd=tmp_path,
            env=os.environ | {"STUB_PAUSE": str(pause)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_heed_signals,
        )

    return start


def _heed_signals() -> None:
    """The tests themselves may run in the background, where these are ignored."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


PICTURES = ("0.png", "1.png", "2.png", "3.png")


@pytest.mark.parametrize("more", ["2>&-", "2>/dev/full"], ids=["closed", "full"])
@pytest.mark.parametrize("form", ["json", "coco"])
def test_lost_words_for_people_cost_no_results(start: Start, more: str, form: str) -> None:
    if more.endswith("full") and not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    running = start("detect", *PICTURES, "cat", "--format", form, "--batch-size", "2", more=more)
    out, _ = running.communicate()
    assert running.returncode == 0
    rows = json.loads(out) if form == "coco" else [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_stopped_coco_run_keeps_its_rows(start: Start, number: int, status: int) -> None:
    arguments = ("detect", *PICTURES, "cat", "--format", "coco", "--batch-size", "1")
    running = start(*arguments, pause=0.4)
    assert running.stderr is not None
    running.stderr.readline()  # the first picture is done
    running.send_signal(number)
    out, err = running.communicate()
    assert running.returncode == status
    assert 1 <= len(json.loads(out)) < 4
    assert "vlmtasks detect: stopped" in err


def test_a_signal_that_is_ignored_stays_so(start: Start) -> None:
    """As `nohup` starts a program."""
    arguments = ("detect", *PICTURES, "cat", "--batch-size", "1")
    running = start(*arguments, before="trap '' HUP;", pause=0.2)
    assert running.stderr is not None
    running.stderr.readline()
    running.send_signal(signal.SIGHUP)
    out, _ = running.communicate()
    assert (running.returncode, len(out.splitlines())) == (0, 4)


def test_results_and_overlay_are_two_files(start: Start) -> None:
    running = start("detect", "0.png", "cat", "--output", "x.png", "--save", "x.png")
    _, err = running.communicate()
    assert running.returncode == 2
    assert "--save x.png is the file of --output; choose another name" in err


def test_overlays_in_a_folder_spare_the_results(start: Start, tmp_path: Path) -> None:
    running = start("detect", "0.png", "cat", "--output", "0_detect.png", "--save", ".")
    running.communicate()
    assert running.returncode == 0
    assert json.loads((tmp_path / "0_detect.png").read_text())["objects"][0]["label"] == "cat"
    with Image.open(tmp_path / "0_detect-2.png") as drawn:
        assert drawn.size == (640, 480)


@pytest.mark.parametrize("option", ["--output", "--save"])
def test_a_hard_link_of_a_picture_is_a_picture(start: Start, tmp_path: Path, option: str) -> None:
    os.link(tmp_path / "0.png", tmp_path / "hard.png")
    before = (tmp_path / "0.png").read_bytes()
    running = start("detect", "0.png", "cat", option, "hard.png")
    _, err = running.communicate()
    assert running.returncode == 2
    assert "choose another name" in err
    assert (tmp_path / "0.png").read_bytes() == before


def test_a_file_that_cannot_be_made_is_told_before_anything_is_asked(start: Start) -> None:
    if not os.path.isdir("/proc/self"):
        pytest.skip("this system has no /proc")
    running = start("detect", "0.png", "cat", "--output", "/proc/vlmtasks.json")
    out, err = running.communicate()
    assert (running.returncode, out) == (2, "")
    assert "--output /proc/vlmtasks.json cannot be written" in err
    assert "[1/1]" not in err


def test_a_full_disk_is_no_wrong_usage(start: Start) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    running = start("detect", "0.png", "cat", "--output", "/dev/full")
    _, err = running.communicate()
    assert running.returncode == 1
    assert "No space left" in err


def test_a_test_for_writing_leaves_no_file(start: Start, tmp_path: Path) -> None:
    running = start("detect", "none.png", "cat", "--output", "new.json", "--model", "/no/where")
    running.communicate()
    assert running.returncode == 1
    assert json.loads((tmp_path / "new.json").read_text())["error"]
    running = start("detect", "0.png", "", "--output", "newer.json")
    running.communicate()
    assert running.returncode == 2
    assert not (tmp_path / "newer.json").exists()


def test_an_overlay_that_cannot_be_encoded_keeps_the_old_file(start: Start, tmp_path: Path) -> None:
    Image.new("RGB", (17000, 60)).save(tmp_path / "wide.png")
    (tmp_path / "keep.webp").write_text("old")
    running = start("detect", "wide.png", "cat", "--save", "keep.webp")
    out, err = running.communicate()
    assert running.returncode == 1
    assert len(json.loads(out)["objects"]) == 1
    assert "not drawn: " in err and "Traceback" not in err
    assert (tmp_path / "keep.webp").read_text() == "old"


def test_numbers_of_names_may_be_longer_than_python_reads() -> None:
    names = ["1" * 5000 + ".jpg", "7.jpg"]
    assert image_ids([Input(name) for name in names]) == [1, 2]
