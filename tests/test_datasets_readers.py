"""A folder of pictures, PASCAL VOC and YOLO: right boxes, and every mistake with file and line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from vlmtasks.datasets.coco import to_coco_dict
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.datasets.detection_jsonl import read_detection_jsonl
from vlmtasks.datasets.folder import picture_size, read_folder
from vlmtasks.datasets.jsonl import read_examples
from vlmtasks.datasets.paligemma_examples import coco_examples
from vlmtasks.datasets.voc import read_voc
from vlmtasks.datasets.yolo import read_yolo
from vlmtasks.errors import DatasetError, VlmtasksError


def picture(path: Path, size_wh: tuple[int, int] = (100, 80)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size_wh).save(path)


# --- folder --------------------------------------------------------------------------------------


def test_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    picture(tmp_path / "b.PNG")
    picture(tmp_path / "a" / "c.jpg", (30, 20))
    (tmp_path / "notes.txt").write_text("no picture")
    images = read_folder(tmp_path).images
    assert [(i.id, i.file_name, i.size_wh) for i in images.values()] == [
        (1, "a/c.jpg", (30, 20)),
        (2, "b.PNG", (100, 80)),
    ]


def test_size_is_that_of_the_upright_picture(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=exif)
    assert picture_size(tmp_path / "a.jpg") == (20, 30)


def test_broken_pictures_are_listed_or_left_out(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"broken")
    with pytest.raises(DatasetError, match=r"b\.png: cannot be read as a picture"):
        read_folder(tmp_path)
    dataset = read_folder(tmp_path, skip_unreadable=True)
    assert [image.file_name for image in dataset.images.values()] == ["a.png"]
    assert dataset.repairs[0].startswith("b.png")


def test_folder_without_pictures(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="holds no picture"):
        read_folder(tmp_path)
    with pytest.raises(DatasetError, match="is no folder"):
        read_folder(tmp_path / "none")


# --- YOLO ----------------------------------------------------------------------------------------


def yolo(tmp_path: Path, text: str, names: list[str] | Path | None = None, **options: bool):  # type: ignore[no-untyped-def]
    picture(tmp_path / "images" / "a.png")
    picture(tmp_path / "images" / "none.png")
    (tmp_path / "labels").mkdir(exist_ok=True)
    (tmp_path / "labels" / "a.txt").write_text(text)
    return read_yolo(tmp_path / "images", tmp_path / "labels", names or ["cat", "dog"], **options)


def test_yolo_boxes_and_outlines(tmp_path: Path) -> None:
    dataset = yolo(tmp_path, "1 0.5 0.5 0.2 0.5\n\n0.0 0.1 0.1 0.6 0.1 0.6 0.6 0.1 0.6\n")
    box, outline = dataset.annotations
    assert dataset.categories == {1: "cat", 2: "dog"}
    assert (box.category_id, box.bbox_xywh, box.area) == (
        2,
        pytest.approx((40, 20, 20, 40)),
        pytest.approx(800),
    )
    assert outline.bbox_xywh == pytest.approx((10, 8, 50, 40))
    assert outline.area == pytest.approx(2000)
    assert outline.segmentation == [pytest.approx([10, 8, 60, 8, 60, 48, 10, 48])]
    assert [image.file_name for image in dataset.images.values()] == ["a.png", "none.png"]


def test_yolo_names_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\r\nstop sign\n\n", encoding="utf-8")
    dataset = yolo(tmp_path, "1 0.5 0.5 1 1", tmp_path / "classes.txt")
    assert dataset.categories == {1: "cat", 2: "stop sign"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("2 0.5 0.5 0.1 0.1", "the class is '2'; it must be 0 to 1", id="class"),
        pytest.param("cat 0.5 0.5 0.1 0.1", "the class is 'cat'", id="name"),
        pytest.param("0 0.5 0.5 0.1", "it has 3 numbers", id="three"),
        pytest.param("0 0.5 0.5 0.1 0.1 0.9", "it has 5 numbers", id="with-score"),
        pytest.param("0 50 40 10 20", "not pixels", id="pixels"),
        pytest.param("0 0.5 0.5 -0.1 0.1", "at least 0", id="negative"),
        pytest.param("0 a b c d", "there must be numbers", id="words"),
        pytest.param("0 nan 0.5 0.1 0.1", "fractions", id="nan"),
    ],
)
def test_yolo_mistakes_name_file_and_line(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(DatasetError, match=r"a\.txt, line 2: ") as caught:
        yolo(tmp_path, f"0 0.5 0.5 0.1 0.1\n{line}\n")
    assert words in str(caught.value)
    dataset = yolo(tmp_path, f"0 0.5 0.5 0.1 0.1\n{line}\n", skip_bad=True)
    assert len(dataset.annotations) == 1
    assert words in dataset.repairs[0]


def test_yolo_settings_are_no_list_of_names(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text("names:\n  0: cat\n  1: dog\n")
    with pytest.raises(DatasetError, match=r"data\.yaml.*text file with one name a line"):
        yolo(tmp_path, "1 0.5 0.5 1 1", tmp_path / "data.yaml")


def test_yolo_without_names(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="names is"):
        yolo(tmp_path, "", [" "])


# --- VOC -----------------------------------------------------------------------------------------

THING = """<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>
<xmin>{x0}</xmin><ymin>11</ymin><xmax>50</xmax><ymax>40</ymax></bndbox></object>"""


def voc(tmp_path: Path, *things: str, size: str = "<width>100</width><height>80</height>") -> Path:
    text = f"<annotation>\n<filename>a.jpg</filename>\n<size>{size}</size>\n"
    (tmp_path / "a.xml").write_text(text + "\n".join(things) + "\n</annotation>")
    return tmp_path


def thing(name: str = "cat", x0: object = 21, difficult: int = 0) -> str:
    return THING.format(name=name, x0=x0, difficult=difficult)


def test_voc_boxes_count_from_one(tmp_path: Path) -> None:
    dataset = read_voc(voc(tmp_path, thing(), thing("dog", difficult=1)))
    cat, dog = dataset.annotations
    assert dataset.categories == {1: "cat", 2: "dog"}
    assert dataset.images[1].size_wh == (100, 80)
    assert (cat.category_id, cat.bbox_xywh, cat.area) == (1, (20, 10, 30, 30), 900)
    assert (dog.category_id, dog.is_crowd) == (2, True)
    from_zero = read_voc(tmp_path, pixels_from_one=False)
    assert from_zero.annotations[0].bbox_xywh == (21, 11, 29, 29)


def test_voc_names_give_the_ids(tmp_path: Path) -> None:
    dataset = read_voc(voc(tmp_path, thing("Cat")), names=["dog", "cat"])
    assert dataset.annotations[0].category_id == 2
    with pytest.raises(DatasetError, match=r"a\.xml, line 4: 'Cat' is not in names"):
        read_voc(tmp_path, names=["dog"])


@pytest.mark.parametrize(
    ("things", "line", "words"),
    [
        pytest.param([thing(x0="left")], 4, "<xmin> of 'cat' is 'left'", id="word"),
        pytest.param([thing(x0=60)], 4, "xmin <= xmax", id="reversed"),
        pytest.param([thing(x0="nan")], 4, "xmin <= xmax", id="nan"),
        pytest.param([thing(), "<object><name>x</name></object>"], 6, "no <bndbox>", id="no-box"),
        pytest.param([thing(name="")], 4, "no <name>", id="no-name"),
    ],
)
def test_voc_mistakes_name_file_and_line(
    tmp_path: Path, things: list[str], line: int, words: str
) -> None:
    folder = voc(tmp_path, *things)
    with pytest.raises(DatasetError, match=rf"a\.xml, line {line}: ") as caught:
        read_voc(folder)
    assert words in str(caught.value)
    assert words in read_voc(folder, skip_bad=True).repairs[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param("", "no element found", id="empty"),
        pytest.param("<annotation>\n<filename>", "line 2: not XML", id="cut"),
        pytest.param("<html/>", "outer element is <html>", id="html"),
        pytest.param("<annotation/>", "no <filename>", id="no-filename"),
        pytest.param('<!DOCTYPE x [<!ENTITY a "b">]><annotation/>', "entities", id="entities"),
        pytest.param("<a>" * 60, "nested too deeply", id="deep"),
        pytest.param('<?xml version="1.0" encoding="klingon"?><annotation/>', "klingon", id="code"),
        pytest.param(
            "<annotation><filename>a</filename><size><width>x</width></size></annotation>",
            "whole numbers",
            id="size",
        ),
    ],
)
def test_broken_voc_files_do_not_take_others_with_them(
    tmp_path: Path, content: str, words: str
) -> None:
    voc(tmp_path, thing())
    (tmp_path / "b.xml").write_text(content)
    with pytest.raises(DatasetError, match=r"^b\.xml: ") as caught:
        read_voc(tmp_path)
    assert words in str(caught.value)
    dataset = read_voc(tmp_path, skip_bad=True)
    assert len(dataset.annotations) == 1
    assert words in dataset.repairs[0]


def test_voc_text_of_many_lines(tmp_path: Path) -> None:
    path = voc(tmp_path, thing()) / "a.xml"
    path.write_text(path.read_text().replace("<size>", "\n" * 100_000 + "<size>"))
    assert read_voc(tmp_path).annotations[0].bbox_xywh == (20, 10, 30, 30)


def test_voc_without_files(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"holds no \.xml file"):
        read_voc(tmp_path)


def test_readers_lead_to_coco(tmp_path: Path) -> None:
    for dataset in (read_voc(voc(tmp_path, thing())), yolo(tmp_path, "0 0.5 0.5 0.2 0.5")):
        again = read_coco(json.loads(json.dumps(to_coco_dict(dataset))))
        assert again.annotations == dataset.annotations
        assert again.images == dataset.images


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | st.text("01. -\n<>/annotiobjec", max_size=60).map(str.encode))
def test_any_bytes_raise_only_our_errors(tmp_path: Path, content: bytes) -> None:
    picture(tmp_path / "images" / "a.png")
    (tmp_path / "a.xml").write_bytes(content)
    (tmp_path / "a.txt").write_bytes(content)
    for read in (
        lambda: read_voc(tmp_path),
        lambda: read_yolo(tmp_path / "images", tmp_path, ["cat"]),
    ):
        try:
            read()
        except VlmtasksError:
            pass


# --- training examples ---------------------------------------------------------------------------

CAT = "<loc0256><loc0128><loc0768><loc0512> cat"


def examples(tmp_path: Path, *records: dict[str, str]) -> Path:
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.png", (640, 480))
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def test_examples_become_a_data_set(tmp_path: Path) -> None:
    path = examples(
        tmp_path,
        {"image": "b.png", "prefix": "detect dog ; cat", "suffix": CAT},
        {"image": "a.png", "prefix": "caption en", "suffix": "a cat"},
        {"image": "b.png", "prefix": "detect Bird", "suffix": ""},
        {"image": "a.png", "prefix": "detect cat", "suffix": f"{CAT} ; {CAT}"},
    )
    dataset = read_detection_jsonl(path, tmp_path)
    assert dataset.categories == {1: "dog", 2: "cat", 3: "Bird"}
    assert [image.file_name for image in dataset.images.values()] == ["b.png", "a.png"]
    first, *others = dataset.annotations
    assert (first.image_id, first.category_id) == (1, 2)
    assert first.bbox_xywh == (80, 120, 240, 240)
    assert [entry.image_id for entry in others] == [2, 2]


def test_examples_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = examples(tmp_path, {"image": "b.png", "prefix": "detect cat", "suffix": CAT})
    written = coco_examples(read_detection_jsonl(path, tmp_path), "detect").examples
    assert written == read_examples(path)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        pytest.param({"suffix": "<loc0001> cat"}, "no object: bad box count", id="one-loc"),
        pytest.param({"suffix": CAT[:-4]}, "no label", id="no-label"),
        pytest.param({"suffix": None}, "suffix is None", id="no-suffix"),
        pytest.param({"image": "broken.png"}, "cannot be read as a picture", id="broken"),
    ],
)
def test_wrong_examples_name_file_and_line(tmp_path: Path, record: Any, words: str) -> None:
    (tmp_path / "broken.png").write_bytes(b"x")
    good = {"image": "b.png", "prefix": "detect cat", "suffix": CAT}
    path = examples(tmp_path, good, {**good, **record})
    with pytest.raises(DatasetError, match=r"train\.jsonl, line 2: ") as caught:
        read_detection_jsonl(path, tmp_path)
    assert words in str(caught.value)
    assert len(read_detection_jsonl(path, tmp_path, skip_bad=True).annotations) == 1


def test_no_detection_examples(tmp_path: Path) -> None:
    path = examples(tmp_path, {"image": "a.png", "prefix": "ocr", "suffix": "x"})
    with pytest.raises(DatasetError, match="no example of detect"):
        read_detection_jsonl(path, tmp_path)
