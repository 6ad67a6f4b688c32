"""Files that were once read as something else than they say, or written where nobody wanted them.

Each line of a table is a file as somebody had it, and what is said of it now.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlmtasks.datasets.coco import CocoDataset, CocoImage, write_coco
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.datasets.coco_results import read_results, write_results
from vlmtasks.datasets.detection_jsonl import read_detection_jsonl
from vlmtasks.datasets.json_files import read_json, write_text
from vlmtasks.datasets.jsonl import TrainingExample, read_jsonl, write_examples
from vlmtasks.datasets.voc import read_voc
from vlmtasks.datasets.yolo import read_yolo
from vlmtasks.errors import DatasetError, InputError
from vlmtasks.rle import check_rle

# --- YOLO ----------------------------------------------------------------------------------------


def yolo(folder: Path, text: str = "0 0.5 0.5 0.2 0.5\n", names: Any = ("cat", "dog")) -> Any:
    """What is read of a picture of 100×80 pixels with this file of labels."""
    for name in ("images", "labels"):
        (folder / name).mkdir()
    Image.new("RGB", (100, 80)).save(folder / "images" / "a.png")
    (folder / "labels" / "a.txt").write_bytes(text.encode())
    return read_yolo(folder / "images", folder / "labels", names)


@pytest.mark.parametrize("labels", ["gone", "labels/a.txt"], ids=["no-folder", "file"])
def test_yolo_labels_are_a_folder(tmp_path: Path, labels: str) -> None:
    yolo(tmp_path)
    with pytest.raises(DatasetError, match=r"' is no folder; give the folder of the labels"):
        read_yolo(tmp_path / "images", tmp_path / labels, ["cat"])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["unix", "windows", "old-mac"])
def test_yolo_lines_end_in_three_ways(tmp_path: Path, end: str) -> None:
    dataset = yolo(tmp_path, f"0 0.5 0.5 0.2 0.5{end}1 0.5 0.5 1 1{end}")
    assert [a.category_id for a in dataset.annotations] == [1, 2]
    assert [a.segmentation for a in dataset.annotations] == [None, None]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["unix", "windows", "old-mac"])
@pytest.mark.parametrize("letter", ["\u2028", "\u2029", "\x0c", "\x0b", "\x85"], ids=ascii)
def test_yolo_names_end_at_line_ends_only(tmp_path: Path, letter: str, end: str) -> None:
    path = tmp_path / "classes.txt"
    path.write_bytes(f"cat{end}stop{letter}sign{end}".encode())
    assert yolo(tmp_path, names=path).categories == {1: "cat", 2: f"stop{letter}sign"}


@pytest.mark.parametrize(
    ("text", "line"), [("cat\n\ndog\n", 2), ("\ncat", 1), ("\n\n", 1), ("", 1)], ids=repr
)
def test_yolo_names_stand_one_a_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "classes.txt"
    path.write_text(text)
    with pytest.raises(DatasetError, match=rf"classes\.txt, line {line}: is empty; there must be"):
        yolo(tmp_path, names=path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("0 0_1 0.5 0.1 0.1", "there must be numbers", id="number"),
        pytest.param("0_1 0.5 0.5 0.1 0.1", "the class is '0_1'; it must be 0 to 1", id="class"),
        pytest.param("0 inf 0.5 0.1 0.1", "values are fractions", id="infinity"),
        pytest.param("0 nan 0.5 0.1 0.1", "values are fractions", id="nan"),
        pytest.param("inf 0.5 0.5 0.1 0.1", "the class is 'inf'", id="class-infinity"),
        pytest.param("nan 0.5 0.5 0.1 0.1", "the class is 'nan'", id="class-nan"),
    ],
)
def test_yolo_numbers_are_those_of_every_program(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(DatasetError, match=r"a\.txt, line 1: ") as caught:
        yolo(tmp_path, line)
    assert words in str(caught.value)


# --- VOC -----------------------------------------------------------------------------------------


def voc(folder: Path, size: str = "", xmin: str = "2", **options: Any) -> CocoDataset:
    corners = f"<xmin>{xmin}</xmin><ymin>3</ymin><xmax>11</xmax><ymax>13</ymax>"
    thing = f"<object><name>cat</name><bndbox>{corners}</bndbox></object>"
    text = f"<annotation><filename>a.jpg</filename>{size}{thing}</annotation>"
    (folder / "a.xml").write_text(text, encoding="utf-8")
    return read_voc(folder, **options)


def size_xml(width: str, height: str) -> str:
    return f"<size><width>{width}</width><height>{height}</height></size>"


@pytest.mark.parametrize(
    ("width", "height"),
    [("1" + "0" * 12, "80"), ("80", "9" * 5000), ("999999999", "999999999")],
    ids=["width", "height", "product"],
)
def test_voc_sizes_are_those_of_pictures(tmp_path: Path, width: str, height: str) -> None:
    with pytest.raises(DatasetError, match=r"a\.xml: line 1: <size> is .* of a picture in pixels"):
        voc(tmp_path, size_xml(width, height))


@pytest.mark.parametrize(("width", "size_wh"), [("100", (100, 80)), ("0", None)])
def test_voc_sizes_that_are_fine(tmp_path: Path, width: str, size_wh: Any) -> None:
    (image,) = voc(tmp_path, size_xml(width, "80")).images.values()
    assert image.size_wh == size_wh


def test_voc_edges_are_those_of_every_program(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="<xmin> of 'cat' is '0_2'; it must be a number"):
        voc(tmp_path, xmin="0_2")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        pytest.param([1], r"names is \[1\]; it must be a list of the class names", id="number"),
        pytest.param([None, "cat"], r"names is \[None, 'cat'\]", id="none"),
        pytest.param(b"cat", "names is b'cat'", id="bytes"),
        pytest.param([], r"names is \[\]", id="empty"),
        pytest.param(["cat", " "], r"names is \['cat', ' '\]", id="blank"),
        pytest.param(["cat", "cat"], "names holds 'cat' more than once", id="twice"),
        pytest.param(["cat", "Cat "], "names holds 'Cat' more than once", id="case"),
    ],
)
def test_voc_names_that_are_none(tmp_path: Path, names: Any, words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        voc(tmp_path, names=names)


# --- COCO ----------------------------------------------------------------------------------------

SQUARE = [1.0, 1.0, 5.0, 1.0, 5.0, 5.0]


def instances(number: Any = int, **annotation: Any) -> dict[str, Any]:
    """Ground truth with every id, side and coordinate passed through `number`."""
    size = {"width": number(100), "height": number(80)}
    entry = {"id": number(4), "image_id": number(7), "category_id": number(3), "iscrowd": number(0)}
    entry |= {"bbox": [number(v) for v in (1, 2, 3, 4)], "area": number(12)} | annotation
    return {
        "images": [{"id": number(7), "file_name": "a.png", **size}],
        "categories": [{"id": number(3), "name": "cat"}],
        "annotations": [entry],
    }


@pytest.mark.parametrize(
    "number", [np.int64, np.uint8, np.float32, np.float64, np.float16, np.int8]
)
def test_coco_takes_numbers_of_numpy(number: Any) -> None:
    dataset = read_coco(instances(number, segmentation=[[number(v) for v in SQUARE]]))
    plain = read_coco(instances(segmentation=[SQUARE]))
    assert dataset == plain
    assert {type(value) for value in dataset.annotations[0].bbox_xywh or ()} == {float}
    row = {"image_id": number(7), "category_id": number(3), "score": number(1)}
    row["bbox"] = np.array([1, 2, 3, 4], number)
    (result,) = read_results([row], dataset)
    assert json.dumps(result) == json.dumps(
        {"image_id": 7, "category_id": 3, "bbox": [1.0, 2.0, 3.0, 4.0], "score": 1.0}
    )


@pytest.mark.parametrize("score", [np.float32("nan"), np.bool_(True), True, np.array([0.5])])
def test_coco_scores_that_are_no_numbers(score: Any) -> None:
    row = {"image_id": 7, "category_id": 3, "bbox": [1, 2, 3, 4], "score": score}
    with pytest.raises(DatasetError, match=r"score is .*; it must be a finite number"):
        read_results([row], read_coco(instances()))


@pytest.mark.parametrize(
    "rle",
    [
        {"size": [80.0, 100.0], "counts": [8000]},
        {"size": [np.float32(80), np.int64(100)], "counts": [np.float64(8000)]},
        {"size": [80, 100], "counts": [8000.0]},
    ],
    ids=["size", "numpy", "runs"],
)
def test_run_lengths_that_a_tool_keeps_as_floats(rle: Any) -> None:
    (found,) = read_coco(instances(segmentation=rle)).annotations
    whole = check_rle({"size": [80, 100], "counts": [8000]})
    assert json.dumps(found.segmentation) == json.dumps(whole)


@pytest.mark.parametrize(
    "rle",
    [{"size": [80.5, 100], "counts": [8000]}, {"size": [80, 100], "counts": [0.5]}],
    ids=["size", "runs"],
)
def test_run_lengths_of_parts_of_pixels(rle: Any) -> None:
    with pytest.raises(DatasetError, match="all of them whole numbers"):
        read_coco(instances(segmentation=rle))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param('{"images": [], "images": [1]}', "line 1: .* key 'images' more", id="outer"),
        pytest.param('[{"a": {"id": 1,\n"id": 1}}]', ", not JSON .* key 'id' more", id="inner"),
    ],
)
def test_a_key_that_stands_twice_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(DatasetError, match=rf"data\.json.*{words} than once"):
        read_json(path)


def test_a_key_that_stands_twice_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"a": 1}\n{"a": 1, "a": 2}\n')
    with pytest.raises(DatasetError, match=r"data\.jsonl, line 2: .* key 'a' more than once"):
        list(read_jsonl(path))


# --- training examples ---------------------------------------------------------------------------

ROW = {"prefix": "detect cat", "suffix": "<loc0256><loc0128><loc0768><loc0512> cat"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("gone.png", "'gone.png' is not in '.*'; check the folder", id="missing"),
        pytest.param("../a.png", "'../a.png' is no name of a picture inside", id="outside"),
    ],
)
def test_example_without_its_picture(tmp_path: Path, name: str, words: str) -> None:
    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    path = tmp_path / "train.jsonl"
    write_lines(path, ROW | {"image": "a.png"}, *[ROW | {"image": name}] * 12)
    with pytest.raises(DatasetError, match=rf"12 mistakes:\n.*train\.jsonl, line 2: {words}"):
        read_detection_jsonl(path, tmp_path)
    dataset = read_detection_jsonl(path, tmp_path, skip_bad=True)
    assert len(dataset.annotations) == len(dataset.images) == 1
    assert len(dataset.repairs) == 11
    assert dataset.repairs[-1] == "… and 2 more"


def test_examples_without_any_picture(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    write_lines(path, ROW | {"image": "gone.png"})
    with pytest.raises(DatasetError, match=r"line 1: 'gone\.png' is not in"):
        read_detection_jsonl(path, tmp_path, skip_bad=True)


def write_lines(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


# --- writing -------------------------------------------------------------------------------------

IMAGES: Any = {1: CocoImage(1, "a.png", None)}
WRITERS = [
    pytest.param(lambda path: write_coco(path, CocoDataset(IMAGES)), id="coco"),
    pytest.param(lambda path: write_results(path, []), id="results"),
    pytest.param(lambda path: write_examples(path, [TrainingExample("a", "", "")]), id="examples"),
    pytest.param(lambda path: write_text(path, "text"), id="text"),
]


@pytest.mark.parametrize("write", WRITERS)
def test_writing_into_a_folder_that_is_not_there(tmp_path: Path, write: Any) -> None:
    with pytest.raises(InputError, match=r"there is no folder '.*gone'; make it first"):
        write(tmp_path / "gone" / "out.json")


@pytest.mark.parametrize("write", WRITERS)
def test_writing_over_a_folder(tmp_path: Path, write: Any) -> None:
    (tmp_path / "out.json").mkdir()
    with pytest.raises(InputError, match=r"out\.json' is a folder; give the name of a file"):
        write(tmp_path / "out.json")
    assert os.listdir(tmp_path) == ["out.json"]


@pytest.mark.parametrize("write", WRITERS)
def test_writing_through_a_link(tmp_path: Path, write: Any) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old.json").write_text("old")
    (tmp_path / "out.json").symlink_to("there/old.json")
    write(tmp_path / "out.json")
    assert os.readlink(tmp_path / "out.json") == "there/old.json"
    write(tmp_path / "plain.json")
    written = (tmp_path / "plain.json").read_text()
    assert (tmp_path / "there" / "old.json").read_text() == written
    assert os.listdir(tmp_path / "there") == ["old.json"]


def test_writing_through_a_link_to_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "out.txt").symlink_to("new.txt")
    write_text(tmp_path / "out.txt", "new")
    assert (tmp_path / "new.txt").read_text() == "new"
    assert (tmp_path / "out.txt").is_symlink()


@pytest.mark.parametrize(
    ("name", "words"),
    [("a\0.json", "is no name of a file|cannot be written"), ("a" * 300, "cannot be written: ")],
    ids=["nul", "long"],
)
def test_writing_under_a_name_that_cannot_be(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        write_text(tmp_path / name, "text")
    assert os.listdir(tmp_path) == []


def test_writing_into_a_pipe_does_not_replace_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is no ordinary file"):
        write_text(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
