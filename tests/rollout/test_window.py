"""How far ahead a run samples."""

import pytest

from agentrl.rollout.window import Window

DRY, BUSY = [0, 0, 5], [5, 5, 0]
"""Groups under way beside the batch that the trainer waits for, at each look; a batch has 8."""


def steps(window, *waits):
    """The window's size after each step."""
    sizes = []
    for looks in waits:
        for others in looks:
            window.look(others)
        window.trains()
        sizes.append(window.size)
    return sizes


def test_it_grows_to_the_bound_while_the_engine_runs_dry():
    assert steps(Window(most=4, groups=8), DRY, DRY, DRY, DRY) == [3, 4, 4, 4]


def test_more_batches_do_not_help_an_engine_that_is_busy():
    assert steps(Window(most=5, groups=8), *[BUSY] * 4) == [2] * 4


def test_it_shrinks_when_the_trainer_has_not_waited_for_as_many_steps_as_it_has_places():
    window = Window(most=5, groups=8, size=4)
    assert steps(window, [], [], [], []) == [4, 4, 4, 3]
    assert steps(window, [], [], BUSY, [], [], []) == [3, 3, 3, 3, 3, 2]
    assert steps(window, *[[]] * 5) == [2] * 5


@pytest.mark.parametrize("most", [1, 2])
def test_a_small_bound_leaves_no_choice(most):
    assert steps(Window(most, groups=8), DRY, [], [], []) == [most] * 4
