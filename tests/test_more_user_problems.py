"""Problems of the kinds of the case list that a second pair of eyes came upon."""

import io
import json
import os
import pickle
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from stub_engine import StubEngine

from vlmtasks import prompts
from vlmtasks.api import BUNDLED, VLM
from vlmtasks.categories import CocoCategories
from vlmtasks.cli_inputs import Input, find_pictures, split_words
from vlmtasks.cli_outputs import OutputFile, image_ids
from vlmtasks.cli_words import say
from vlmtasks.datasets.coco_entries import check_segmentation
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.datasets.coco_results import read_results
from vlmtasks.datasets.detection_jsonl import read_detection_jsonl
from vlmtasks.datasets.folder import picture_size, read_folder
from vlmtasks.datasets.paligemma_examples import coco_examples
from vlmtasks.datasets.problems import DatasetWarning
from vlmtasks.datasets.voc import read_voc
from vlmtasks.datasets.yolo import read_yolo
from vlmtasks.engine.folder_files import read_json
from vlmtasks.engine.tokenizer import Tokenizer
from vlmtasks.errors import (
    DatasetError,
    ImageError,
    InputError,
    MissingExtraError,
    MissingFileError,
    PromptError,
)
from vlmtasks.evaluation.coco_ap import coco_scores
from vlmtasks.evaluation.run import read_predictions
from vlmtasks.images import open_image
from vlmtasks.masks import Masks
from vlmtasks.results import Detections
from vqvae import MaskCodec, crop_mask
from vqvae.errors import CodecInputError


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


# --- the third pair of eyes ----------------------------------------------------------------------


@pytest.mark.parametrize("file_format", ["TIFF", "JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_data_sets_see_pictures_as_models_do(
    tmp_path: Path, file_format: str, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x112] = orientation
    Image.new("RGB", (40, 20)).save(tmp_path / "scan", file_format, exif=exif)
    size_wh = picture_size(tmp_path / "scan")
    assert size_wh == open_image(tmp_path / "scan").size
    assert size_wh == ((20, 40) if orientation > 4 else (40, 20))


ONE = Detections(np.array([[0, 0, 5, 5]]), ("cat",), np.array([0.1]), (10, 10))
TWO = Detections(np.array([[0, 0, 5, 5]] * 2), ("cat", "dog"), np.array([0.1, 0.9]), (10, 10))


@pytest.mark.parametrize(
    ("found", "index", "labels"),
    [
        pytest.param(ONE, torch.tensor([False]), (), id="tensor, none"),
        pytest.param(ONE, torch.tensor([True]), ("cat",), id="tensor, one"),
        pytest.param(TWO, torch.tensor([1]), ("dog",), id="tensor of one index"),
        pytest.param(TWO, np.array([]), (), id="empty array"),
        pytest.param(TWO, [], (), id="empty list"),
        pytest.param(TWO, (1, 0), ("dog", "cat"), id="tuple"),
        pytest.param(TWO, [False, True], ("dog",), id="list of bools"),
        pytest.param(TWO, slice(None, None, -1), ("dog", "cat"), id="slice"),
        pytest.param(TWO, np.array([-1]), ("dog",), id="from the end"),
    ],
)
def test_every_list_of_indices_gives_detections(
    found: Detections, index: Any, labels: tuple[str, ...]
) -> None:
    masks = Masks.from_dense(np.ones((len(found), 10, 10), bool), (10, 10))
    assert found[index].labels == labels
    assert len(masks[index]) == len(labels)
    assert len(replace(found, masks=masks)[index]) == len(labels)


@pytest.mark.parametrize("index", ["cat", 1.0, None, True, [0.5], ["cat"], np.zeros((1, 1))])
def test_what_is_no_index_is_told(index: Any) -> None:
    with pytest.raises(InputError, match=r"index is .*; it must be a whole number, a slice"):
        TWO[index]
    with pytest.raises(IndexError):
        TWO[2]
    with pytest.raises(IndexError):
        TWO[[True]]


def test_a_pattern_without_pictures_changes_no_ids() -> None:
    stray = Input("missing*.jpg", "no picture matches")
    assert image_ids([Input("000000397133.jpg"), stray, Input("0.jpg")])[::2] == [397133, 0]
    assert image_ids([Input("0.jpg"), stray, Input("00.jpg")]) == [1, 2, 3]


def test_an_error_among_encoded_pictures_is_raised() -> None:
    vlm = VLM(StubEngine("a cat"))
    encoded = vlm.encode_image([b"broken", Image.new("RGB", (8, 8))], on_error="return")
    with pytest.raises(ImageError, match=r"picture 0 \(from 0\) of 2: the picture of 6 bytes"):
        vlm.caption(encoded)
    with pytest.raises(ImageError, match="the picture of 6 bytes"):
        vlm.caption(encoded[0])
    error, caption = vlm.caption(encoded, on_error="return")
    assert (error, caption) == (encoded[0], "a cat")


def test_every_picture_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(tmp_path / "c.png").read_bytes()[:20])
    (tmp_path / "b.png").write_bytes(b"<html>404</html>")
    for size in ({"width": 100, "height": 50}, {}):
        images = [
            {"id": number, "file_name": f"{name}.png", **size}
            for number, name in enumerate("abc", start=1)
        ]
        dataset = read_coco({"images": images, "categories": [], "annotations": []})
        with pytest.raises(DatasetError) as caught:
            coco_examples(dataset, "detect", images=tmp_path, empty_images="keep")
        assert all(name in str(caught.value) for name in ("a.png", "b.png"))
        assert "c.png" not in str(caught.value)


