"""What `vlmtasks eval …` does: find the data, ask or read predictions, score, write the files.

A run writes into its folder
    predictions.jsonl   the answers as they come; a run that was killed goes on from here
    results.json        COCO results (detect and segment)
    scores.json         figures, by class where there are classes, and the stamp
    report.html         a page to look at (detect and segment)
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from vlmtasks.datasets.coco import CocoDataset
from vlmtasks.datasets.coco_reader import read_coco
from vlmtasks.datasets.coco_results import read_results, write_results
from vlmtasks.datasets.detection_jsonl import read_detection_jsonl
from vlmtasks.datasets.folder import picture_size
from vlmtasks.datasets.json_files import write_json
from vlmtasks.datasets.paths import find_pictures
from vlmtasks.errors import DatasetError, InputError
from vlmtasks.evaluation import coco_task, oracle, text_items, text_task
from vlmtasks.evaluation.coco_ap import CocoScores, coco_scores
from vlmtasks.evaluation.coco_report import coco_report
from vlmtasks.evaluation.report import write_report
from vlmtasks.evaluation.run import read_predictions, run_predictions
from vlmtasks.evaluation.stamp import (
    checkpoint_hash,
    file_hash,
    make_stamp,
    versions,
    where_and_what,
)
from vlmtasks.tasks import TASKS

if TYPE_CHECKING:
    from vlmtasks.api import VLM

FINE, SOME_FAILED = 0, 1


@dataclass(frozen=True)
class Common:
    """The options of every evaluation.

    command: the command line without what changes no figure. load: gives the model; it is not
    called when no model is needed.
    """

    command: str
    load: "Callable[[], VLM]"
    source: str
    out: Path
    batch_size: int = 8
    max_new_tokens: int | None = None
    limit: int | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit is {self.limit}; it must be at least 1")


@dataclass(frozen=True)
class CocoOptions:
    """What `vlmtasks eval coco` is asked. predictions: score this file rather than a model."""

    annotations: Path
    images: Path | None
    task: coco_task.Task = "detect"
    classes: coco_task.Classes = "all"
    prompts: coco_task.Prompts = "each"
    deduplicate: bool = True
    backend: Any = "pycocotools"
    predictions: Path | None = None


def evaluate_coco(common: Common, options: CocoOptions) -> int:
    """Detection or segmentation on a COCO instances file. Returns the exit status."""
    dataset = _read_dataset(options)
    if options.predictions is not None and options.predictions.suffix.lower() == ".json":
        return _score_foreign_results(common, options, dataset)
    if options.predictions is not None:
        head, records = read_predictions(options.predictions)
    else:
        head, records = _run_coco(common, options, dataset)
    outcome = coco_task.score(
        dataset,
        records[: common.limit],
        options.task,
        deduplicate=options.deduplicate,
        backend=options.backend,
    )
    stamp = make_stamp(common.command, {**_protocol(head), **_scoring(options)}, head)
    common.out.mkdir(parents=True, exist_ok=True)
    write_results(common.out / "results.json", outcome.results)
    counts = {"pictures": len(records[: common.limit]), "failed": len(outcome.failed)}
    _write_scores(common.out, outcome.scores, counts, outcome.notes, stamp)
    write_report(
        common.out / "report.html",
        coco_report(dataset, outcome, options.task, stamp, options.images),
    )
    _tell(outcome.scores, outcome.notes, common.out)
    return SOME_FAILED if outcome.failed else FINE


def show_oracle(common: Common, options: CocoOptions, scale: int, codec_path: Path | None) -> int:
    """Print what the tokens can reach on a data set, as a table; no model takes part."""
    dataset = _read_dataset(options)
    if common.limit is not None:
        dataset = dataset.subset(list(dataset.images)[: common.limit])
    backend = options.backend
    rows = [oracle.oracle_boxes(dataset, scale=scale, backend=backend)]
    if options.task == "segment":
        whole = oracle.UncompressedCodec()
        rows.append(
            oracle.oracle_masks(dataset, whole, "masks, 64×64", scale=scale, backend=backend)
        )
        codec = _load_codec(codec_path)
        rows.append(
            oracle.oracle_masks(dataset, codec, "masks, 16 codes", scale=scale, backend=backend)
        )
    print(oracle.oracle_table(rows))
    figures = {
        row.name: {**row.scores.stats, "mask_iou": row.mask_iou, "by_size": row.mask_iou_by_size}
        for row in rows
    }
    common.out.mkdir(parents=True, exist_ok=True)
    stamp = make_stamp(common.command, {"oracle": True, "box scale": scale}, {})
    write_json(common.out / "oracle.json", {"scores": figures, "stamp": stamp})
    return FINE


@dataclass(frozen=True)
class TextOptions:
    """What a text evaluation is asked.

    benchmark: "captions", "vqa", "ocr", "spotting" or "refcoco". prompt: with {} for the words.
    metric, lower: of vqa. questions, image_name: of VQA v2. meteor: of captions.
    scale: of refcoco and spotting; None for the checkpoint's own.
    """

    benchmark: str
    annotations: Path
    images: Path
    prompt: str
    predictions: Path | None = None
    metric: str = "vqa"
    lower: bool = False
    questions: Path | None = None
    image_name: str = "COCO_val2014_{:012d}.jpg"
    meteor: bool = False
    scale: int | None = None
    mask_codec: Path | None = None


def evaluate_text(common: Common, options: TextOptions) -> int:
    """Captions, answers, read text or referring masks. Returns the exit status."""
    items = _text_items(options)[: common.limit]
    paths = find_pictures(options.images, (item.image for item in items))
    if options.predictions is not None:
        head, records = read_predictions(options.predictions)
        _check_ids(items, records, options.predictions)
    else:
        head, records = _run_text(common, options, items, paths)
    records = records[: len(items)]
    figures = _score_text(options, _protocol(head), items, records, paths)
    failed = [record for record in records if "error" in record]
    notes = (
        [f"{len(failed)} pictures could not be read or asked about: {failed[0]['error']}"]
        if failed
        else []
    )
    common.out.mkdir(parents=True, exist_ok=True)
    protocol = {**_protocol(head), "metric": _metric(options)}
    stamp = make_stamp(common.command, protocol, head)
    counts = {"questions": len(records), "failed": len(failed)}
    report = {"scores": figures, "counts": counts, "notes": notes, "stamp": stamp}
    write_json(common.out / "scores.json", report)
    for name, value in figures.items():
        print(f"{name:<16} {_plain(value)}")
    _say_notes(notes, common.out)
    return SOME_FAILED if failed else FINE


def _read_dataset(options: CocoOptions) -> CocoDataset:
    """A COCO file, or a .jsonl of training examples."""
    if options.annotations.suffix.lower() not in (".jsonl", ".ndjson"):
        return read_coco(options.annotations)
    if options.images is None:
        raise InputError("images is missing; examples in .jsonl need the pictures, --images DIR")
    return read_detection_jsonl(options.annotations, options.images)


# --- running -------------------------------------------------------------------------------------


def _run_coco(
    common: Common, options: CocoOptions, dataset: CocoDataset
) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    if options.images is None:
        raise InputError("images is missing; give the folder of the pictures, --images DIR")
    items = coco_task.plan(dataset, options.images, options.classes, limit=common.limit)
    vlm = common.load()
    protocol = coco_task.protocol(options.task, options.classes, options.prompts)
    protocol |= {"log-probabilities": vlm.engine.score_definition, "box scale": vlm.box_scale}
    extra = {} if common.max_new_tokens is None else {"max_new_tokens": common.max_new_tokens}
    head = _head(common, vlm, options.annotations, {**protocol, **extra})
    if options.task == "segment":
        head["checkpoint"]["mask codec"] = vlm.mask_codec.fingerprint
    return _run(
        common,
        items,
        lambda batch: coco_task.ask(
            vlm, batch, options.task, options.prompts, batch_size=common.batch_size, **extra
        ),
        lambda item: item.image.id,
        head,
    )


def _run_text(
    common: Common,
    options: TextOptions,
    items: Sequence[text_items.TextItem],
    paths: Mapping[str, Path],
) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    for item in items:
        text_task.fill_prompt(options.prompt, item.words)  # or its error, before a model is loaded
    if options.benchmark == "vqa":
        text_task.check_vqa_truths(items, options.metric)
    vlm = common.load()
    longest = common.max_new_tokens or TASKS[_TASK_OF[options.benchmark]].max_new_tokens
    scale = options.scale or vlm.engine.metadata.get("box_scale", _DEFAULT_SCALE[options.benchmark])
    protocol = {"task": options.benchmark, "prompt": options.prompt, "decoding": "greedy"}
    head = _head(
        common,
        vlm,
        options.annotations,
        {**protocol, "max_new_tokens": longest, "box scale": scale},
    )
    return _run(
        common,
        [(item, paths[item.image]) for item in items],
        lambda batch: text_task.ask_texts(
            vlm, batch, options.prompt, batch_size=common.batch_size, max_new_tokens=longest
        ),
        lambda pair: pair[0].id,
        head,
    )


def _head(
    common: Common, vlm: "VLM", annotations: Path, protocol: Mapping[str, Any]
) -> dict[str, Any]:
    folder = vlm.engine.folder
    return {
        "protocol": dict(protocol),
        "checkpoint": {"source": common.source, "sha256": checkpoint_hash(folder)},
        "data": {"annotations": annotations.name, "sha256": file_hash(annotations)},
        "versions": versions(),
    }


def _run(
    common: Common,
    items: Sequence[Any],
    ask: Callable[[Sequence[Any]], Sequence[Mapping[str, Any]]],
    item_id: Callable[[Any], int | str],
    head: Mapping[str, Any],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    hidden = True if common.quiet else None  # None: hidden where stderr is no terminal
    with tqdm(total=len(items), unit="picture", disable=hidden, file=sys.stderr) as bar:
        return run_predictions(
            common.out / "predictions.jsonl",
            items,
            ask,
            item_id=item_id,
            head=head,
            note=where_and_what(),
            batch_size=common.batch_size,
            report=lambda done: bar.update(done - bar.n),
        )


# --- scoring -------------------------------------------------------------------------------------


def _score_foreign_results(common: Common, options: CocoOptions, dataset: CocoDataset) -> int:
    """COCO results of any tool: figures without report, since the answers are not known."""
    assert options.predictions is not None
    results = read_results(options.predictions, dataset)
    ids = list(dataset.images)[: common.limit]
    kinds = ("bbox",) if options.task == "detect" else ("bbox", "segm")
    scores = [
        coco_scores(dataset, results, kind, image_ids=ids, backend=options.backend)  # type: ignore[arg-type]
        for kind in kinds
    ]
    protocol = {"task": options.task, "results": options.predictions.name, **_scoring(options)}
    stamp = make_stamp(common.command, protocol, {})
    common.out.mkdir(parents=True, exist_ok=True)
    _write_scores(common.out, scores, {"pictures": len(ids), "failed": 0}, [], stamp)
    _tell(scores, [], common.out)
    return FINE


def _scoring(options: CocoOptions) -> dict[str, Any]:
    repetitions = "dropped" if options.deduplicate else "kept"
    return {"exact repetitions": repetitions, "scored by": options.backend}


def _text_items(options: TextOptions) -> list[text_items.TextItem]:
    if options.benchmark == "captions":
        return text_items.read_caption_items(options.annotations)
    if options.benchmark == "vqa":
        return text_items.read_vqa_items(options.annotations, options.questions, options.image_name)
    if options.benchmark == "ocr":
        return text_items.read_ocr_items(options.annotations)
    if options.benchmark == "spotting":
        return text_items.read_spotting_items(options.annotations)
    return text_items.read_referring_items(options.annotations, options.images)


def _score_text(
    options: TextOptions,
    protocol: Mapping[str, Any],
    items: Sequence[text_items.TextItem],
    records: Sequence[Mapping[str, Any]],
    paths: Mapping[str, Path],
) -> dict[str, Any]:
    if options.benchmark == "captions":
        return text_task.score_caption_records(items, records, meteor=options.meteor)
    if options.benchmark == "vqa":
        return text_task.score_vqa_records(
            items, records, metric=options.metric, lower=options.lower
        )
    if options.benchmark == "ocr":
        return text_task.score_ocr_records(items, records)
    scale = options.scale or protocol.get("box scale", _DEFAULT_SCALE[options.benchmark])
    if options.benchmark == "spotting":
        sizes = [picture_size(paths[item.image]) for item in items]
        return text_task.score_spotting_records(items, records, sizes, scale=scale)
    codec = _load_codec(options.mask_codec)
    return text_task.score_referring_records(items, records, codec, scale=scale)


def _check_ids(
    items: Sequence[text_items.TextItem], records: Sequence[Mapping[str, Any]], place: Path
) -> None:
    if [item.id for item in items] != [record.get("id") for record in records[: len(items)]]:
        raise InputError(
            f"{place} holds predictions for other examples than the annotations; give the "
            "annotations that the run was made with, or --limit for a run that was not finished"
        )


def _load_codec(path: Path | None) -> Any:
    from vqvae import CodecError, MaskCodec

    try:
        return MaskCodec.load(path)
    except CodecError as error:
        raise InputError(str(error)) from None


def _metric(options: TextOptions) -> str:
    if options.benchmark != "vqa":
        return options.benchmark
    return options.metric + (", lower-cased" if options.lower else "")


_TASK_OF = {
    "captions": "caption",
    "vqa": "answer",
    "ocr": "ocr",
    "spotting": "detect",
    "refcoco": "segment",
}
_DEFAULT_SCALE = {"captions": 1024, "vqa": 1024, "ocr": 1024, "spotting": 1024, "refcoco": 1023}


def _protocol(head: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the predictions were made; {} where their file does not say."""
    found = head.get("protocol", {})
    if not isinstance(found, Mapping):
        raise DatasetError(
            f"the protocol of the predictions is {found!r:.80}; it must be an object"
        )
    return found


# --- telling -------------------------------------------------------------------------------------


def _write_scores(
    out: Path,
    scores: Sequence[CocoScores],
    counts: Mapping[str, int],
    notes: Sequence[str],
    stamp: Mapping[str, Any],
) -> None:
    write_json(
        out / "scores.json",
        {
            "scores": {one.kind: one.stats for one in scores},
            "classes": {
                one.kind: {entry.name: asdict(entry) for entry in one.classes.values()}
                for one in scores
            },
            "counts": dict(counts),
            "notes": list(notes),
            "stamp": dict(stamp),
        },
    )


def _tell(scores: Sequence[CocoScores], notes: Sequence[str], out: Path) -> None:
    for one in scores:
        print(one.table())
    _say_notes(notes, out)


def _say_notes(notes: Sequence[str], out: Path) -> None:
    for line in [*notes, f"written to {out}"]:
        print(line, file=sys.stderr)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return "n/a" if value is None else str(value)
