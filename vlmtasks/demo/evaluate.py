"""Figures of a demo checkpoint on drawn scenes and photographs, through the public verbs.

    python -m vlmtasks.demo.evaluate --split test --count 500 --seeds 101 102 103 [--photos DIR]

Protocol. Every scene is asked for each class that it shows, one class a prompt ("present"); boxes
and masks are scored with COCO's AP. Besides, two classes that it does not show must be answered
empty, one class that it shows and one that it does not are asked with yes or no, colours are asked
where one object of a class has a certain one, counts of every shown class and of one that is not
shown. Everything is asked with default settings; answers are counted as well-formed without the
grammar ("well_formed": plain greedy, `constrain=False`, the first 500 prompts of each verb).
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from vlmtasks.api import VLM, load
from vlmtasks.boxes import box_iou
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.demo.classes import LABELS, how_many, is_there, plural, what_color
from vlmtasks.demo.prompts import caption_of
from vlmtasks.demo.scene_files import coco_instances
from vlmtasks.demo.scenes import Scene, scene_at
from vlmtasks.evaluation.coco_ap import coco_scores
from vlmtasks.evaluation.text_metrics import character_error_rate
from vlmtasks.results import Detections

BATCH_SIZE = 32
PLAIN_PROMPTS = 500
Answers = dict[tuple[int, str], Any]  # (scene, class or question) → answer


def evaluate_scenes(vlm: VLM, scenes: Sequence[Scene], seed: int) -> dict[str, float]:
    """All figures of drawn scenes, each 0..1 (character error may be more)."""
    rng = np.random.default_rng(seed)
    encoded = vlm.encode_image([scene.picture for scene in scenes], batch_size=BATCH_SIZE)
    shown = [Counter(item.label for item in scene.objects) for scene in scenes]
    absent = [_absent(scene, rng, 2) for scene in scenes]
    ask = _Asker(vlm, encoded)
    found = ask.by_word(vlm.detect, [(k, label) for k in range(len(scenes)) for label in shown[k]])
    masked = ask.by_word(vlm.segment, list(found))
    empty = ask.by_word(vlm.detect, [(k, label) for k, some in enumerate(absent) for label in some])
    figures = _box_figures(scenes, found, "bbox") | _box_figures(scenes, masked, "segm")
    figures["matched_mask_iou"] = _matched_iou(scenes, masked)
    figures["nothing_there"] = mean(len(answer) == 0 for answer in empty.values())
    plain = [
        answer
        for verb, pairs in ((vlm.detect, [*found, *empty]), (vlm.segment, list(found)))
        for answer in ask.by_word(partial(verb, constrain=False), pairs[:PLAIN_PROMPTS]).values()
    ]
    figures["well_formed"] = mean(
        not answer.dropped and answer.finish_reason == "stop" for answer in plain
    )
    return figures | _text_figures(ask, scenes, shown, absent)


class _Asker:
    """Asks one question about many scenes together; the pictures are encoded once."""

    def __init__(self, vlm: VLM, encoded: list[Any]) -> None:
        self.vlm = vlm
        self.encoded = encoded

    def by_word(
        self, verb: Callable[..., Any], pairs: Sequence[tuple[int, str]], words: str = "{}"
    ) -> Answers:
        """verb(picture, words with the class filled in) for (scene, class) pairs."""
        scenes_of: dict[str, list[int]] = defaultdict(list)
        for scene, word in pairs:
            scenes_of[word].append(scene)
        answers: Answers = {}
        for word, indices in scenes_of.items():
            pictures = [self.encoded[index] for index in indices]
            given = verb(pictures, words.format(word), batch_size=BATCH_SIZE)
            for index, answer in zip(indices, given, strict=True):
                answers[index, word] = answer
        return answers


def _text_figures(
    ask: _Asker, scenes: Sequence[Scene], shown: list[Counter], absent: list[list[str]]
) -> dict[str, float]:
    yes_no = {(k, next(iter(some))): "yes" for k, some in enumerate(shown) if some}
    yes_no |= {(k, some[0]): "no" for k, some in enumerate(absent) if some}
    figures = {"yes_no": _share_right(ask, is_there, yes_no)}
    colors = {
        (k, item.label): item.color
        for k, scene in enumerate(scenes)
        for item in scene.objects
        if item.color and shown[k][item.label] == 1
    }
    figures["color"] = _share_right(ask, what_color, colors)
    counts = {(k, label): str(n) for k, some in enumerate(shown) for label, n in some.items()}
    counts |= {(k, some[-1]): "0" for k, some in enumerate(absent) if some}
    figures["count"] = _share_right(ask, how_many, counts)
    for name, numbers in (("0", "0"), ("1", "1"), ("2", "2"), ("3+", "3456789")):
        some = {key: number for key, number in counts.items() if number in numbers}
        figures[f"count_{name}"] = _share_right(ask, how_many, some)
    captions = ask.vlm.caption(ask.encoded, batch_size=BATCH_SIZE)
    figures["caption_classes"] = mean(
        classes_named(caption) == set(some)
        for caption, some in zip(captions, shown, strict=True)
        if some
    )
    figures["caption_exact"] = mean(
        caption == caption_of(scene) for caption, scene in zip(captions, scenes, strict=True)
    )
    lettered = [k for k, scene in enumerate(scenes) if scene.words]
    if lettered:
        texts = [scenes[k].text for k in lettered]
        read = ask.vlm.ocr([ask.encoded[k] for k in lettered], batch_size=BATCH_SIZE)
        words = [
            given == wanted
            for text, answer in zip(texts, read, strict=True)
            for wanted, given in _word_pairs(text, answer)
        ]
        figures["ocr_words"] = mean(words)
        figures["ocr_character_error"] = character_error_rate(texts, read)
    return figures


def classes_named(caption: str) -> set[str]:
    """The class names that a caption mentions, in singular or plural."""
    words = set(caption.replace(",", " ").split())
    return {label for label in LABELS if label in words or plural(label) in words}


def _word_pairs(text: str, answer: str) -> list[tuple[str, str]]:
    wanted = text.split()
    given = answer.split() + [""] * len(wanted)  # a word that was not read is wrong
    return list(zip(wanted, given[: len(wanted)], strict=True))


def _share_right(ask: _Asker, question: Callable[[str], str], wanted: dict[Any, Any]) -> float:
    if not wanted:
        return float("nan")
    answers: Answers = {}
    for label in LABELS:
        keys = [key for key in wanted if key[1] == label]
        if keys:
            pictures = [ask.encoded[scene] for scene, _ in keys]
            given = ask.vlm.answer(pictures, question(label), batch_size=BATCH_SIZE)
            answers |= dict(zip(keys, given, strict=True))
    return mean(answers[key] == wanted[key] for key in wanted)


def _box_figures(scenes: Sequence[Scene], found: Answers, kind: Any) -> dict[str, float]:
    dataset = read_coco(coco_instances(scenes))
    ids = {name: key for key, name in dataset.categories.items()}
    rows = [
        row
        for (scene, _), detections in found.items()
        for row in detections.deduplicated().to_coco(scene + 1, ids)
    ]
    stats = coco_scores(dataset, rows, kind).stats
    name = {"bbox": "box", "segm": "mask"}[kind]
    return {f"{name}_{stat}": stats[stat] or 0.0 for stat in ("AP", "AP50", "AP75")}


def _matched_iou(scenes: Sequence[Scene], masked: Answers) -> float:
    """Mean mask IoU of the true objects that a predicted box of their class meets (IoU ≥ 0.5)."""
    overlaps = []
    for (index, label), detections in masked.items():
        for item in scenes[index].objects:
            if item.label == label and len(detections):
                best, where = _best_box(item.box_xyxy, detections)
                if best >= 0.5 and detections.masks is not None:
                    overlaps.append(_mask_iou(item.mask, detections.masks[where]))
    return mean(overlaps) if overlaps else 0.0


def _best_box(box_xyxy: Sequence[float], detections: Detections) -> tuple[float, int]:
    overlaps = box_iou(np.array([box_xyxy]), detections.boxes_xyxy)[0]
    return float(overlaps.max()), int(overlaps.argmax())


def _mask_iou(truth: np.ndarray, given: np.ndarray) -> float:
    return float((truth & given).sum() / max(1, (truth | given).sum()))


def _absent(scene: Scene, rng: np.random.Generator, count: int) -> list[str]:
    present = {item.label for item in scene.objects}
    choices = [label for label in scene.known_labels if label not in present]
    return [str(label) for label in rng.permutation(choices)[:count]]


def main() -> None:
    from vlmtasks.demo.evaluate_photographs import evaluate_photographs  # it imports this module

    parser = argparse.ArgumentParser(description="Print the figures of a demo checkpoint as JSON.")
    parser.add_argument("--model", default="demo", help="checkpoint folder (the bundled one)")
    parser.add_argument("--split", choices=("val", "test"), default="val")
    parser.add_argument("--count", type=int, default=500, help="scenes a seed (500)")
    parser.add_argument("--seeds", type=int, nargs="*", default=[101], help="series of scenes")
    parser.add_argument("--photos", type=Path, help="folder that holds pets and coco-tiny")
    parser.add_argument("--out", type=Path, help="JSON file to write the figures to")
    options = parser.parse_args()
    vlm = load(options.model)
    report: dict[str, Any] = {"split": options.split, "count": options.count, "seeds": {}}
    for seed in options.seeds:
        scenes = [scene_at(seed, index, options.split) for index in range(options.count)]
        report["seeds"][str(seed)] = _rounded(evaluate_scenes(vlm, scenes, seed))
    if options.photos:
        part = "test" if options.split == "test" else "development"
        report["photographs"] = _rounded(evaluate_photographs(vlm, options.photos, part))
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}


if __name__ == "__main__":
    main()