def test_a_flat_polygon_is_told_to_go_into_a_list() -> None:
    with pytest.raises(ValueError, match=r"a flat list; put the polygon into one: \[\[x0, y0"):
        check_segmentation([10, 20, 40, 20, 40, 60], (100, 80))


def test_tokenizer_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"\xef\xbb\xbf" + (BUNDLED["demo"] / "tokenizer.json").read_bytes())
    plain = Tokenizer.from_file(BUNDLED["demo"] / "tokenizer.json")
    assert Tokenizer.from_file(path).encode("detect cat") == plain.encode("detect cat")


# --- the fourth ----------------------------------------------------------------------------------


def test_keys_of_a_dict_have_an_order() -> None:
    ids = {"cat": 17, "dog": 18}
    assert prompts.class_names(ids.keys()) == ("cat", "dog")
    assert CocoCategories(ids.keys()).id("dog") == 2
    for strange in ({"cat", "dog"}, frozenset(ids), ids.items() & ids.items()):
        with pytest.raises(PromptError, match="must be a str or a list of str, in order"):
            prompts.class_names(strange)  # type: ignore[arg-type]


@pytest.mark.parametrize("line", ['{"image": "a.jpg", "objects": []}', '{"image": "a.jpg", "obj'])
def test_what_is_no_file_of_predictions_is_not_to_be_deleted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "det.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DatasetError, match=r"give the predictions\.jsonl of a run"):
        read_predictions(path)


# --- the fifth -----------------------------------------------------------------------------------


def test_a_question_without_quotes_is_told_of_quotes() -> None:
    (stray,) = find_pictures(["how"], words="question")
    assert stray.error == (
        "there is no such file; the question comes last and in quotes: 'how many cats?'"
    )
    (stray,) = find_pictures(["how"])
    assert stray.error == "there is no such file"


def test_results_never_go_over_a_picture(tmp_path: Path) -> None:
    other = picture(tmp_path / "other.png")
    with pytest.raises(InputError, match=r"other\.png is a picture; results are text"):
        OutputFile(other, [Input("a.png")])
    OutputFile(tmp_path / "new.png", [Input("a.png")])


