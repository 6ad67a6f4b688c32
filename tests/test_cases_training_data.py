"""Known problems with fine-tuning data (F01 … F16), by their ids.

F05: pictures without annotations are skipped and counted unless `empty_images="keep"`.
F14: a leading "/" is ignored when the file exists below the folder of pictures, otherwise refused.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.datasets.detection_jsonl import read_detection_jsonl
from vlmtasks.datasets.jsonl import read_examples, read_jsonl
from vlmtasks.datasets.loss_layout import IGNORED, training_row, visible
from vlmtasks.datasets.paligemma_examples import coco_examples
from vlmtasks.datasets.paths import find_picture, find_pictures
from vlmtasks.datasets.problems import DatasetWarning
from vlmtasks.datasets.voc import read_voc
from vlmtasks.datasets.yolo import read_yolo
from vlmtasks.errors import DatasetError, InputError
from vlmtasks.tokens import decode_box, encode_box, parse_objects


def coco(bboxes: list[list[float]], size_wh: tuple[int, int], **fields: Any) -> dict[str, Any]:
    """A data set of one picture with a cat in each box."""
    width, height = size_wh
    return {
        "images": [{"id": 1, "file_name": "a.png", "width": width, "height": height}],
        "categories": [{"id": 3, "name": "cat"}],
        "annotations": [
            {"id": n, "image_id": 1, "category_id": 3, "bbox": bbox, "area": 1, "iscrowd": 0}
            | fields
            for n, bbox in enumerate(bboxes, 1)
        ],
    }


@pytest.mark.parametrize(
    ("scale", "suffix"),
    [
        pytest.param(1024, "<loc0256><loc0128><loc0768><loc0512> cat", id="F01-1024"),
        pytest.param(1023, "<loc0256><loc0128><loc0767><loc0512> cat", id="F01-1023"),
    ],
)
def test_box_becomes_target_text(scale: int, suffix: str) -> None:
    dataset = read_coco(coco([[80, 120, 240, 240]], (640, 480)))
    (example,) = coco_examples(dataset, "detect", scale=scale).examples
    assert (example.image, example.prefix, example.suffix) == ("a.png", "detect cat", suffix)


@pytest.mark.parametrize(
    ("bbox", "size_wh", "tokens"),
    [
        pytest.param(
            [0, 0, 640, 480], (640, 480), "<loc0000><loc0000><loc1023><loc1023>", id="F03-whole"
        ),
        pytest.param(
            [75, 60, 100, 50], (100, 80), "<loc0768><loc0768><loc1023><loc1023>", id="F03-over"
        ),
        pytest.param(
            [-10, -5, 35, 25], (100, 80), "<loc0000><loc0000><loc0256><loc0256>", id="F03-negative"
        ),
    ],
)
def test_box_at_the_border_stays_in_the_vocabulary(
    bbox: list[float], size_wh: tuple[int, int], tokens: str
) -> None:
    (example,) = coco_examples(read_coco(coco([bbox], size_wh)), "detect").examples
    assert example.suffix == f"{tokens} cat"


@pytest.mark.parametrize(
    "bbox",
    [
        pytest.param([500, 500, 30, 40], id="far-away"),
        pytest.param([-40, 10, 30, 40], id="left"),
        pytest.param([10, -50, 30, 40], id="above"),
        pytest.param([100, 10, 30, 40], id="right-edge-to-edge"),
        pytest.param([10, -40, 30, 40], id="above-edge-to-edge"),
        pytest.param([101, 10, 0, 0], id="point"),
    ],
)
def test_box_outside_of_the_picture_is_left_out_and_counted(bbox: list[float]) -> None:
    conversion = coco_examples(read_coco(coco([bbox, [50, 40, 25, 20]], (100, 80))), "detect")
    (example,) = conversion.examples
    assert example.suffix == "<loc0512><loc0512><loc0768><loc0768> cat"
    assert conversion.counts["objects"] == 1
    assert conversion.counts["objects outside of their picture left out"] == 1
    assert "1 objects outside of their picture left out" in conversion.summary()


@pytest.mark.parametrize(
    ("bbox", "tokens"),
    [
        ([0, 0, 0, 0], "<loc0000><loc0000><loc0001><loc0001>"),
        ([100, 40, 0, 20], "<loc0512><loc1022><loc0768><loc1023>"),
    ],
    ids=["corner", "right-side"],
)
def test_line_at_the_border_is_a_box_of_a_bin(bbox: list[float], tokens: str) -> None:
    (example,) = coco_examples(read_coco(coco([bbox], (100, 80))), "detect").examples
    assert example.suffix == f"{tokens} cat"


@pytest.mark.parametrize("value", ["Keep", "", None, True], ids=repr)
def test_empty_images_are_kept_or_skipped(value: Any) -> None:
    with pytest.raises(InputError, match=r"empty_images is .*; it must be one of skip, keep"):
        coco_examples(read_coco(coco([], (9, 9))), "detect", empty_images=value)


def test_F05_picture_without_annotations_is_counted_and_skipped() -> None:
    value = coco([[80, 120, 240, 240]], (640, 480))
    value["images"].append({"id": 2, "file_name": "b.png", "width": 10, "height": 10})
    conversion = coco_examples(read_coco(value), "detect")
    assert [example.image for example in conversion.examples] == ["a.png"]
    assert "1 of 2 images without annotations" in conversion.summary()


def test_F05_kept_empty_picture_teaches_only_the_end() -> None:
    value = coco([], (640, 480))
    (example,) = coco_examples(read_coco(value), "detect", empty_images="keep").examples
    assert (example.prefix, example.suffix) == ("detect cat", "")
    row = training_row([9, 9, 2, 5, 108], [], eos_id=1)
    assert [label for label in row.labels if label != IGNORED] == [1]


def test_F07_crowds_are_no_targets() -> None:
    value = coco([[80, 120, 240, 240], [0, 0, 600, 400]], (640, 480))
    value["annotations"][1]["iscrowd"] = 1
    conversion = coco_examples(read_coco(value), "detect")
    assert conversion.examples[0].suffix == "<loc0256><loc0128><loc0768><loc0512> cat"
    assert "1 crowds left out" in conversion.summary()


def test_F07_run_lengths_of_single_objects_are_used() -> None:
    class Recorder:
        def encode(self, masks: Any) -> Any:
            assert masks.shape == (1, 64, 64)
            assert masks.min() == masks.max() == 1.0
            return np.arange(16)[None]

    rle = {"size": [80, 100], "counts": [10 * 80 + 20, 40, 7140]}  # column 10, rows 20 to 59
    value = coco([[10, 20, 1, 40]], (100, 80), segmentation=rle)
    (example,) = coco_examples(read_coco(value), "segment", codec=Recorder()).examples
    codes = "".join(f"<seg{code:03d}>" for code in range(16))
    assert example.prefix == "segment cat"
    assert example.suffix == f"<loc0256><loc0102><loc0768><loc0113>{codes} cat"


def test_F09_loss_mask_end_and_token_types() -> None:
    row = training_row([50, 50, 50, 2, 7, 108], [11, 12, 13], eos_id=1, pad_to=12)
    assert row.input_ids == [50, 50, 50, 2, 7, 108, 11, 12, 13, 1, 0, 0]
    assert row.labels == [-100] * 6 + [11, 12, 13, 1] + [-100] * 2
    assert row.token_types == [0] * 6 + [1] * 4 + [0] * 2
    assert row.attention == [1] * 10 + [0] * 2
    sees = visible(row)
    for query in range(12):
        for key in range(12):
            prefix, answer = key < 6, 6 <= query < 10 and 6 <= key <= query
            assert sees[query][key] == (query < 10 and (prefix or answer))


def test_F09_ids_may_be_arrays() -> None:
    row = training_row(np.array([50, 2, 108]), np.array([11]), eos_id=1)
    assert row.input_ids == [50, 2, 108, 11, 1]
    assert {type(one) for one in row.input_ids} == {int}


@pytest.mark.parametrize(
    ("prefix", "suffix", "pad_to"),
    [
        pytest.param([], [4], None, id="F09-no-prefix"),
        pytest.param([2, 108], [4, 1], None, id="F09-eos-inside"),
        pytest.param([2, 108], [4], 3, id="F09-too-long"),
    ],
)
def test_wrong_rows_are_refused(prefix: list[int], suffix: list[int], pad_to: int | None) -> None:
    with pytest.raises(InputError):
        training_row(prefix, suffix, eos_id=1, pad_to=pad_to)


WINDOWS_JSONL = (
    b'\xef\xbb\xbf{"image":"a.png","prefix":"caption en","suffix":"x"}\r\n\r\n'
    b'{"image":"b.png","prefix":"caption en","suffix":"y"}\r\n'
)


def test_F11_byte_order_mark_blank_lines_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(WINDOWS_JSONL)
    assert [(e.image, e.suffix) for e in read_examples(path)] == [("a.png", "x"), ("b.png", "y")]


def test_F11_line_separator_inside_a_text_does_not_split(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"image":"a.png","prefix":"ocr","suffix":"x\u2028y"}\n', encoding="utf-8")
    assert read_examples(path)[0].suffix == "x\u2028y"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(WINDOWS_JSONL + b'{"image":', ["line 4", "column 10"], id="F11-broken"),
        pytest.param(
            json.dumps([{"image": "a"}, {"image": "b"}], indent=1).encode(),
            ["line 1", "one JSON object per line", "over several lines"],
            id="F11-pretty-list",
        ),
        pytest.param(
            json.dumps({"image": "a.png"}, indent=1).encode(),
            ["line 1", "one JSON object per line", "over several lines"],
            id="F11-pretty-object",
        ),
        pytest.param(b"[1, 2]\n", ["line 1", "one JSON object per line"], id="F11-list"),
        pytest.param(b'{"a": NaN}\n', ["line 1", "NaN"], id="F11-nan"),
        pytest.param(b'{}\n{"a": "\xff"}\n', ["line 2", "0xff"], id="F11-not-utf8"),
        pytest.param(b"{}\n" + b"[" * 100_000, ["line 2", "nested"], id="F11-deep"),
        pytest.param(b'{"a": ' + b"1" * 5000 + b"}", ["line 1"], id="F11-huge-number"),
    ],
)
def test_broken_jsonl_names_file_and_line(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        list(read_jsonl(path))
    for word in [*words, "train.jsonl"]:
        assert word in str(caught.value)


def test_F11_all_wrong_records_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    good = '{"image":"a.png","prefix":"ocr","suffix":"x"}'
    path.write_text(f'{good}\n{{"image":"b.png","prefix":"ocr"}}\n{good}\n{{"image":1}}\n')
    with pytest.raises(DatasetError) as caught:
        read_examples(path)
    assert "line 2: suffix is None" in str(caught.value)
    assert "line 4: image is 1" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        pytest.param("sub/a.png", "sub/a.png", id="F14-folder"),
        pytest.param("sub\\a.png", "sub/a.png", id="F14-backslash"),
        pytest.param("./sub//a.png", "sub/a.png", id="F14-dot"),
        pytest.param("/b.png", "b.png", id="F14-leading-slash"),
        pytest.param("my%20cat.png", "my cat.png", id="F14-url-escape"),
        pytest.param("100%25.png", "100%25.png", id="F14-escape-that-is-a-name"),
        pytest.param("sub/../b.png", "b.png", id="F14-up-and-down"),
        pytest.param("nothing.png", None, id="F14-missing"),
        pytest.param("x" * 5000, None, id="F14-too-long"),
    ],
)
def test_picture_names(tmp_path: Path, name: str, file: str | None) -> None:
    (tmp_path / "sub").mkdir()
    for existing in ("sub/a.png", "b.png", "my cat.png", "100%25.png", "100%.png"):
        (tmp_path / existing).write_bytes(b"")
    assert find_picture(tmp_path, name) == (None if file is None else tmp_path / file)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("../secret.png", id="F14-up"),
        pytest.param("..\\secret.png", id="F14-up-backslash"),
        pytest.param("%2e%2e/secret.png", id="F14-up-escaped"),
        pytest.param("sub/../../secret.png", id="F14-up-in-the-middle"),
        pytest.param("/etc/passwd", id="F14-absolute"),
        pytest.param("C:\\secret.png", id="F14-drive"),
        pytest.param("https://example.org/a.png", id="F14-url"),
        pytest.param("", id="F14-empty"),
        pytest.param("a\0.png", id="F14-nul"),
        pytest.param("\ud800.png", id="F14-surrogate"),
    ],
)
def test_names_outside_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.png").write_bytes(b"")
    (tmp_path / "pictures").mkdir()
    with pytest.raises(DatasetError, match="inside"):
        find_picture(tmp_path / "pictures", name)


def test_F14_absolute_name_inside_the_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    assert find_picture(tmp_path, str(tmp_path / "a.png")) == tmp_path / "a.png"


def test_F14_missing_pictures_are_listed_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    names = ["a.png", *(f"{n}.png" for n in range(13))]
    with pytest.raises(DatasetError, match=r"13 of 14 pictures.*'0.png'.*'9.png' and 3 more"):
        find_pictures(tmp_path, names)
    assert find_pictures(tmp_path, names, skip_missing=True) == {"a.png": tmp_path / "a.png"}
    with pytest.raises(DatasetError, match="1 of 1 pictures"):
        coco_examples(read_coco(coco([], (9, 9))), "detect", images=tmp_path / "none")


def test_F16_encoder_and_decoder_use_the_same_scale() -> None:
    for thousandth in range(20_000):
        x = thousandth * 1280 / 20_000
        loc = encode_box((x, 0, 1280, 10), (1280, 10))
        error = abs(decode_box(loc, (1280, 10))[0] - x)
        assert error <= (0.625 if x <= 1279.375 else 1.25)
    (thing,) = parse_objects("<loc0000><loc0512><loc0512><loc0768> cat", (640, 480))
    assert thing.box_xyxy == (320.0, 0.0, 480.0, 240.0)


# --- invented later ------------------------------------------------------------------------------


def turned_picture(folder: Path) -> None:
    """a.png, stored as 40×20 pixels and seen as 20×40."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(folder / "a.png", exif=exif)


