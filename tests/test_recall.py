"""More objects than a model names by itself, and none of them twice; many classes in one call."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scripted_network import ScriptedNetwork
from stub_engine import StubEngine
from tiny_checkpoints import tiny_picture

from vlmtasks.api import VLM, load
from vlmtasks.boxes import box_iou
from vlmtasks.continuation import TOP_LOGPROBS, ContinuedConstraint
from vlmtasks.demo.tokenizer import build_tokenizer
from vlmtasks.engine.decoding import Answer, decode_steps
from vlmtasks.engine.decoding_options import DecodingOptions
from vlmtasks.engine.prompt_ids import pad_ids
from vlmtasks.engine.token_choice import TokenLimits
from vlmtasks.engine.tokenizer import Tokenizer
from vlmtasks.errors import ImageError, InputError
from vlmtasks.generation import Generation
from vlmtasks.grammar import ObjectGrammar
from vlmtasks.results import Detections, Removed
from vlmtasks.tasks.reading import Reading
from vlmtasks.tokens import parse_objects

TOKENS = Tokenizer(build_tokenizer())
EOS = TOKENS.eos_id
SIZE = (640, 480)
BOXES = ("<loc0256><loc0128><loc0768><loc0512>", "<loc0000><loc0000><loc0512><loc1023>")


def picture(size: tuple[int, int] = SIZE) -> Image.Image:
    return Image.new("RGB", size, "red")


# --- continued answers ---------------------------------------------------------------------------


def ids_of(*boxes: tuple[int, ...]) -> list[int]:
    """A list of cats."""
    ids: list[int] = []
    for box in boxes:
        ids += TOKENS.encode(" ; ") if ids else []
        ids += [TOKENS.loc_start + number for number in box] + TOKENS.encode(" cat")
    return ids


def continued(
    boxes: Sequence[tuple[int, ...]],
    certainty: Sequence[float],
    stop_score: float,
    *,
    ends_after: int = 1,
    max_objects: int = 9,
    limit: int = 60,
) -> Answer:
    """The answer of a network that would end after some boxes, and is then less and less sure.

    certainty: the score that the bins of each box get above all others.
    """
    ids = ids_of(*boxes)
    starts = [len(ids_of(*boxes[: n + 1])) - 5 for n in range(len(boxes))]

    def scores(_: int, tokens: tuple[int, ...]) -> list[float]:
        logits = np.zeros(TOKENS.size)
        place = len(tokens)
        which = max((n for n, start in enumerate(starts) if start <= place), default=0)
        if place < len(ids):
            is_bin = ids[place] - TOKENS.loc_start in range(1024)
            logits[ids[place]] = certainty[which] if is_bin else 9.0
        if place >= len(ids_of(*boxes[:ends_after])):
            logits[EOS] = 10.0
        return logits.tolist()

    grammar = ObjectGrammar(["cat"], TOKENS, [EOS])
    rules = ContinuedConstraint(
        grammar.constraint(limit),
        TOKENS,
        Reading(stop_ids=frozenset({EOS})),
        stop_score,
        max_objects,
    )
    limits = TokenLimits(frozenset({EOS}), torch.ones(TOKENS.size, dtype=torch.bool))
    options = DecodingOptions(limit, raw_logprobs=False, top_logprobs=TOP_LOGPROBS)
    answer = Answer()
    prompt = pad_ids([[2]], 0, "cpu")
    for (step,) in decode_steps(ScriptedNetwork(scores), prompt, [], options, limits, [rules]):
        answer.add(step)
        rules.add(step)
    return answer


THREE = [(1, 2, 30, 40), (5, 6, 70, 80), (9, 9, 99, 99)]


def named(answer: Answer) -> list[tuple[int, ...]]:
    records = parse_objects(answer.token_ids, (9, 9), vocabulary=TOKENS)
    assert not any(record.problem for record in records)
    return [record.loc_yxyx for record in records]


@pytest.mark.parametrize(
    ("stop_score", "count"),
    [
        pytest.param(0.999, 1, id="the first is not enough"),
        pytest.param(0.5, 2, id="the second is below"),
        pytest.param(0.01, 3, id="the third is below"),
    ],
)
def test_answer_goes_on_until_a_score_is_too_low(stop_score: float, count: int) -> None:
    answer = continued(THREE, (12.0, 6.0, 1.0), stop_score)
    assert named(answer) == THREE[:count]
    assert answer.finish_reason == "stop"


def test_answer_that_is_not_continued_ends_where_the_model_wants() -> None:
    assert named(continued(THREE, (12.0, 12.0, 12.0), 1.0)) == THREE[:1]


def test_answer_ends_at_the_most_objects() -> None:
    answer = continued(THREE, (12.0,) * 3, 0.0, max_objects=2)
    assert named(answer) == THREE[:2]


def test_answer_ends_when_it_repeats_itself() -> None:
    boxes = [THREE[0], THREE[1], THREE[0], THREE[2]]
    assert named(continued(boxes, (12.0,) * 4, 0.0)) == boxes[:3]


def test_answer_begins_although_the_model_would_say_nothing() -> None:
    answer = continued(THREE, (12.0, 12.0, 12.0), 0.9, ends_after=0)
    assert named(answer) == THREE[:1]


def test_continued_answer_stays_within_its_length() -> None:
    answer = continued(THREE, (12.0,) * 3, 0.0, limit=14)
    assert named(answer) == THREE[:2]


def test_scores_count_how_sure_the_model_was_of_one_more() -> None:
    answer = continued(THREE, (12.0,) * 3, 0.0, max_objects=2)
    reading = Reading(stop_ids=frozenset({EOS}))
    generation = Generation(
        "", tuple(answer.token_ids), tuple(answer.logprobs), "stop", tuple(answer.top_logprobs)
    )
    records = parse_objects(generation.token_ids, (9, 9), vocabulary=TOKENS)
    first, second = reading.scores(generation, records, TOKENS)
    assert first > 0.9
    assert second == pytest.approx(math.exp(9) / (math.exp(9) + math.exp(10)), abs=0.05)


def test_verb_continues_on_a_network(tiny_checkpoint: Path) -> None:
    vlm = load(tiny_checkpoint, device="cpu")
    options: dict[str, Any] = {"max_new_tokens": 90}
    plain = vlm.detect([tiny_picture(1), tiny_picture(2)], "cat", **options)
    more = vlm.detect(
        [tiny_picture(1), tiny_picture(2)], "cat", stop_score=0.0, max_objects=7, **options
    )
    for one, other in zip(plain, more, strict=True):
        assert not other.dropped
        assert len(other) + len(other.removed) >= len(one) + len(one.removed)
        assert len(other) + len(other.removed) == 7 or other.removed


def test_objects_below_the_stop_score_are_removed_and_told() -> None:
    engine = StubEngine(f"{BOXES[0]} cat ; {BOXES[1]} cat")  # every token has exp(-0.5) = 0.61
    found = VLM(engine).detect(picture(), "cat", stop_score=0.5)
    assert len(found) == 1  # the second also pays for its separator
    assert [gone.reason for gone in found.removed] == ["low score"]
    assert engine.keywords[0]["top_logprobs"] == TOP_LOGPROBS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_score": 1.5}, "stop_score is 1.5"),
        ({"stop_score": 0.1, "constrain": False}, "need the grammar"),
        ({"stop_score": 0.1, "num_beams": 2}, "stop_score follows a single answer"),
        (
            {"stop_score": 0.1, "best_of": 2, "temperature": 1.0},
            "stop_score follows a single answer",
        ),
        ({"boxes": "expected", "num_beams": 2}, 'boxes="expected" follows a single answer'),
        ({"max_objects": 0}, "max_objects is 0"),
        ({"recipe": "joy"}, "recipe is 'joy'; it must be one of plain, noise"),
        ({"recipe": "noise", "constrain": False}, "need the grammar"),
        ({"strategy": "both"}, "strategy is 'both'; it must be one of joint, separate"),
        ({"constrain": 1}, "constrain is 1; it must be True or False"),
        ({"unique": None}, "unique is None"),
        ({"nms": -1}, "nms is -1; it must be a number of 0..1"),
        ({"tile": 1}, "tile is 1; it must be a whole number of at least 2"),
    ],
    ids=str,
)
def test_wrong_keywords_are_told_before_the_picture(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        VLM(StubEngine()).detect("no such file", "cat", **options)


def test_unknown_keyword_lists_all() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword 'stopscore'; known are .*stop_score"):
        VLM(StubEngine()).detect(picture(), "cat", stopscore=1)  # type: ignore[call-arg]


# --- the recipe with noise boxes -----------------------------------------------------------------


def test_noise_recipe_asks_its_own_prompt_and_scores_by_class() -> None:
    engine = StubEngine(f"{BOXES[0]} cat ; {BOXES[1]} dog")
    found = VLM(engine).detect(picture(), ["cat", "dog"], recipe="noise")
    assert engine.prompts == [["detect all classes"]]
    assert found.labels == ("cat", "dog")
    letters = math.exp(-0.5 * len(" cat"))
    assert found.scores.tolist() == pytest.approx([letters, letters * math.exp(-0.5)])


def test_noise_recipe_never_ends_and_never_names_noise(tiny_checkpoint: Path) -> None:
    vlm = load(tiny_checkpoint, device="cpu")
    found = vlm.detect(
        tiny_picture(), ["cat", "dog"], recipe="noise", max_new_tokens=60, unique=False
    )
    records = len(found)
    assert records >= 5 or found.text.count("<loc") > 4 * len(set(map(str, found.boxes_xyxy)))
    assert {label.lower() for label in found.labels} <= {"cat", "dog"}


def test_noise_recipe_is_for_detect() -> None:
    with pytest.raises(InputError, match=r'recipe="noise" is for detect; leave it out of segment'):
        VLM(StubEngine()).segment(picture(), "cat", recipe="noise")


# --- none twice ----------------------------------------------------------------------------------


def test_repetitions_are_removed_and_told() -> None:
    answer = f"{BOXES[0]} cat ; {BOXES[1]} cat ; {BOXES[0]} cat ; {BOXES[0]} dog"
    vlm = VLM(StubEngine(answer))
    found = vlm.detect(picture(), ["cat", "dog"])
    assert found.labels == ("cat", "cat", "dog")
    score = pytest.approx(math.exp(-0.5))
    assert found.removed == (Removed("cat", score, (80, 120, 320, 360), "duplicate"),)  # type: ignore[arg-type]
    assert len(vlm.detect(picture(), ["cat", "dog"], unique=False)) == 4


def boxes(*rows: tuple[float, ...], labels: str = "", scores: Sequence[float] = ()) -> Detections:
    return Detections(
        np.array(rows, np.float32).reshape(-1, 4),
        tuple(labels or "a" * len(rows)),
        np.array(scores or np.linspace(0.9, 0.5, len(rows)), np.float32),
        SIZE,
    )


@pytest.mark.parametrize(
    ("found", "iou", "kept"),
    [
        pytest.param(boxes(), 0.5, [], id="nothing"),
        pytest.param(boxes((0, 0, 9, 9)), 0.5, [0], id="one"),
        pytest.param(boxes((0, 0, 10, 10), (1, 0, 10, 10)), 0.5, [0], id="overlap"),
        pytest.param(
            boxes((0, 0, 10, 10), (1, 0, 10, 10), scores=(0.2, 0.3)), 0.5, [1], id="best stays"
        ),
        pytest.param(
            boxes((0, 0, 10, 10), (1, 0, 10, 10), labels="ab"), 0.5, [0, 1], id="classes apart"
        ),
        pytest.param(boxes((0, 0, 10, 10), (6, 0, 16, 10)), 0.5, [0, 1], id="little overlap"),
        pytest.param(
            boxes((0, 0, 10, 10), (4, 0, 14, 10), (8, 0, 18, 10)), 0.3, [0, 2], id="chain"
        ),
        pytest.param(
            boxes((0, 0, 9, 9), (0, 0, 9, 9), scores=(0.0, 0.0)), 0.9, [0], id="scores of zero"
        ),
        pytest.param(
            boxes((0, 0, 9, 9), (50, 0, 59, 9), scores=(-4, -5)), 0.5, [0, 1], id="any score"
        ),
        pytest.param(
            boxes((10, 10, 20, 20), (-11, -11, -1, -1), labels="ab"), 0.5, [0, 1], id="far away"
        ),
        pytest.param(boxes((5, 5, 5, 5), (5, 5, 5, 5), (5, 5, 9, 5)), 0.5, [0, 1, 2], id="no area"),
        pytest.param(boxes((0, 0, 9, 9), (5, 5, 5, 5)), 0.0, [0, 1], id="point inside"),
        pytest.param(boxes((0, 0, 9, 9), (9, 0, 18, 9)), 0.0, [0, 1], id="edge to edge"),
    ],
)
def test_non_maximum_suppression(found: Detections, iou: float, kept: list[int]) -> None:
    result = found.without_overlaps(iou)
    assert result.boxes_xyxy.tolist() == found.boxes_xyxy[kept].tolist()
    assert [gone.reason for gone in result.removed] == ["overlap"] * (len(found) - len(kept))


@pytest.mark.parametrize("seed", range(5))
def test_suppression_is_what_the_definition_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    corners = rng.uniform(-100, 100, (40, 2))
    rows = np.concatenate([corners, corners + rng.uniform(5, 60, (40, 2))], axis=1)
    found = boxes(
        *rows.tolist(),
        labels="".join(rng.choice(list("abc"), 40)),
        scores=(rng.permutation(40) / 40 + 0.01).tolist(),
    )
    overlap = box_iou(found.boxes_xyxy, found.boxes_xyxy)
    kept: list[int] = []
    for index in np.argsort(-found.scores):
        rivals = [k for k in kept if found.labels[k] == found.labels[index]]
        if all(overlap[index, k] <= 0.4 for k in rivals):
            kept.append(int(index))
    assert (
        found.without_overlaps(0.4).boxes_xyxy.tolist() == found[sorted(kept)].boxes_xyxy.tolist()
    )


def test_verb_suppresses_overlaps() -> None:
    near = "<loc0258><loc0128><loc0768><loc0512>"
    found = VLM(StubEngine(f"{BOXES[0]} cat ; {near} cat")).detect(picture(), "cat", nms=0.7)
    assert len(found) == 1
    assert repr(found) == "Detections(1 'cat' in 640×480 pixels, 1 removed)"
    assert Detections.from_dict(found.to_dict()).removed == found.removed


@pytest.mark.parametrize("iou", [-0.1, 1.1, True, "0.5"])
def test_wrong_overlap_is_told(iou: Any) -> None:
    with pytest.raises(InputError, match="the overlap is"):
        boxes((0, 0, 9, 9), (0, 0, 9, 8)).without_overlaps(iou)


# --- several classes -----------------------------------------------------------------------------


def echo() -> StubEngine:
    """Finds one thing of each class that a prompt asks for."""

    def answer(prompt: str, _: Any) -> str:
        names = prompt.removeprefix("detect ").split(" ; ")
        return " ; ".join(f"{BOXES[0]} {name}" for name in names)

    return StubEngine(answer)


def test_classes_are_asked_together_or_apart_with_the_same_objects() -> None:
    joint, apart = echo(), echo()
    names = ["cat", "dog", "traffic light"]
    one = VLM(joint).detect(picture(), names)
    other = VLM(apart).detect(picture(), names, strategy="separate")
    assert joint.prompts == [["detect cat ; dog ; traffic light"]]
    assert apart.prompts == [["detect cat", "detect dog", "detect traffic light"]]
    assert apart.encoded == [[SIZE]]  # the picture passed through the vision tower once
    assert one.labels == other.labels == tuple(names)
    assert one.boxes_xyxy.tolist() == other.boxes_xyxy.tolist()


def test_a_thousand_classes_come_in_batches_and_in_order() -> None:
    engine = echo()
    names = [f"n{number}" for number in range(1000)]
    found = VLM(engine).detect(picture(), names, strategy="separate", batch_size=64)
    assert found.labels == tuple(names)
    assert [len(batch) for batch in engine.prompts] == [64] * 15 + [40]
    assert engine.encoded == [[SIZE]]


def test_several_pictures_with_several_classes_stay_apart() -> None:
    def answer(prompt: str, image: Any) -> str:
        return f"{BOXES[0]} {prompt.removeprefix('detect ')}" * (image.image_size[0] > 5)

    engine = StubEngine(answer)
    pictures = [picture((9, 9)), "gone.png", picture((4, 4)), picture((8, 8))]
    results: list[Any] = VLM(engine).detect(
        pictures, ["a", "b", "c"], strategy="separate", batch_size=2, on_error="return"
    )
    assert isinstance(results[1], ImageError)
    assert [len(one) for one in (results[0], *results[2:])] == [3, 0, 3]
    assert results[3].labels == ("a", "b", "c")


def test_separate_answers_on_a_network_are_those_of_single_calls(tiny_checkpoint: Path) -> None:
    vlm = load(tiny_checkpoint, device="cpu")
    options: dict[str, Any] = {"max_new_tokens": 20}
    names = ["cat", "dog", "x"]
    together = vlm.detect(tiny_picture(), names, strategy="separate", **options)
    alone = Detections.concatenated([vlm.detect(tiny_picture(), n, **options) for n in names])
    assert together.labels == alone.labels
    assert together.boxes_xyxy.tolist() == alone.boxes_xyxy.tolist()
    np.testing.assert_allclose(together.scores, alone.scores, rtol=1e-3)


def test_seed_gives_other_numbers_to_every_class() -> None:
    engine = echo()
    VLM(engine).detect(
        picture(), ["a", "b", "c"], strategy="separate", temperature=1.0, seed=5, batch_size=2
    )
    assert [keywords["seed"] for keywords in engine.keywords] == [5, 7]


# --- referring expressions -----------------------------------------------------------------------


@pytest.mark.parametrize("phrase", ["the dog on the left", "a cup, half full"])
def test_phrase_is_one_class(phrase: str) -> None:
    engine = StubEngine(BOXES[0])
    found = VLM(engine).detect(picture(), phrase)
    assert engine.prompts == [[f"detect {phrase}"]]
    assert found.labels == (phrase,)
