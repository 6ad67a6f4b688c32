"""Which score ranks best, are boxes between the bins better, do continued answers find more?

    python -m benchmarks.score_definitions [--model DIR] [--count 300] [--split test] [--chart FILE]

Held-out scenes of the demo world, by one command for any checkpoint that knows it. Every scene is
asked for the classes that it shows and for `--absent` classes that it does not (so that there is
something to be wrong about), one class a prompt and, again, all in one prompt. Each answer is
generated once and read with every definition.

Printed are COCO's AP by score, against constant scores; by kind of box; with continued answers and
non-maximum suppression; and the expected calibration error, before and after a calibration that was
fitted on other scenes (split "val"). `--chart` writes reliability diagrams as an SVG page.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vlmtasks.api import VLM, load
from vlmtasks.boxes import SizeWH
from vlmtasks.datasets.coco import CocoDataset
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.demo.scene_files import coco_instances
from vlmtasks.demo.scenes import Scene, scene_at
from vlmtasks.errors import InputError
from vlmtasks.evaluation.coco_ap import coco_scores
from vlmtasks.evaluation.matching import Thing, calibration_error, match, reliability
from vlmtasks.evaluation.report_charts import reliability_chart
from vlmtasks.finding import Finder, Names, find
from vlmtasks.generation import Generation
from vlmtasks.object_options import ObjectSettings
from vlmtasks.results import Detections
from vlmtasks.tasks import DETECT, SEGMENT
from vlmtasks.tasks.calibration import Calibration, fit_calibration
from vlmtasks.tasks.expected_boxes import REACH
from vlmtasks.tasks.reading import Reading
from vlmtasks.tasks.scores import SCORES

Prompts = Literal["each", "joined"]


@dataclass(frozen=True, eq=False)
class Answered:
    """One answer of the model with what was asked, to be read in several ways."""

    scene: int
    names: Names
    generation: Generation
    image_size: SizeWH


class Bench:
    """Scenes with their truth, and the answers of one checkpoint about them."""

    def __init__(self, vlm: VLM, split: str, seed: int, count: int, absent: int) -> None:
        self.vlm = vlm
        self.scenes = [scene_at(seed, index, split) for index in range(count)]  # type: ignore[arg-type]
        self.encoded = vlm.encode_image([scene.picture for scene in self.scenes], batch_size=32)
        self.dataset: CocoDataset = read_coco(coco_instances(self.scenes))
        self.ids = {name: key for key, name in self.dataset.categories.items()}
        rng = np.random.default_rng(seed)
        self.asked = [_classes(scene, rng, absent) for scene in self.scenes]

    def answers(self, task: str, prompts: Prompts, **options: Any) -> list[Answered]:
        """Every answer, generated once, with all that any reading needs."""
        read_task = DETECT if task == "detect" else SEGMENT
        answered: list[Answered] = []
        questions: dict[Names, list[int]] = {}
        for index, names in enumerate(self.asked):
            for group in [names] if prompts == "joined" else [(name,) for name in names]:
                questions.setdefault(group, []).append(index)
        for names, indices in questions.items():
            kept: list[tuple[Generation, SizeWH]] = []

            def read(
                generation: Generation, size: SizeWH, _: Names, __: Reading, kept: Any = kept
            ) -> Detections:
                kept.append((generation, size))
                return Detections(np.zeros((0, 4)), (), np.zeros(0), size)  # type: ignore[arg-type]

            settings = ObjectSettings.from_options(
                {"score": "product", "boxes": "expected", "batch_size": 32, **options}, read_task
            )
            find(
                lambda: self.vlm.engine,
                [self.encoded[index] for index in indices],
                names,
                Finder(read_task, task == "segment", read),
                settings,
            )
            answered += [
                Answered(index, names, *one) for index, one in zip(indices, kept, strict=True)
            ]
        return answered

    def read(self, answers: Sequence[Answered], task: str, reading: Reading) -> list[Detections]:
        """The answers as results."""
        common: dict[str, Any] = {
            "vocabulary": self.vlm.engine.vocabulary,
            "scale": self.vlm.box_scale,
            "reading": reading,
        }
        found = []
        for one in answers:
            more = {"image_size": one.image_size, "labels": one.names, **common}
            if task == "detect":
                found.append(DETECT.parse(one.generation, **more))
            else:
                found.append(SEGMENT.parse(one.generation, codec=self.vlm.mask_codec, **more))
        return [one.deduplicated() for one in found]

    def figures(
        self, answers: Sequence[Answered], found: Sequence[Detections], kind: Any
    ) -> dict[str, float]:
        """AP, AP50, AP75 and recall of results."""
        rows = [
            row
            for one, detections in zip(answers, found, strict=True)
            for row in detections.to_coco(one.scene + 1, self.ids)
        ]
        stats = coco_scores(self.dataset, rows, kind).stats
        return {name: stats[name] or 0.0 for name in ("AP", "AP50", "AP75", "AR_100")}

    def judged(
        self, answers: Sequence[Answered], found: Sequence[Detections]
    ) -> list[tuple[float, bool]]:
        """(score, right) of every detection; right: it meets an object at IoU 0.5."""
        pairs: list[tuple[float, bool]] = []
        for index, scene in enumerate(self.scenes):
            truths = [Thing(item.label, item.box_xyxy) for item in scene.objects]
            things = [
                Thing(thing.label, thing.box_xyxy, thing.score)
                for one, detections in zip(answers, found, strict=True)
                if one.scene == index
                for thing in detections
            ]
            right = {row for row, _ in match(truths, things).pairs}
            pairs += [(thing.score, row in right) for row, thing in enumerate(things)]
        return pairs


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--model", default="demo")
    parser.add_argument("--split", choices=("val", "test"), default="test")
    parser.add_argument("--count", type=int, default=300, help="scenes (300)")
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--absent", type=int, default=4, help="absent classes a scene (4)")
    parser.add_argument("--tasks", nargs="*", default=["detect", "segment"])
    parser.add_argument("--chart", type=Path, help="HTML file for reliability diagrams")
    options = parser.parse_args()
    vlm = load(options.model)
    held_out = Bench(vlm, options.split, options.seed, options.count, options.absent)
    other = Bench(vlm, "val", options.seed + 1, options.count, options.absent)
    charts: list[str] = []
    for task in options.tasks:
        for prompts in ("each", "joined"):
            print(f"\n{task}, one prompt {'a class' if prompts == 'each' else 'for all classes'}")
            answers = held_out.answers(task, prompts)
            for line in score_table(held_out, answers, task):
                print(line)
            if task == "detect":
                fitting = other.answers(task, prompts)
                for line, chart in calibration_table(held_out, other, answers, fitting):
                    print(line)
                    charts.append(f"<h2>{prompts}: {line}</h2>{chart}")
    print("\nmore objects: detect, one prompt a class")
    for line in recall_table(held_out):
        print(line)
    if options.chart:
        options.chart.write_text(_page(charts), encoding="utf-8")


def score_table(bench: Bench, answers: Sequence[Answered], task: str) -> Iterator[str]:
    """AP by score and by box; for segment of the masks."""
    kind = "bbox" if task == "detect" else "segm"

    def line(name: str, found: Sequence[Detections]) -> str:
        figures = bench.figures(answers, found, kind)
        return f"{name:<32}" + "".join(f"{k} {100 * v:6.2f}  " for k, v in figures.items())

    top = bench.read(answers, task, Reading())
    yield line("constant", [_constant(one) for one in top])
    for score in SCORES:
        if score != "mask" or task == "segment":
            yield line(score, bench.read(answers, task, Reading(score)))
    for score in ("loc", "product"):
        weighed = Reading(score, stop_ids=bench.vlm.engine.stop_ids)
        yield line(f"{score}, also of there being one", bench.read(answers, task, weighed))
    yield line("loc, nms 0.5", [one.without_overlaps(0.5) for one in top])
    yield line(
        f"loc, expected (±{REACH} bins)", bench.read(answers, task, Reading("loc", "expected"))
    )


def calibration_table(
    bench: Bench, other: Bench, answers: Sequence[Answered], fitting: Sequence[Answered]
) -> Iterator[tuple[str, str]]:
    """Expected calibration error by score, with the diagram after calibration."""
    for score in ("loc", "class", "product"):
        reading = Reading(score)
        raw = bench.judged(answers, bench.read(answers, "detect", reading))
        pairs = other.judged(fitting, other.read(fitting, "detect", reading))
        try:
            fitted: Calibration = fit_calibration(
                *(zip(*pairs, strict=True) if pairs else ((), ()))
            )
        except InputError as error:
            yield f"{score:<8} {error}", ""
            continue
        calibrated = [(fitted(value), is_right) for value, is_right in raw]
        before, after = (calibration_error(reliability(some)) or 0.0 for some in (raw, calibrated))
        text = (
            f"{score:<8} calibration error {before:.3f} → {after:.3f} with temperature "
            f"{fitted.temperature:.3f}, bias {fitted.bias:.3f}"
        )
        yield text, reliability_chart(reliability(calibrated))


def recall_table(bench: Bench) -> Iterator[str]:
    """Greedy answers against continued ones."""
    variants: dict[str, dict[str, Any]] = {"greedy": {}}
    variants |= {f"stop_score {value:g}": {"stop_score": value} for value in (0.1, 0.03, 0.01)}
    for name, options in variants.items():
        answers = bench.answers("detect", "each", score="loc", **options)
        weighed = Reading("loc", stop_ids=bench.vlm.engine.stop_ids)
        plain = bench.read(answers, "detect", weighed)
        for change, reduce in _changes():
            figures = bench.figures(answers, [reduce(one) for one in plain], "bbox")
            yield f"{name + change:<32}" + "".join(
                f"{k} {100 * v:6.2f}  " for k, v in figures.items()
            )


def _changes() -> list[tuple[str, Callable[[Detections], Detections]]]:
    return [
        (", constant scores", _constant),
        ("", lambda found: found),
        (", nms 0.5", lambda found: found.without_overlaps(0.5)),
    ]


def _constant(found: Detections) -> Detections:
    return replace(found, scores=np.ones(len(found), np.float32))


def _classes(scene: Scene, rng: np.random.Generator, absent: int) -> Names:
    """The classes that a scene shows, and some that it does not."""
    shown = dict.fromkeys(item.label for item in scene.objects)
    others = [label for label in scene.known_labels if label not in shown]
    return (*shown, *(str(label) for label in rng.permutation(others)[:absent]))


def _page(charts: Sequence[str]) -> str:
    style = (Path(__file__).parent.parent / "vlmtasks/evaluation/report.css").read_text("utf-8")
    return f"<!doctype html><meta charset=utf-8><style>{style}</style>{''.join(charts)}\n"


if __name__ == "__main__":
    main()