@pytest.mark.parametrize("size_wh", [(40, 20), (400, 200)], ids=["stored-pixels", "another-size"])
def test_picture_that_is_seen_otherwise_than_annotated(
    tmp_path: Path, size_wh: tuple[int, int]
) -> None:
    turned_picture(tmp_path)
    dataset = read_coco(coco([[1, 1, 5, 5]], size_wh))
    with pytest.raises(DatasetError, match=r"a\.png.*is annotated as .* but seen as \(20, 40\)"):
        coco_examples(dataset, "detect", images=tmp_path)


def test_picture_that_is_annotated_upright(tmp_path: Path) -> None:
    turned_picture(tmp_path)
    dataset = read_coco(coco([[5, 10, 10, 20]], (20, 40)))
    (example,) = coco_examples(dataset, "detect", images=tmp_path).examples
    assert example.suffix == "<loc0256><loc0256><loc0768><loc0768> cat"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param('{"image":"a"}'.encode("utf-16"), "not UTF-8", id="utf-16"),
        pytest.param(b'{"image":"a","prefix":"b","suffix":"c"},\n', "line 1", id="comma-behind"),
        pytest.param(b"{'image': 'a'}\n", "line 1", id="single-quotes"),
        pytest.param(b'[{"image":"a"}]\n', "one JSON object per line", id="list-on-a-line"),
        pytest.param(b'{"image":"a","prefix":"b","suffix":["c"]}\n', "suffix is", id="suffixes"),
        pytest.param(b'{"image":"","prefix":"b","suffix":"c"}\n', "image is ''", id="no-image"),
        pytest.param(b"\x1f\x8b\x08", "is compressed", id="gzip"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull", id="lfs"),
    ],
)
def test_files_that_are_no_training_data(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "train.jsonl").write_bytes(content)
    with pytest.raises(DatasetError, match=rf"train\.jsonl.*{words}"):
        read_examples(tmp_path / "train.jsonl")


