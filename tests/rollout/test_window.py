"""How far ahead a run samples."""

import pytest

from agentrl.rollout.window import StalenessWindow, StepTiming

WAIT = StepTiming(seconds=10.0, waited=4.0, requests=20.0, spare=False)
"""The trainer waits for a few conversations; a batch has 64 trajectories."""
BUSY = StepTiming(seconds=10.0, waited=4.0, requests=50.0, spare=False)
NONE = StepTiming(seconds=10.0, waited=0.0, requests=10.0, spare=False)
SPARE = StepTiming(seconds=10.0, waited=0.0, requests=10.0, spare=True)


def steps(window, *taken):
    """The window's size after each step."""
    sizes = []
    for step in taken:
        window.record(step)
        sizes.append(window.size)
    return sizes


def test_it_grows_to_the_bound_while_the_engine_has_room():
    assert steps(StalenessWindow(most=5, trajectories=64), *[WAIT] * 9) == [2, 3, 3, 3, 4, 4, 4, 4, 5]


def test_it_grows_at_once_to_where_the_trainer_would_not_wait():
    """Steps would take half of the time, and a conversation twice as many of them."""
    half = StepTiming(seconds=10.0, waited=5.0, requests=4.0, spare=False)
    assert steps(StalenessWindow(most=9, trajectories=64), half, half) == [2, 4]
    assert steps(StalenessWindow(most=3, trajectories=64), half, half) == [2, 3]


def test_it_grows_no_further_than_the_engine_has_room():
    """A batch adds 8 requests; 32 are half of a batch."""
    waits = StepTiming(seconds=10.0, waited=9.0, requests=16.0, spare=False)
    assert steps(StalenessWindow(most=9, trajectories=64), waits, waits) == [2, 4]
    all_wait = StepTiming(seconds=10.0, waited=10.0, requests=0.0, spare=False)
    assert steps(StalenessWindow(most=9, trajectories=64), all_wait, all_wait) == [2, 9]


def test_it_looks_at_as_many_steps_as_it_has_places():
    """Batches that began together end together: the engine runs many requests in one step and none in the next."""
    assert steps(StalenessWindow(most=5, trajectories=64), BUSY, NONE) == [2, 3]
    assert steps(StalenessWindow(most=5, trajectories=64), BUSY, BUSY, WAIT, BUSY) == [2] * 4


def test_a_busy_step_that_took_longer_counts_more():
    longer = StepTiming(seconds=60.0, waited=10.0, requests=40.0, spare=False)
    assert steps(StalenessWindow(most=5, trajectories=64), longer, NONE) == [2, 2]


def test_a_short_wait_is_not_worth_more_age():
    assert steps(StalenessWindow(most=5, trajectories=64), *[StepTiming(10.0, 0.4, 10.0, False)] * 4) == [2] * 4


def test_it_shrinks_when_the_next_batch_was_finished_too_each_time():
    assert steps(StalenessWindow(most=5, trajectories=64, size=4), *[SPARE] * 9) == [4, 4, 4, 3, 3, 3, 2, 2, 2]
    assert steps(StalenessWindow(most=5, trajectories=64, size=3), NONE, SPARE, SPARE, *[NONE] * 3) == [3] * 6


@pytest.mark.parametrize("most", [1, 2])
def test_a_small_bound_leaves_no_choice(most):
    assert steps(StalenessWindow(most, trajectories=64), WAIT, *[SPARE] * 4) == [most] * 5
