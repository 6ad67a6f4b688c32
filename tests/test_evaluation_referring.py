"""Referring segmentation against a second, plain writing of big_vision's rules."""

import numpy as np
import pytest
from PIL import Image

from vlmtasks.errors import InputError
from vlmtasks.evaluation.referring import ReferringTruth, read_answer, score_referring

CODES = "".join(f"<seg{code:03d}>" for code in range(16))


class StubCodec:
    """Codes to a map that depends on the first code: 0 all, 1 the left half, 2 nothing."""

    def decode(self, codes: np.ndarray) -> np.ndarray:
        maps = np.ones((len(codes), 64, 64), np.float32)
        maps[codes[:, 0] == 1, :, 32:] = -1
        maps[codes[:, 0] == 2] = -1
        return maps


def answer(loc_yxyx: tuple[int, int, int, int], first_code: int = 0) -> str:
    locs = "".join(f"<loc{value:04d}>" for value in loc_yxyx)
    return f"{locs}<seg{first_code:03d}>" + "<seg000>" * 15


def truth(x0: int, y0: int, x1: int, y1: int, size_wh: tuple[int, int]) -> ReferringTruth:
    mask = np.zeros(size_wh[::-1], bool)
    mask[y0:y1, x0:x1] = True
    return ReferringTruth(mask, (x0, y0, x1, y1))


def plain(loc_yxyx: tuple[int, ...], values: np.ndarray, wanted: np.ndarray) -> float:
    """IoU of one valid answer, written down from the description of the evaluator."""
    height, width = wanted.shape
    edges = np.array(loc_yxyx) / 1023 * [height, width, height, width]
    y1, x1, y2, x2 = (int(edge) for edge in edges)
    if y2 <= y1 or x2 <= x1:
        return 0.0
    picture = Image.fromarray(values).resize((x2 - x1, y2 - y1), Image.Resampling.BILINEAR)
    part = np.asarray(picture) > 0
    shared = int((part & wanted[y1:y2, x1:x2]).sum())
    return shared / (int(wanted.sum()) + int(part.sum()) - shared)


def test_perfect_and_half_and_invalid() -> None:
    size = (1023, 1023)
    truths = [truth(100, 200, 300, 400, size)] * 4
    box = (200, 100, 400, 300)
    answers = [answer(box), answer(box, 1), "", answer((200, 100, 400, 220))]
    score = score_referring(answers, truths, StubCodec())
    assert score.miou == pytest.approx((1 + 0.5 + 0 + 0.6) / 4)
    assert score.ciou == pytest.approx((40_000 + 20_000 + 0 + 24_000) / (40_000 * 4))
    assert score.giou == score.miou
    assert (score.box_accuracy_50, score.box_accuracy_75) == (0.75, 0.5)
    assert (score.invalid, score.total) == (1, 4)


def test_equals_the_plain_rules_on_random_answers() -> None:
    rng = np.random.default_rng(3)
    maps = rng.normal(size=(40, 64, 64)).astype(np.float32).cumsum(1).cumsum(2)

    class Codec:
        def decode(self, codes: np.ndarray) -> np.ndarray:
            return maps[codes[:, 0]]

    answers, truths, expected = [], [], []
    for number in range(40):
        width, height = (int(side) for side in rng.integers(5, 400, 2))
        y1, x1 = (int(value) for value in rng.integers(0, 1000, 2))
        y2, x2 = int(rng.integers(y1 + 1, 1024)), int(rng.integers(x1 + 1, 1024))
        wanted = rng.random((height, width)) < 0.5
        answers.append(answer((y1, x1, y2, x2), number))
        truths.append(ReferringTruth(wanted, (0, 0, width, height)))
        expected.append(plain((y1, x1, y2, x2), maps[number], wanted))
    assert score_referring(answers, iter(truths), Codec()).miou == pytest.approx(np.mean(expected))


def test_nothing_wanted_and_nothing_found_counts_one_in_giou_only() -> None:
    nothing = ReferringTruth(np.zeros((50, 50), bool), (0, 0, 0, 0))
    score = score_referring(["", answer((0, 0, 9, 9))], [nothing, nothing], StubCodec())
    assert (score.miou, score.giou) == (0.0, 1.0)  # the second box is thinner than a pixel


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        pytest.param("<loc0001><loc0002><loc0003><loc0004>" + CODES, True, id="plain"),
        pytest.param("<loc0001><loc0002><loc0003><loc0004>" + CODES + " cat", True, id="label"),
        pytest.param("<loc0001><loc0002><loc0003><loc1023>" + CODES * 2, True, id="rest-ignored"),
        pytest.param(" <loc0001><loc0002><loc0003><loc0004>" + CODES, False, id="blank-first"),
        pytest.param("<loc0001><loc0002><loc0003><loc0004> " + CODES, False, id="blank-inside"),
        pytest.param("<loc0001><loc0002><loc0003>" + CODES, False, id="three-locs"),
        pytest.param("<loc0003><loc0002><loc0001><loc0004>" + CODES, False, id="reversed-y"),
        pytest.param("<loc0001><loc0004><loc0003><loc0004>" + CODES, False, id="no-width"),
        pytest.param("<loc0001><loc0002><loc0003><loc0004>" + CODES[:-8], False, id="15-codes"),
        pytest.param("<loc0001><loc0002><loc0003><loc1024>" + CODES, False, id="loc1024"),
        pytest.param(
            "<loc0001><loc0002><loc0003><loc0004>" + CODES.replace("015", "128"), False, id="128"
        ),
    ],
)
def test_only_strict_answers_count(text: str, valid: bool) -> None:
    assert (read_answer(text) is not None) == valid


def test_counts_must_agree() -> None:
    with pytest.raises(InputError, match="no answers"):
        score_referring([], [], StubCodec())
    with pytest.raises(ValueError, match="shorter"):
        score_referring(["", ""], [truth(0, 0, 1, 1, (2, 2))], StubCodec())