def test_empty_file_and_further_fields(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"")
    assert read_examples(path) == []
    path.write_text('{"id": 4, "image": "a", "prefix": "b", "suffix": "c", "meta": {}}')
    assert [(e.image, e.prefix, e.suffix) for e in read_examples(path)] == [("a", "b", "c")]


CORNERS = "<xmin>2</xmin><ymin>3</ymin><xmax>11</xmax><ymax>13</ymax>"


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        pytest.param(
            "<name>person</name><part><name>head</name><bndbox><xmin>5</xmin><ymin>5</ymin>"
            f"<xmax>6</xmax><ymax>6</ymax></bndbox></part><bndbox>{CORNERS}</bndbox>",
            "person",
            id="parts-of-persons",
        ),
        pytest.param(
            "<name>cat</name><bndbox><ymax>13</ymax><xmax>11</xmax><ymin>3</ymin><xmin>2</xmin>"
            "</bndbox>",
            "cat",
            id="edges-in-another-order",
        ),
        pytest.param(f"<name>R&amp;D</name><bndbox>{CORNERS}</bndbox>", "R&D", id="ampersand"),
        pytest.param(
            f"<!-- x --><name> cat\n</name><bndbox>{CORNERS}</bndbox>", "cat", id="blanks"
        ),
    ],
)
def test_voc_as_tools_write_it(tmp_path: Path, thing: str, name: str) -> None:
    text = f"<annotation><filename>a.jpg</filename><object>{thing}</object></annotation>"
    (tmp_path / "a.xml").write_text(text)
    dataset = read_voc(tmp_path)
    (found,) = dataset.annotations
    assert (dataset.categories[found.category_id], found.bbox_xywh) == (name, (1, 2, 10, 11))


