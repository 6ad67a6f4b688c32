"""The report: right counts in it, nothing foreign, and a real browser that opens it."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.evaluation.coco_report import coco_report
from vlmtasks.evaluation.coco_task import score
from vlmtasks.evaluation.matching import Thing, calibration_error, match, reliability
from vlmtasks.evaluation.report import Report, confusion, render, write_report
from vlmtasks.evaluation.report_gallery import choose
from vlmtasks.rle import encode_rle

STAMP = {"command": "vlmtasks eval coco", "protocol": {"classes": "all"}, "commit": None}
EVIL = '<script>alert(1)</script> & "it\'s"'


def make_report(folder: Path, results: bool = True) -> Report:
    """Two pictures: in the first a cat found, a dog missed and a dog invented; an empty second."""
    Image.effect_noise((200, 120), 60).convert("RGB").save(folder / "a.jpg")
    Image.new("RGB", (60, 160), "teal").save(folder / "b.jpg")
    square = [10, 10, 60, 10, 60, 90, 10, 90]
    base = {"image_id": 1, "iscrowd": 0, "area": 4000, "segmentation": [square]}
    dataset = read_coco(
        {
            "images": [
                {"id": 1, "file_name": "a.jpg", "width": 200, "height": 120},
                {"id": 2, "file_name": "b.jpg", "width": 60, "height": 160},
            ],
            "categories": [{"id": 1, "name": EVIL}, {"id": 2, "name": "dog"}],
            "annotations": [
                base | {"id": 1, "category_id": 1, "bbox": [10, 10, 50, 80]},
                base | {"id": 2, "category_id": 2, "bbox": [150, 20, 40, 40]},
            ],
        }
    )
    mask = np.zeros((120, 200), bool)
    mask[11:88, 11:60] = True
    objects = [
        {"label": EVIL, "score": 0.9, "box_xyxy": [11, 11, 60, 88], "mask": encode_rle(mask)},
        {"label": "dog", "score": 0.3, "box_xyxy": [70, 60, 120, 110], "mask": None},
    ]
    answer = {"image_size": [200, 120], "objects": objects if results else [], "dropped": []}
    answer |= {"text": "…", "finish_reason": "stop"}
    records = [
        {"id": 1, "image_size": [200, 120], "answers": [answer]},
        {"id": 2, "image_size": [60, 160], "answers": []},
    ]
    outcome = score(dataset, records, "segment")
    return coco_report(dataset, outcome, "segment", STAMP, folder)


class Reader(HTMLParser):
    """Collects tags, and complains of tags that do not match."""

    VOID = frozenset({"meta", "input", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_page_is_well_formed_and_needs_nothing(tmp_path: Path) -> None:
    page = render(make_report(tmp_path))
    reader = read(page)
    assert "script" not in reader.tags
    assert reader.links
    assert all(link.startswith("data:image/jpeg;base64,") for link in reader.links)
    assert "http://" not in page
    assert "https://" not in page
    assert "url(" not in page
    assert "default-src &#x27;none&#x27;" in page


def test_names_are_escaped(tmp_path: Path) -> None:
    page = render(make_report(tmp_path))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;it&#x27;s&quot;" in page


def test_page_holds_the_figures(tmp_path: Path) -> None:
    page = render(make_report(tmp_path))
    assert "2 pictures, 2 objects, 2 detections." in page
    assert "1 right, 1 missed, 1 wrong" in page
    assert "calibration error 0.200" in page  # |0.9 - 1| and |0.3 - 0|, half each
    assert "<dt>command</dt><dd><code>vlmtasks eval coco</code></dd>" in page


def test_page_of_a_run_that_found_nothing(tmp_path: Path) -> None:
    page = render(make_report(tmp_path, results=False))
    read(page)
    assert "Nothing was detected, so there are no scores to judge." in page
    assert "There is none." in page


def test_confusion_counts(tmp_path: Path) -> None:
    rows, columns, counts = confusion(make_report(tmp_path).pictures)
    assert (rows, columns) == ([EVIL, "dog", "(nothing)"], [EVIL, "dog", "(missed)"])
    assert counts.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_rare_classes_are_summed_up(tmp_path: Path) -> None:
    (picture, _) = make_report(tmp_path).pictures
    truths = [Thing(f"class {n}", (0, 0, 1, 1)) for n in range(40)]
    many = picture.__class__("x", None, (9, 9), truths, [], match(truths, []))
    rows, columns, counts = confusion([many])
    assert len(rows) == len(columns) == 25
    assert rows[-2] == "(other)"
    assert counts[-2, -1] == 40 - 23
    assert counts.sum() == 40


def test_pictures_stand_in_one_row_only(tmp_path: Path) -> None:
    rows = choose(make_report(tmp_path).pictures, 6)
    assert [(heading, [p.name for p in row]) for heading, _, row in rows] == [
        ("Best", []),
        ("Missed", ["a.jpg"]),
        ("Worst", []),
    ]


CAT, DOG = Thing("cat", (0, 0, 10, 10)), Thing("dog", (0, 0, 10, 10))


@pytest.mark.parametrize(
    ("truths", "found", "same_class", "expected"),
    [
        pytest.param([CAT], [CAT], True, ([(0, 0)], [], []), id="right"),
        pytest.param([CAT], [DOG], True, ([], [0], [0]), id="wrong-class"),
        pytest.param([CAT], [DOG], False, ([(0, 0)], [], []), id="any-class"),
        pytest.param(
            [CAT],
            [Thing("cat", (0, 0, 10, 9), 0.5), Thing("cat", (0, 0, 10, 8), 0.9)],
            True,
            ([(1, 0)], [], [0]),
            id="best-score-first",
        ),
        pytest.param(
            [Thing("cat", (0, 0, 10, 12)), CAT], [CAT], True, ([(0, 1)], [0], []), id="best-overlap"
        ),
        pytest.param(
            [Thing("cat", (0, 0, 90, 90), is_crowd=True)], [CAT], True, ([], [], []), id="crowd"
        ),
        pytest.param([], [], True, ([], [], []), id="nothing"),
    ],
)
def test_matching(truths: Any, found: Any, same_class: bool, expected: Any) -> None:
    result = match(truths, found, same_class=same_class)
    assert (list(result.pairs), list(result.missed), list(result.wrong)) == expected


def test_quality_is_the_f1_of_the_picture() -> None:
    assert match([], []).quality == 1.0
    assert match([CAT, DOG], [CAT]).quality == pytest.approx(2 / 3)


def test_reliability_bins() -> None:
    bins = reliability([(0.05, False), (0.91, True), (0.95, False), (1.0, True)])
    assert [(b.low, b.count, b.precision) for b in bins] == [(0.0, 1, 0.0), (0.9, 3, 2 / 3)]
    assert calibration_error(bins) == pytest.approx((0.05 + 3 * abs(2.86 / 3 - 2 / 3)) / 4)
    assert calibration_error([]) is None


# --- a real browser ------------------------------------------------------------------------------


@pytest.fixture
def chromium(tmp_path: Path) -> list[str]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no headless Chromium to open the report with: apt-get install chromium")
    switches = "headless no-sandbox disable-gpu disable-quic no-first-run hide-scrollbars"
    switches += " disable-background-networking disable-component-update disable-sync"
    return [
        program,
        *(f"--{switch}" for switch in switches.split()),
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
        "--window-size=1000,1600",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]


def open_page(chromium: list[str], page: Path, *more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*chromium, *more, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    # Whatever a page does wrong, Chromium says on its console.
    assert re.findall(r".*CONSOLE.*", done.stderr) == []
    return done


def test_chromium_complains_of_a_page_with_a_mistake(tmp_path: Path, chromium: list[str]) -> None:
    (tmp_path / "bad.html").write_text("<!doctype html><script>nothing()</script>")
    with pytest.raises(AssertionError, match="nothing is not defined"):
        open_page(chromium, tmp_path / "bad.html", "--dump-dom")


def test_chromium_opens_the_page_without_complaint(tmp_path: Path, chromium: list[str]) -> None:
    write_report(tmp_path / "report.html", make_report(tmp_path))
    done = open_page(chromium, tmp_path / "report.html", "--dump-dom")
    assert done.stdout.count("<figure>") == 1
    assert "<h2>Pictures</h2>" in done.stdout
    assert done.stdout.rstrip().endswith("</html>")


def test_chromium_draws_the_page(tmp_path: Path, chromium: list[str]) -> None:
    write_report(tmp_path / "report.html", make_report(tmp_path))
    shots = {}
    for look, scheme in (("light", 1), ("dark", 0)):
        shot = tmp_path / f"{look}.png"
        open_page(
            chromium,
            tmp_path / "report.html",
            f"--screenshot={shot}",
            f"--blink-settings=preferredColorScheme={scheme}",
        )
        shots[look] = np.asarray(Image.open(shot).convert("RGB"), np.float32)
    assert shots["light"].shape == (1600, 1000, 3)
    assert shots["light"].mean() > 180
    assert shots["dark"].mean() < 80
    assert all(len(np.unique(shot.reshape(-1, 3), axis=0)) > 300 for shot in shots.values())
