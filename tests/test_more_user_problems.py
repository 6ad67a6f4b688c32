"""Problems of the kinds of the case list that a second pair of eyes came upon."""

import io
import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from stub_engine import StubEngine

from vlmtasks.api import VLM
from vlmtasks.cli_inputs import find_pictures, split_words
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.datasets.detection_jsonl import read_detection_jsonl
from vlmtasks.datasets.voc import read_voc
from vlmtasks.datasets.yolo import read_yolo
from vlmtasks.errors import DatasetError, InputError, MissingExtraError, PromptError
from vlmtasks.evaluation.coco_ap import coco_scores
from vlmtasks.images import open_image


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (100, 50), "white").save(path, "PNG")
    return path


# --- pictures ------------------------------------------------------------------------------------


def twelve_bit_tiff() -> bytes:
    """4×1 grey pixels of 12 bits: 0, 2048, 4095, 4095."""
    data = bytes([0x00, 0x08, 0x00, 0xFF, 0xFF, 0xFF])
    fields = {256: 4, 257: 1, 258: 12, 259: 1, 262: 1, 273: 0, 277: 1, 278: 1, 279: len(data)}
    fields[273] = 8 + 2 + 12 * len(fields) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in fields.items())
    head = b"II*\0" + struct.pack("<IH", 8, len(fields))
    return head + entries + struct.pack("<I", 0) + data


def test_twelve_bits_are_as_bright_as_sixteen() -> None:
    levels = np.asarray(open_image(twelve_bit_tiff()))[0, :, 0]
    assert levels.tolist() == [0, 128, 255, 255]


# --- command line --------------------------------------------------------------------------------


def test_folders_tell_of_pictures_that_cannot_be_read(tmp_path: Path) -> None:
    """Whoever asks about a phone's folder must not take a part of it for all."""
    picture(tmp_path / "a.png")
    (tmp_path / "IMG_2.HEIC").write_bytes(b"ftypheic")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "notes.txt").write_text("no picture")
    names = [Path(found.name).name for found in find_pictures([str(tmp_path)])]
    assert names == ["IMG_2.HEIC", "a.png", "gone.png"]
    names = [Path(found.name).name for found in find_pictures([str(tmp_path / "*.HEIC")])]
    assert names == ["IMG_2.HEIC"]


@pytest.mark.parametrize("name", ["b.heic", "scan.pdf", "b.JXL"])
def test_a_file_is_no_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(b"x")
    with pytest.raises(InputError, match=f"a class name after the pictures; .*{name}"):
        split_words(["a.png", name], None, "detect needs a class name")


def test_a_file_named_like_a_class_is_a_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cat").write_bytes(b"x")
    assert split_words(["a.png", "cat"], None, "detect needs a class") == (["a.png"], "cat")


# --- prompts and errors --------------------------------------------------------------------------


def test_the_wrong_one_of_many_questions_is_named() -> None:
    pictures = [Image.new("RGB", (8, 8))] * 3
    with pytest.raises(PromptError, match=r"question 1 \(from 0\) of 3: question is '', which"):
        VLM(StubEngine()).answer(pictures, ["ok?", "", "where?"])


def test_errors_pass_between_processes() -> None:
    error = pickle.loads(pickle.dumps(MissingExtraError("supervision", "viz")))
    assert isinstance(error, MissingExtraError)
    assert str(error) == "supervision is not installed; run: pip install 'vlmtasks[viz]'"


# --- data sets -----------------------------------------------------------------------------------


def test_masks_are_not_scored_without_masks() -> None:
    square = {"counts": [0, 100], "size": [10, 10]}
    dataset = read_coco(
        {
            "images": [{"id": 1, "width": 10, "height": 10, "file_name": "a.png"}],
            "categories": [{"id": 1, "name": "cat"}],
            "annotations": [
                {
                    "id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10],
                    "area": 100, "iscrowd": 0, "segmentation": square,
                }
            ],
        }
    )  # fmt: skip
    box = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10], "score": 1.0}
    with pytest.raises(DatasetError, match="none of the 1 results has a segmentation"):
        coco_scores(dataset, [box], "segm")
    assert coco_scores(dataset, [box], "bbox").stats["AP"] == pytest.approx(1.0)
    assert coco_scores(dataset, [], "segm").stats["AP"] == 0.0


VOC = """<annotation><filename>{}</filename><size><width>100</width><height>50</height></size>
<object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>20</xmax><ymax>20</ymax></bndbox>
</object></annotation>"""


def test_endings_in_capitals_are_the_same_endings(tmp_path: Path) -> None:
    for name in ("a.xml", "B.XML"):
        (tmp_path / name).write_text(VOC.format(name[0] + ".jpg"))
    assert len(read_voc(tmp_path).annotations) == 2
    picture(tmp_path / "images" / "IMG_1.JPG")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "IMG_1.TXT").write_text("0 .5 .5 .1 .1\n")
    dataset = read_yolo(tmp_path / "images", tmp_path / "labels", ["cat"])
    assert [annotation.bbox_xywh for annotation in dataset.annotations] == [(45, 22.5, 10, 5)]


def test_labels_of_no_picture_are_told(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "a.png")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "other.txt").write_text("0 .5 .5 .1 .1\n")
    with pytest.raises(DatasetError, match="none of the 1 pictures has a label file"):
        read_yolo(tmp_path / "images", tmp_path / "labels", ["cat"])


def test_two_spellings_of_a_path_are_one_picture(tmp_path: Path) -> None:
    picture(tmp_path / "sub" / "a.png")
    names = ["sub\\a.png", "sub/a.png", "./sub/a.png"]
    lines = [
        {
            "image": name,
            "prefix": "detect cat",
            "suffix": f"<loc0000><loc0000><loc0{n}><loc0512> cat",
        }
        for n, name in enumerate(names, start=512)
    ]
    (tmp_path / "e.jsonl").write_text("\n".join(map(json.dumps, lines)))
    dataset = read_detection_jsonl(tmp_path / "e.jsonl", tmp_path)
    assert (len(dataset.images), len(dataset.annotations)) == (1, 3)
    assert os.fspath(next(iter(dataset.images.values())).file_name) == "sub/a.png"


def test_the_helper_makes_a_tiff() -> None:
    assert Image.open(io.BytesIO(twelve_bit_tiff())).mode == "I;16"