@pytest.mark.parametrize(
    ("line", "names", "words"),
    [
        pytest.param(
            "1,0.5,0.5,0.2,0.5", ["cat", "dog"], r"a\.txt, line 1: the class", id="commas"
        ),
        pytest.param("0 0.5 0.5 0.2 0.5", ["cat", "cat"], "'cat' more than once", id="same-name"),
        pytest.param("0 0.5 0.5 0.2 0.5 0.9", ["cat"], "5 numbers", id="with-confidence"),
    ],
)
def test_yolo_mistakes(tmp_path: Path, line: str, names: list[str], words: str) -> None:
    Image.new("RGB", (100, 80)).save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text(line)
    with pytest.raises(DatasetError, match=words):
        read_yolo(tmp_path, tmp_path, names)


def test_yolo_tabs_and_windows_line_ends(tmp_path: Path) -> None:
    Image.new("RGB", (100, 80)).save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_bytes(b"1\t0.5\t0.5\t0.2\t0.5 \r\n\r\n")
    (found,) = read_yolo(tmp_path, tmp_path, ["cat", "dog"]).annotations
    assert (found.category_id, found.bbox_xywh) == (2, pytest.approx((40, 20, 20, 40)))


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        pytest.param("traffic  light", "traffic light", id="two-blanks"),
        pytest.param("traffic\u00a0light", "traffic light", id="unbreakable-blank"),
        pytest.param("\ufeffcat", "cat", id="byte-order-mark"),
        pytest.param("cat\u200b", "cat", id="zero-width"),
    ],
)
def test_prefix_and_suffix_name_a_class_alike(name: str, asked: str) -> None:
    value = coco([[80, 120, 240, 240]], (640, 480))
    value["categories"][0]["name"] = name
    (example,) = coco_examples(read_coco(value), "detect").examples
    assert example.prefix == f"detect {asked}"
    assert example.suffix == f"<loc0256><loc0128><loc0768><loc0512> {asked}"


