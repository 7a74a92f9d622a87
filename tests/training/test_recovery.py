"""A step that a mistake of the user's ends loses nothing."""

from collections.abc import Callable

import pytest

from agentrl.core.errors import UserError
from agentrl.training.checkpoint.recovery import recovering


class Run:
    def __init__(self) -> None:
        self.saved: list[int] = []
        self.undone = 0

    def undo(self) -> bool:
        self.undone += 1
        return True

    def end(self, step: int, undo: Callable[[], bool]) -> None:
        with recovering(step, self.saved.__contains__, self.saved.append, undo):
            raise UserError("row 7 is too long; shorten it")


def test_the_step_before_is_saved() -> None:
    run = Run()
    with pytest.raises(UserError, match="^step 3: row 7 is too long; shorten it, then .* resumes after step 2$"):
        run.end(3, run.undo)
    assert (run.saved, run.undone) == ([2], 1)


def test_in_the_first_step_there_is_nothing_to_save() -> None:
    run = Run()
    with pytest.raises(UserError, match="^step 1: row 7 is too long; shorten it, then start the run again$"):
        run.end(1, run.undo)
    assert run.saved == []


def test_weights_within_an_update_are_not_saved() -> None:
    run = Run()
    with pytest.raises(UserError, match="^row 7"):
        run.end(3, lambda: False)
    assert (run.saved, run.undone) == ([], 0)