def test_results_of_another_form_are_told_their_form(tmp_path: Path) -> None:
    image = {"id": 7, "width": 100, "height": 80, "file_name": "a.png"}
    dataset = read_coco(
        {"images": [image], "categories": [{"id": 3, "name": "cat"}], "annotations": []}
    )
    row = {"image_id": "7", "category_id": 3, "bbox": [10, 20, 30, 40], "score": 0.9}
    with pytest.raises(DatasetError, match=r"^results, entry 0: image_id is '7', .* are numbers"):
        read_results([row], dataset)
    (tmp_path / "r.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row))
    with pytest.raises(DatasetError, match=r"line 2, .* put several into one list"):
        read_results(tmp_path / "r.jsonl", dataset)


# --- the sixth -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [255, 2.0, -1.0, np.nan])
def test_masks_of_other_ranges_are_not_cropped(value: float) -> None:
    mask = np.zeros((100, 80), np.float32)
    mask[20:60, 10:50] = value
    with pytest.raises(CodecInputError, match=r"must be 0 … 1, got .*: pass mask > 0"):
        crop_mask(mask, (0.1, 0.15, 0.7, 0.65))
    assert crop_mask(mask == value, (0.1, 0.15, 0.7, 0.65)).max() in (0.0, 1.0)


def test_a_single_mask_is_to_be_put_into_a_list() -> None:
    with pytest.raises(CodecInputError, match=r"got \(64, 64\): put a single mask into a list"):
        MaskCodec.load().encode(np.ones((64, 64)))


def test_the_two_forms_of_categories_are_spelled_alike() -> None:
    with pytest.raises(InputError, match=r"in \{name: id\} and in \{id: name\}; JSON"):
        CocoCategories({"cat": "17"})


# --- the seventh ---------------------------------------------------------------------------------


def test_home_is_the_same_folder_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    picture(tmp_path / "a.png")
    assert open_image("~/a.png").size == (100, 50)
    ONE.save("~/x.json")
    assert (tmp_path / "x.json").is_file()


# --- the eighth ----------------------------------------------------------------------------------


def instances(bbox: list[float], **more: Any) -> dict[str, Any]:
    annotation = {"id": 1, "image_id": 7, "category_id": 3, "bbox": bbox, "area": 9, "iscrowd": 0}
    return {
        "images": [{"id": 7, "width": 100, "height": 80, "file_name": "a.png"}],
        "categories": [{"id": 3, "name": "cat"}],
        "annotations": [annotation | more],
    }


@pytest.mark.parametrize(
    "points",
    [[[[10, 10], [30, 10], [30, 30]]], [[10, 10], [30, 10], [30, 30]]],
    ids=["polygon-of-points", "points"],
)
def test_polygons_of_points_are_told_to_be_flat(points: list[Any]) -> None:
    with pytest.raises(DatasetError, match=r"a list of points; .* flat list"):
        read_coco(instances([10, 10, 20, 20], segmentation=points))


def test_two_files_about_one_picture_are_told(tmp_path: Path) -> None:
    for name in ("a.xml", "b.xml"):
        (tmp_path / name).write_text("<annotation><filename>x.jpg</filename></annotation>")
    with pytest.warns(DatasetWarning, match=r"1 pictures are named by several .* 'x\.jpg'"):
        assert len(read_voc(tmp_path).images) == 2


def test_hidden_files_are_no_part_of_a_data_set(tmp_path: Path) -> None:
    """macOS leaves a `._x` beside each x on disks that it shares."""
    picture(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("0 0.5 0.5 0.2 0.2")
    (tmp_path / "a.xml").write_text("<annotation><filename>a.png</filename></annotation>")
    for name in ("._a.png", "._a.txt", "._a.xml"):
        (tmp_path / name).write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    assert [image.file_name for image in read_folder(tmp_path).images.values()] == ["a.png"]
    assert len(read_yolo(tmp_path, tmp_path, ["cat"]).annotations) == 1
    assert [image.file_name for image in read_voc(tmp_path).images.values()] == ["a.png"]


def test_categories_as_pycocotools_holds_them() -> None:
    cats = {3: {"id": 3, "name": "cat"}, 9: {"id": 9, "name": "dog", "supercategory": "animal"}}
    assert CocoCategories(cats).to_list() == [{"id": 3, "name": "cat"}, {"id": 9, "name": "dog"}]


def test_names_by_number_are_told_to_be_a_list() -> None:
    with pytest.raises(PromptError, match=r"keys are no names; pass .*names\.values"):
        prompts.class_names({0: "cat", 1: "dog"})  # type: ignore[arg-type]


def test_names_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    say("there is no \x1b[2Ja.jpg\r, café\n\tnext")
    assert capsys.readouterr().err == "there is no \\x1b[2Ja.jpg\\r, café\n\tnext\n"


def test_the_root_of_a_hub_cache_names_its_snapshot(tmp_path: Path) -> None:
    (tmp_path / "snapshots" / "c0ffee").mkdir(parents=True)
    (tmp_path / "snapshots" / "c0ffee" / "config.json").write_text("{}")
    with pytest.raises(MissingFileError, match="its folders snapshots/c0ffee do"):
        read_json(tmp_path, "config.json")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no /dev")
def test_what_is_no_file_is_told_to_become_one() -> None:
    with pytest.raises(ImageError, match="write the picture to one, or pass its bytes"):
        open_image("/dev/zero")