@pytest.mark.parametrize("written", ["é.png", "e\u0301.png", "%C3%A9.png"], ids=ascii)
@pytest.mark.parametrize("stored", ["é.png", "e\u0301.png"], ids=ascii)
def test_accents_composed_or_not_are_the_same_name(
    tmp_path: Path, written: str, stored: str
) -> None:
    """macOS writes file names in pieces, most other systems in one."""
    (tmp_path / stored).write_bytes(b"")
    assert find_picture(tmp_path, written) == tmp_path / stored


ROW = {
    "image": "a.png",
    "prefix": "detect cat",
    "suffix": "<loc0256><loc0128><loc0768><loc0512> cat",
}


@pytest.mark.parametrize("before", ["<image>", "<image>\n", "<image><bos>", " "], ids=repr)
def test_image_token_before_a_prefix_is_no_other_task(tmp_path: Path, before: str) -> None:
    Image.new("RGB", (640, 480)).save(tmp_path / "a.png")
    row = ROW | {"prefix": before + "detect cat\n"}
    (tmp_path / "train.jsonl").write_text(json.dumps(row))
    dataset = read_detection_jsonl(tmp_path / "train.jsonl", tmp_path)
    assert dataset.categories == {1: "cat"}
    assert len(dataset.annotations) == 1


