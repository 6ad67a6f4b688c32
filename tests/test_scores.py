"""What scores are made of, boxes between the bins, calibration."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stub_engine import StubEngine
from tiny_checkpoints import tiny_picture
from word_vocabulary import WordVocabulary

from vlmtasks.api import VLM, load
from vlmtasks.errors import CheckpointError, InputError
from vlmtasks.generation import Generation, TopLogprobs
from vlmtasks.tasks import DETECT, SEGMENT
from vlmtasks.tasks.calibration import Calibration, fit_calibration
from vlmtasks.tasks.expected_boxes import REACH, expected_bins
from vlmtasks.tasks.reading import Reading
from vlmtasks.tasks.scores import SCORES, begin_probability, record_score
from vlmtasks.tokens import parse_objects

WORDS = WordVocabulary(" cat", " dog", " stop", " sign")
LOCS = WORDS.locs(100, 200, 300, 400)
SEGS = WORDS.segs(*range(16))
SIZE = (1024, 1024)


def answer(*parts: tuple[list[int], float], top: tuple[TopLogprobs, ...] = ()) -> Generation:
    """A generation of (ids, probability of each) parts."""
    ids = tuple(token_id for part, _ in parts for token_id in part)
    logprobs = tuple(math.log(p) for part, p in parts for _ in part)
    return Generation(WORDS.decode(ids), ids, logprobs, "stop", top)


def score(generation: Generation, name: Any, index: int = 0) -> float:
    records = parse_objects(generation.token_ids, SIZE, vocabulary=WORDS)
    return record_score(generation, records[index], WORDS, name)


# --- definitions ---------------------------------------------------------------------------------

BOX = answer((LOCS[:2], 0.9), (LOCS[2:], 0.4), (WORDS.ids(" stop", " sign"), 0.5))
MASK = answer((LOCS, 0.5), (SEGS[:8], 0.9), (SEGS[8:], 0.1), (WORDS.ids(" cat"), 0.8))
SECOND = answer(
    (LOCS, 0.1), (WORDS.ids(" dog"), 0.1), (WORDS.ids(" ;"), 0.1), (LOCS, 0.7),
    (WORDS.ids(" cat"), 0.6),
)  # fmt: skip


@pytest.mark.parametrize(
    ("generation", "index", "name", "expected"),
    [
        pytest.param(BOX, 0, "loc", math.sqrt(0.9 * 0.4), id="box-loc"),
        pytest.param(BOX, 0, "class", 0.25, id="box-class"),
        pytest.param(BOX, 0, "mask", math.sqrt(0.9 * 0.4), id="box-mask"),
        pytest.param(BOX, 0, "product", math.sqrt(0.9 * 0.4) * 0.25, id="box-product"),
        pytest.param(MASK, 0, "loc", 0.5, id="mask-loc"),
        pytest.param(MASK, 0, "class", 0.8, id="mask-class"),
        pytest.param(MASK, 0, "mask", math.sqrt(0.9 * 0.1), id="mask-mask"),
        pytest.param(MASK, 0, "product", 0.5 * 0.8 * 0.3, id="mask-product"),
        pytest.param(SECOND, 1, "loc", 0.7, id="second-loc"),
        pytest.param(SECOND, 1, "class", 0.6, id="second-class"),
    ],
)
def test_definition(generation: Generation, index: int, name: str, expected: float) -> None:
    assert score(generation, name, index) == pytest.approx(expected)


@pytest.mark.parametrize("name", SCORES)
def test_score_is_one_without_probabilities_and_never_more(name: str) -> None:
    bare = Generation("", tuple(LOCS), (), "stop")
    assert score(bare, name) == 1.0
    assert score(answer((LOCS, 1.0 + 1e-12), (WORDS.ids(" cat"), 1.0)), name) == 1.0


def test_unnamed_object_has_the_class_score_one() -> None:
    assert score(answer((LOCS, 0.5)), "class") == 1.0


@pytest.mark.parametrize("name", SCORES)
def test_verbs_take_the_score(name: Any) -> None:
    vlm = VLM(StubEngine("<loc0001><loc0002><loc0003><loc0004> cat"))
    (thing,) = vlm.detect(np.zeros((9, 9, 3), np.uint8), "cat", score=name)
    loc, letters = math.exp(-0.5), math.exp(-0.5 * 4)
    expected = {"loc": loc, "class": letters, "mask": loc, "product": loc * letters}
    assert thing.score == pytest.approx(expected[name])


def test_unknown_score_is_told() -> None:
    with pytest.raises(InputError, match="score is 'iou'; it must be one of loc, class, mask, pro"):
        VLM(StubEngine()).detect("no such file", "cat", score="iou")  # type: ignore[arg-type]


def test_scores_of_a_batch_are_those_of_single_pictures(tiny_checkpoint: Path) -> None:
    vlm = load(tiny_checkpoint, device="cpu")
    pictures = [tiny_picture(seed) for seed in range(3)]
    options: dict[str, Any] = {"score": "product", "max_new_tokens": 30}
    together = vlm.detect(pictures, ["cat", "dog"], **options)
    for picture, both in zip(pictures, together, strict=True):
        alone = vlm.detect(picture, ["cat", "dog"], **options)
        assert alone.labels == both.labels
        np.testing.assert_allclose(alone.scores, both.scores, rtol=1e-3)


# --- is there an object at all? ------------------------------------------------------------------


def test_begin_is_the_probability_of_the_separator() -> None:
    assert begin_probability(SECOND, 5, 6, [1]) == pytest.approx(0.1)


def test_begin_of_the_first_object_is_what_the_end_leaves() -> None:
    top = (((LOCS[0], math.log(0.5)), (1, math.log(0.3)), (2, math.log(0.1))),)
    generation = answer((LOCS, 0.5), top=top)
    assert begin_probability(generation, 0, 0, [1, 2]) == pytest.approx(0.6)
    assert begin_probability(answer((LOCS, 0.5)), 0, 0, [1, 2]) == 1.0


def test_reading_weighs_scores_by_the_begin() -> None:
    reading = Reading(stop_ids=frozenset({1}))
    found = DETECT.parse(SECOND, image_size=SIZE, vocabulary=WORDS, reading=reading)
    assert found.scores.tolist() == pytest.approx([0.1, 0.1 * 0.7])


# --- boxes between the bins ----------------------------------------------------------------------


def near(*bins_and_shares: tuple[int, float]) -> TopLogprobs:
    return tuple((WORDS.loc_start + number, math.log(p)) for number, p in bins_and_shares)


SURE = [near((number, 1.0)) for number in (100, 200, 300, 400)]


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        pytest.param([], (100, 200, 300, 400), id="no distribution"),
        pytest.param(SURE, (100, 200, 300, 400), id="sure"),
        pytest.param(
            [near((100, 0.5), (104, 0.25), (98, 0.25)), *SURE[1:]], (100.5, 200, 300, 400), id="y"
        ),
        pytest.param(
            [*SURE[:3], near((400, 0.3), (401, 0.1), (400 + REACH + 1, 0.6))],
            (100, 200, 300, 400.25),
            id="another object is too far",
        ),
        pytest.param(
            [((1, math.log(0.5)), *near((100, 0.4), (101, 0.1))), *SURE[1:]],
            (100.2, 200, 300, 400),
            id="the end is no bin",
        ),
    ],
)
def test_expected_bins(top: list[TopLogprobs], expected: tuple[float, ...]) -> None:
    generation = answer((LOCS, 0.5), top=tuple(top))
    (record,) = parse_objects(generation.token_ids, SIZE, vocabulary=WORDS)
    assert expected_bins(generation, record, WORDS) == pytest.approx(expected)


def test_expected_box_is_never_reversed() -> None:
    locs = WORDS.locs(100, 200, 102, 400)
    top = (near((100, 0.4), (110, 0.6)), SURE[1], near((102, 0.5), (90, 0.5)), SURE[3])
    generation = answer((locs, 0.5), top=top)
    (record,) = parse_objects(generation.token_ids, SIZE, vocabulary=WORDS)
    assert expected_bins(generation, record, WORDS) == (100, 200, 102, 400)


@pytest.mark.parametrize("task", [DETECT, SEGMENT], ids=["detect", "segment"])
def test_result_has_expected_boxes_and_masks_in_them(task: Any) -> None:
    class Full:
        def decode(self, codes: Any) -> np.ndarray:
            return np.ones((len(codes), 64, 64), np.float32)

    top = (near((100, 0.5), (104, 0.5)), *SURE[1:], *[()] * 17)
    generation = answer((LOCS, 0.5), (SEGS, 0.5), (WORDS.ids(" cat"), 1.0), top=top)
    more = {"codec": Full()} if task is SEGMENT else {}
    found = task.parse(
        generation,
        image_size=SIZE,
        vocabulary=WORDS,
        reading=Reading(boxes="expected"),
        **more,
    )
    assert found.boxes_xyxy.tolist() == [[200, 102, 400, 300]]
    assert task is DETECT or found.masks.area(0) == 200 * 198


def test_verb_asks_the_engine_for_the_distribution(tiny_checkpoint: Path) -> None:
    vlm = load(tiny_checkpoint, device="cpu")
    options: dict[str, Any] = {"max_new_tokens": 30}
    top = vlm.detect(tiny_picture(), "cat", **options)
    between = vlm.detect(tiny_picture(), "cat", boxes="expected", **options)
    assert top.text == between.text
    assert len(top) and (top.boxes_xyxy != between.boxes_xyxy).any()
    reach = np.array([50, 40, 50, 40]) * REACH / 1024
    assert (np.abs(top.boxes_xyxy - between.boxes_xyxy) <= reach + 1e-4).all()


def test_unknown_kind_of_box_is_told() -> None:
    with pytest.raises(InputError, match="boxes is 'mean'; it must be one of top, expected"):
        Reading(boxes="mean")  # type: ignore[arg-type]


# --- calibration ---------------------------------------------------------------------------------


def test_calibration_keeps_the_order_and_the_range() -> None:
    calibrate = Calibration(0.5, 1.0)
    scores = [calibrate(score) for score in (0.0, 0.01, 0.3, 0.5, 0.9, 1.0)]
    assert scores == sorted(scores)
    assert all(0 <= one <= 1 for one in scores)
    assert Calibration()(0.3) == pytest.approx(0.3)
    assert calibrate(0.5) == pytest.approx(1 / (1 + math.exp(-1)))


def test_fit_finds_what_the_labels_were_drawn_from() -> None:
    rng = np.random.default_rng(0)
    scores = rng.uniform(0.01, 0.99, 40_000)
    truth = Calibration(0.7, 1.5)
    right = rng.random(len(scores)) < [truth(score) for score in scores]
    fitted = fit_calibration(scores.tolist(), right.tolist())
    assert fitted.temperature == pytest.approx(0.7, rel=0.05)
    assert fitted.bias == pytest.approx(1.5, abs=0.06)


@pytest.mark.parametrize(
    ("scores", "right", "message"),
    [
        pytest.param([], [], "right and of wrong", id="nothing"),
        pytest.param([0.1, 0.2], [True, True], "right and of wrong", id="all right"),
        pytest.param([0.1, 0.9] * 5, [True, False] * 5, "no higher for right", id="upside down"),
    ],
)
def test_fit_refuses(scores: list[float], right: list[bool], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_calibration(scores, right)


def calibrated(content: Any) -> VLM:
    answer = "<loc0001><loc0002><loc0003><loc0004> cat"
    return VLM(StubEngine(answer, metadata={"calibration": content}))


def detect_score(vlm: VLM, **options: Any) -> float:
    return vlm.detect(np.zeros((9, 9, 3), np.uint8), "cat", **options)[0].score


def test_checkpoint_calibrates_its_scores() -> None:
    vlm = calibrated({"detect": {"loc": {"temperature": 0.5, "bias": 1.0}}})
    raw = math.exp(-0.5)
    assert detect_score(vlm) == pytest.approx(Calibration(0.5, 1.0)(raw))
    assert detect_score(vlm, calibrate=False) == pytest.approx(raw)
    assert detect_score(vlm, score="class") == pytest.approx(math.exp(-2))


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"temperature": 0, "bias": 1}, id="zero"),
        pytest.param({"temperature": "hot", "bias": 1}, id="words"),
        pytest.param({"temperature": 1}, id="no bias"),
        pytest.param({"temperature": 1, "bias": math.inf}, id="infinite"),
        pytest.param({"temperature": 1, "bias": 10**400}, id="too large for a float"),
        pytest.param([1, 2], id="list"),
    ],
)
def test_wrong_calibration_is_told(entry: Any) -> None:
    with pytest.raises(CheckpointError, match="the calibration of detect by loc is"):
        detect_score(calibrated({"detect": {"loc": entry}}))


def test_calibration_of_another_shape_is_told() -> None:
    with pytest.raises(CheckpointError, match=r"vlmtasks\.json"):
        detect_score(calibrated([json.dumps({})]))
