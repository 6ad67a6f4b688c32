"""The files of the text benchmarks: what they become, and their mistakes with file and line."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vlmtasks.errors import DatasetError, InputError
from vlmtasks.evaluation import text_task
from vlmtasks.evaluation.captions import CaptionScores
from vlmtasks.evaluation.text_items import (
    TextItem,
    read_caption_items,
    read_ocr_items,
    read_referring_items,
    read_spotting_items,
    read_vqa_items,
)
from vlmtasks.evaluation.text_metrics import Word
from vlmtasks.evaluation.text_task import check_vqa_truths, fill_prompt, score_vqa_records


def lines(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return path


def test_captions_from_coco_and_lines(tmp_path: Path) -> None:
    value = {
        "images": [{"id": 5, "file_name": "a.jpg"}, {"id": 6, "file_name": "b.jpg"}],
        "annotations": [
            {"id": 1, "image_id": 5, "caption": "A cat."},
            {"id": 2, "image_id": 5, "caption": "One cat."},
        ],
    }
    (tmp_path / "captions.json").write_text(json.dumps(value))
    item = TextItem(5, "a.jpg", "", ["A cat.", "One cat."])
    assert read_caption_items(tmp_path / "captions.json") == [item]
    path = lines(tmp_path / "c.jsonl", {"image": "a.jpg", "captions": ["A cat.", "One cat."]})
    assert read_caption_items(path) == [TextItem(1, "a.jpg", "", ["A cat.", "One cat."])]


def test_questions_from_lines(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "q.jsonl",
        {"id": "x", "image": "a.jpg", "question": "how many?", "answers": ["2", "two"]},
        {"image": "b.jpg", "question": "how many?", "answer": 3},
        {"image": "b.jpg", "question": "a dog?", "answer": "no"},
    )
    assert read_vqa_items(path) == [
        TextItem("x", "a.jpg", "how many?", ["2", "two"]),
        TextItem(2, "b.jpg", "how many?", ["3"]),
        TextItem(3, "b.jpg", "a dog?", ["no"]),
    ]


def test_questions_from_the_two_files_of_vqa_v2(tmp_path: Path) -> None:
    question = {"question_id": 70, "image_id": 7, "question": "What colour?"}
    answer = {"question_id": 70, "answers": [{"answer": "red"}] * 10}
    (tmp_path / "q.json").write_text(json.dumps({"questions": [question]}))
    (tmp_path / "a.json").write_text(json.dumps({"annotations": [answer]}))
    (item,) = read_vqa_items(tmp_path / "a.json", tmp_path / "q.json")
    assert item == TextItem(70, "COCO_val2014_000000000007.jpg", "What colour?", ["red"] * 10)
    (tmp_path / "a.json").write_text(json.dumps({"annotations": [answer | {"question_id": 71}]}))
    with pytest.raises(DatasetError, match="no question 71"):
        read_vqa_items(tmp_path / "a.json", tmp_path / "q.json")
    with pytest.raises(DatasetError, match='a list "questions"'):
        read_vqa_items(tmp_path / "a.json", tmp_path / "a.json")


@pytest.mark.parametrize(
    ("image_id", "answers", "words"),
    [
        ("1e999", '[{"answer": "2"}]', "is not as in VQA v2"),
        ("null", '[{"answer": "2"}]', "is not as in VQA v2"),
        ('"x"', '[{"answer": "2"}]', "is not as in VQA v2"),
        ("5", "null", "is not as in VQA v2"),
        ("5", '"2"', "is not as in VQA v2"),
        ("5", "[]", "answers is empty; it must hold at least one answer"),
    ],
)
def test_vqa_v2_files_that_are_none(
    tmp_path: Path, image_id: str, answers: str, words: str
) -> None:
    path = tmp_path / "both.json"
    question = f'{{"question_id": 1, "image_id": {image_id}, "question": "how many?"}}'
    answer = f'{{"question_id": 1, "answers": {answers}}}'
    path.write_text(f'{{"questions": [{question}], "annotations": [{answer}]}}')
    with pytest.raises(DatasetError, match=rf"both\.json, question 1: {words}"):
        read_vqa_items(path, path, "{}")


def vqa_v2(path: Path, question_ids: list[Any], answer_ids: list[Any]) -> Path:
    """Both files of VQA v2 as one; the question n is about picture n."""
    questions = [{"question_id": n, "image_id": n, "question": "red?"} for n in question_ids]
    answers = [{"question_id": n, "answers": [{"answer": "yes"}]} for n in answer_ids]
    path.write_text(json.dumps({"questions": questions, "annotations": answers}))
    return path


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        pytest.param("{:012d", "cannot be filled with 1: ", id="not-closed"),
        pytest.param("{", "cannot be filled with 1: ", id="opened"),
        pytest.param("{1}.jpg", "cannot be filled with 1: ", id="second-place"),
        pytest.param("{0.x}", "cannot be filled with 1: ", id="attribute"),
        pytest.param("{0[0]}", "cannot be filled with 1: ", id="index"),
        pytest.param("{name}", "cannot be filled with 1: ", id="named"),
        pytest.param("pic.jpg", "names the pictures 1 and 2 alike", id="no-place"),
        pytest.param("{{}}.jpg", "names the pictures 1 and 2 alike", id="doubled-brackets"),
    ],
)
def test_file_name_patterns_that_are_none(tmp_path: Path, pattern: str, words: str) -> None:
    path = vqa_v2(tmp_path / "both.json", [1, 2], [1, 2])
    with pytest.raises(InputError, match="image_name is ") as caught:
        read_vqa_items(path, path, pattern)
    assert words in str(caught.value)
    assert "both.json" not in str(caught.value)


def test_single_picture_needs_no_pattern(tmp_path: Path) -> None:
    path = vqa_v2(tmp_path / "both.json", [1], [1])
    assert [item.image for item in read_vqa_items(path, path, "pic.jpg")] == ["pic.jpg"]


@pytest.mark.parametrize(
    ("question_ids", "answer_ids", "words"),
    [
        pytest.param([1, 2], [1, 2, 1], "question_id 1 stands there 2 times", id="answers"),
        pytest.param([1, 2, 2], [1], "question_id 2 stands there 2 times", id="questions"),
        pytest.param([True], [True], "must be an object with a list", id="bool"),
    ],
)
def test_questions_that_stand_there_twice(
    tmp_path: Path, question_ids: list[Any], answer_ids: list[Any], words: str
) -> None:
    path = vqa_v2(tmp_path / "both.json", question_ids, answer_ids)
    with pytest.raises(DatasetError, match=r"both\.json: ") as caught:
        read_vqa_items(path, path, "{}.jpg")
    assert words in str(caught.value)


def test_words_with_boxes(tmp_path: Path) -> None:
    words = [{"text": "STOP", "box": [1, 2, 3, 4]}, {"text": "###", "box": [5, 6, 7, 8]}]
    path = lines(tmp_path / "w.jsonl", {"image": "a.jpg", "words": words})
    (item,) = read_spotting_items(path)
    assert item.truth == [Word("STOP", (1, 2, 3, 4)), Word("###", (5, 6, 7, 8))]


def test_phrases_from_lines_and_single_objects(tmp_path: Path) -> None:
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    square = [2.0, 2.0, 6.0, 2.0, 6.0, 8.0, 2.0, 8.0]
    path = lines(
        tmp_path / "p.jsonl", {"image": "a.png", "phrase": "left", "segmentation": [square]}
    )
    (item,) = read_referring_items(path, tmp_path)
    assert (item.words, item.truth[1]) == ("left", (2, 2, 6, 8))
    entry = {"image_id": 1, "bbox": [2, 2, 4, 6], "area": 24, "iscrowd": 0}
    entry["segmentation"] = [square]
    value = {
        "images": [{"id": 1, "file_name": "a.png", "width": 20, "height": 10}],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [
            entry | {"id": 4, "category_id": 1},
            entry | {"id": 5, "category_id": 2},
            entry | {"id": 6, "category_id": 2},
        ],
    }
    (tmp_path / "i.json").write_text(json.dumps(value))
    (single,) = read_referring_items(tmp_path / "i.json", tmp_path)
    assert (single.id, single.words, single.truth) == (4, "cat", item.truth)


@pytest.mark.parametrize(
    ("read", "record", "words"),
    [
        pytest.param(read_caption_items, {"captions": []}, "captions is []", id="captions"),
        pytest.param(read_vqa_items, {"answers": ["x"]}, "question is None", id="question"),
        pytest.param(read_vqa_items, {"question": "?"}, "answers is None", id="answers"),
        pytest.param(read_ocr_items, {"text": 5}, "text is 5", id="text"),
        pytest.param(read_spotting_items, {"words": [3]}, "words holds 3", id="words"),
        pytest.param(
            read_spotting_items, {"words": [{"text": "a", "box": [1, 2]}]}, "box is", id="box"
        ),
        pytest.param(
            read_spotting_items,
            {"words": [{"text": "a", "box": [9, 2, 3, 4]}]},
            "x1 >= x0",
            id="reversed",
        ),
        pytest.param(read_ocr_items, {"text": "a", "image": ""}, "image is ''", id="image"),
        pytest.param(read_ocr_items, {"text": "a", "id": [1]}, "id is [1]", id="id"),
    ],
)
def test_mistakes_name_file_and_line(
    tmp_path: Path, read: Any, record: dict[str, Any], words: str
) -> None:
    good = {"image": "a.jpg", "captions": ["x"], "question": "?", "answers": ["x"], "text": "x"}
    good["words"] = []
    path = lines(tmp_path / "data.jsonl", good, {"image": "a.jpg", **record})
    with pytest.raises(DatasetError, match=r"data\.jsonl, line 2: ") as caught:
        read(path)
    assert words in str(caught.value)


def test_doubled_ids_are_refused(tmp_path: Path) -> None:
    record = {"id": 1, "image": "a.jpg", "text": "x"}
    with pytest.raises(DatasetError, match="line 2: id is 1"):
        read_ocr_items(lines(tmp_path / "data.jsonl", record, record))


def test_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="holds no examples"):
        read_ocr_items(lines(tmp_path / "data.jsonl"))


def test_prompts_are_filled() -> None:
    assert fill_prompt("answer en {}", "how many {}?") == "answer en how many {}?"
    assert fill_prompt("ocr", "") == "ocr"
    with pytest.raises(InputError, match=r"must hold \{\}"):
        fill_prompt("answer en", "how many?")


def test_vqa_metrics_over_records() -> None:
    items = [TextItem(1, "a", "?", ["Red"] * 10), TextItem(2, "a", "?", ["blue"] * 10)]
    records = [{"text": "red"}, {"error": "broken"}]
    assert score_vqa_records(items, records, metric="vqa")["vqa"] == 0.0
    assert score_vqa_records(items, records, metric="vqa", lower=True)["vqa"] == 0.5
    assert score_vqa_records(items, records, metric="relaxed")["relaxed"] == 0.5
    assert score_vqa_records(items, records, metric="anls")["anls"] == pytest.approx((2 / 3) / 2)
    with pytest.raises(InputError, match="metric is 'bleu'"):
        score_vqa_records(items, records, metric="bleu")
    with pytest.raises(InputError, match="needs whole numbers"):
        score_vqa_records(items, records, metric="count")


def test_truths_are_checked_before_a_model_is_asked() -> None:
    items = [TextItem(1, "a", "?", ["yes"]), TextItem(2, "a", "?", ["perhaps"])]
    with pytest.raises(InputError, match="truths hold 'perhaps'"):
        check_vqa_truths(items, "pope")
    with pytest.raises(InputError, match="needs whole numbers"):
        check_vqa_truths(items, "count")
    check_vqa_truths(items, "vqa")


def test_ids_that_look_alike_are_two_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(references: Any, answers: Any, *, meteor: bool) -> CaptionScores:
        pairs = [(references[key], answers[key]) for key in references]
        assert pairs == [(["A cat."], "a cat"), (["A dog."], "a dog")]
        return CaptionScores(1.0, (1.0, 1.0, 1.0, 1.0), 1.0, None, {})

    monkeypatch.setattr(text_task, "score_captions", count)
    items = [TextItem(1, "a.jpg", "", ["A cat."]), TextItem("1", "b.jpg", "", ["A dog."])]
    records = [{"text": "a cat"}, {"text": "a dog"}]
    assert text_task.score_caption_records(items, records)["cider"] == 1.0