def test_half_a_letter_names_its_line(tmp_path: Path) -> None:
    bad = ROW | {"suffix": "caf\ud83d"}
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(ROW)}\n{json.dumps(bad)}\n")
    with pytest.raises(DatasetError, match=r"train\.jsonl, line 2: suffix holds half a letter"):
        read_examples(tmp_path / "train.jsonl")


def voc_page(
    folder: Path, *names: str, corners: str = CORNERS, head: str = "", size: str = ""
) -> None:
    things = "".join(
        f"<object><name>{name}</name><bndbox>{corners}</bndbox></object>" for name in names
    )
    text = f"{head}<annotation><filename>a.jpg</filename>{size}{things}</annotation>"
    (folder / "a.xml").write_bytes(text.encode("gb2312" if head else "utf-8"))


def test_voc_names_that_differ_in_case_are_not_merged(tmp_path: Path) -> None:
    """As in a COCO file: both are in use, so who trains on them is told."""
    voc_page(tmp_path, "cat", "Cat")
    dataset = read_voc(tmp_path)
    assert [dataset.categories[one.category_id] for one in dataset.annotations] == ["cat", "Cat"]
    with pytest.raises(DatasetError, match="differ at most in case"):
        dataset.check_names()
    assert [a.category_id for a in read_voc(tmp_path, names=["CAT"]).annotations] == [1, 1]


def test_voc_pixels_that_do_not_count_from_one_are_told(tmp_path: Path) -> None:
    voc_page(tmp_path, "cat", corners=CORNERS.replace("<xmin>2", "<xmin>0"))
    with pytest.warns(DatasetWarning, match="a pixel 0.*pixels_from_one=False"):
        read_voc(tmp_path)
    (found,) = read_voc(tmp_path, pixels_from_one=False).annotations
    assert found.bbox_xywh == (0, 3, 11, 10)


def test_voc_boxes_that_end_outside_of_their_picture_are_told(tmp_path: Path) -> None:
    size = "<size><width>20</width><height>30</height></size>"
    voc_page(tmp_path, "cat", corners=CORNERS.replace("<xmax>", "<xmax>9"), size=size)
    with pytest.warns(DatasetWarning, match=r"1 boxes end outside .* a\.xml, line \d"):
        (found,) = read_voc(tmp_path).annotations
    assert found.bbox_xywh == (1, 2, 910, 11)


def test_voc_in_an_encoding_that_is_not_read(tmp_path: Path) -> None:
    voc_page(tmp_path, "猫", head='<?xml version="1.0" encoding="gb2312"?>')
    with pytest.raises(DatasetError, match=r"a\.xml.*save the file as UTF-8"):
        read_voc(tmp_path)


@pytest.mark.parametrize("names", [None, 3, b"cat", {"cat"}], ids=repr)
def test_yolo_names_that_are_none(tmp_path: Path, names: Any) -> None:
    with pytest.raises(DatasetError, match="names is"):
        read_yolo(tmp_path, tmp_path, names)


def test_voc_names_are_a_list(tmp_path: Path) -> None:
    voc_page(tmp_path, "c")
    with pytest.raises(DatasetError, match="names is 'cat'"):
        read_voc(tmp_path, names="cat")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"prefix_ids": None}, "prefix_ids", id="none"),
        pytest.param({"prefix_ids": "detect cat"}, "prefix_ids", id="text"),
        pytest.param({"prefix_ids": [2.5]}, "prefix_ids", id="fraction"),
        pytest.param({"prefix_ids": [[2, 5]]}, "prefix_ids", id="batch"),
        pytest.param({"suffix_ids": [None]}, "suffix_ids", id="no-id"),
        pytest.param({"suffix_ids": [-100]}, "suffix_ids", id="label-in-place-of-an-id"),
        pytest.param({"eos_id": None}, "eos_id", id="no-eos"),
        pytest.param({"pad_to": "12"}, "pad_to", id="pad-in-words"),
    ],
)
def test_rows_of_what_is_no_id(changes: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"prefix_ids": [2, 5], "suffix_ids": [7], "eos_id": 1} | changes
    prefix_ids, suffix_ids = arguments.pop("prefix_ids"), arguments.pop("suffix_ids")
    with pytest.raises(InputError, match=words):
        training_row(prefix_ids, suffix_ids, **arguments)
