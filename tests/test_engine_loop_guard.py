import pytest

from vlmtasks.engine.loop_guard import LoopGuard


def stops_after(tokens) -> int | None:
    """The number of tokens after which the guard stops, or None."""
    guard = LoopGuard()
    for count, token in enumerate(tokens, 1):
        if guard.add(token):
            return count
    return None


@pytest.mark.parametrize("period", [5, 6, 13, 27, 64])
def test_more_than_twenty_repeats_stop(period):
    assert stops_after(list(range(period)) * 30) == 21 * period


@pytest.mark.parametrize("period", [5, 13, 64])
def test_twenty_repeats_are_fine(period):
    assert stops_after(list(range(period)) * 20) is None


@pytest.mark.parametrize("start", [0, 3, 40])
def test_a_beginning_of_its_own_does_not_matter(start):
    assert stops_after([*range(1000, 1000 + start), *list(range(6)) * 30]) == start + 126


@pytest.mark.parametrize("period", [1, 2, 4])
def test_short_periods_need_a_hundred_tokens(period):
    assert stops_after(list(range(period)) * 200) == 100


def test_a_row_of_dashes_is_no_loop():
    assert stops_after([7] * 60 + [1, 2, 3]) is None


def test_the_same_record_with_new_boxes_is_no_loop():
    tokens = [t for box in range(100) for t in (box, box + 1, box + 2, box + 3, 5000, 5001)]
    assert stops_after(tokens) is None


def test_longer_periods_are_left_alone():
    assert stops_after(list(range(65)) * 40) is None
