"""The text benchmarks: what is asked, and how the answers are scored.

A record is {"file_name", "text", "finish_reason"} or {"file_name", "error"}; a picture that could
not be read counts as an empty answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmtasks import prompts
from vlmtasks.errors import ImageError, InputError
from vlmtasks.evaluation import vqa
from vlmtasks.evaluation.captions import score_captions
from vlmtasks.evaluation.referring import MaskDecoder, ReferringTruth, score_referring
from vlmtasks.evaluation.text_items import TextItem
from vlmtasks.evaluation.text_metrics import (
    Word,
    character_error_rate,
    text_spotting,
    word_error_rate,
)
from vlmtasks.images import open_image
from vlmtasks.rle import decode_rle
from vlmtasks.tokens import BOX_SCALE, parse_objects

if TYPE_CHECKING:
    from vlmtasks.api import VLM

Figures = dict[str, Any]
Record = Mapping[str, Any]

VQA_METRICS = ("vqa", "exact", "anls", "relaxed", "pope", "count")


def fill_prompt(template: str, words: str) -> str:
    """Put the words of an item into a prompt; "{}" stands for them.

    InputError: a template that drops the words.
    """
    if words and "{}" not in template:
        raise InputError(f"prompt is {template!r}; it must hold {{}} where the question belongs")
    return prompts.free_text(template.replace("{}", words))


def ask_texts(
    vlm: "VLM", items: Sequence[tuple[TextItem, Path]], template: str, **options: Any
) -> list[dict[str, Any]]:
    """The records of a batch. options: see `vlmtasks.batches.Options`; max_new_tokens is needed.

    A picture that cannot be read, or whose prompt is too long, has an "error" in place of "text".
    """
    records: list[dict[str, Any]] = []
    readable: list[tuple[Any, str, dict[str, Any]]] = []
    for item, path in items:
        record: dict[str, Any] = {"file_name": item.image}
        try:
            readable.append((open_image(path), fill_prompt(template, item.words), record))
        except ImageError as error:
            record["error"] = str(error)
        records.append(record)
    if readable:
        pictures, asked, targets = (list(column) for column in zip(*readable, strict=True))
        options["on_error"] = "return"
        answers: list[Any] = vlm.generate(pictures, asked, **options)
        for record, answer in zip(targets, answers, strict=True):
            if isinstance(answer, InputError):
                record["error"] = str(answer)
            else:
                record |= {"text": answer.text, "finish_reason": answer.finish_reason}
    return records


def answer_text(record: Record) -> str:
    """The answer of a record, "" for a picture that could not be read."""
    text = record.get("text", "")
    return text if isinstance(text, str) else ""


def score_caption_records(
    items: Sequence[TextItem], records: Sequence[Record], *, meteor: bool = False
) -> Figures:
    """CIDEr and its companions."""
    # by their places, because the ids 1 and "1" are two pictures
    references = {str(place): item.truth for place, item in enumerate(items)}
    answers = {
        str(place): answer_text(record).strip()
        for place, (_, record) in enumerate(zip(items, records, strict=True))
    }
    figures = asdict(score_captions(references, answers, meteor=meteor))
    del figures["cider_by_picture"]
    return figures


def check_vqa_truths(items: Sequence[TextItem], metric: str) -> None:
    """InputError: truths that the metric cannot use, told before a model is asked."""
    if metric not in _MEAN_OF:
        score_vqa_records(items, [{}] * len(items), metric=metric)


def score_vqa_records(
    items: Sequence[TextItem], records: Sequence[Record], *, metric: str, lower: bool = False
) -> Figures:
    """One of VQA_METRICS.

    lower: lower-case both sides first, as DocVQA, ST-VQA and OCR-VQA want it.
    InputError: an unknown metric, or truths that the metric cannot use.
    """
    answers = [answer_text(record).strip() for record in records]
    truths = [list(item.truth) for item in items]
    if lower:
        answers = [answer.lower() for answer in answers]
        truths = [[truth.lower() for truth in group] for group in truths]
    if metric in _MEAN_OF:
        rule = _MEAN_OF[metric]
        values = [rule(answer, group) for answer, group in zip(answers, truths, strict=True)]
        return {metric: sum(values) / len(values), "questions": len(values)}
    single = [group[0] for group in truths]
    if metric == "pope":
        return asdict(vqa.pope(answers, [truth.lower() for truth in single]))
    if metric == "count":
        counts = [vqa.as_count(truth) for truth in single]
        if None in counts:
            wrong = single[counts.index(None)]
            raise InputError(f"a true answer is {wrong!r}; the metric 'count' needs whole numbers")
        return asdict(vqa.counting(answers, [count for count in counts if count is not None]))
    raise InputError(f"metric is {metric!r}; it must be one of {', '.join(VQA_METRICS)}")


def score_ocr_records(items: Sequence[TextItem], records: Sequence[Record]) -> Figures:
    """Character and word error rate; line ends count as blanks."""
    truths = [" ".join(item.truth.split()) for item in items]
    answers = [" ".join(answer_text(record).split()) for record in records]
    return {
        "cer": character_error_rate(truths, answers),
        "wer": word_error_rate(truths, answers),
        "exact": sum(a == b for a, b in zip(truths, answers, strict=True)) / len(truths),
        "pictures": len(truths),
    }


def score_spotting_records(
    items: Sequence[TextItem],
    records: Sequence[Record],
    sizes_wh: Sequence[tuple[int, int]],
    *,
    scale: int = BOX_SCALE,
) -> Figures:
    """Words in the right place; answers are those of `detect`, each label a word that was read."""
    found = [
        [
            Word(thing.label, thing.box_xyxy)
            for thing in parse_objects(answer_text(record), size_wh, scale=scale)
            if thing.problem is None and thing.box_xyxy is not None
        ]
        for record, size_wh in zip(records, sizes_wh, strict=True)
    ]
    return asdict(text_spotting([item.truth for item in items], found))


def score_referring_records(
    items: Sequence[TextItem], records: Sequence[Record], codec: MaskDecoder, *, scale: int
) -> Figures:
    """mIoU and its companions."""

    def truths() -> Iterator[ReferringTruth]:
        for item in items:
            rle, box_xyxy = item.truth
            yield ReferringTruth(decode_rle(rle), box_xyxy)

    answers = [answer_text(record) for record in records]
    return asdict(score_referring(answers, truths(), codec, scale=scale))


def _best_relaxed(answer: str, truths: Sequence[str]) -> float:
    return float(any(vqa.relaxed_match(answer, truth) for truth in truths))


_MEAN_OF: dict[str, Callable[[str, Sequence[str]], float]] = {
    "vqa": vqa.vqa_accuracy,
    "exact": vqa.simple_vqa_accuracy,
    "anls": vqa.anls,
    "relaxed": _best_relaxed,
}
