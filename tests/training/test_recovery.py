"""A step that a mistake of the user's ends loses nothing."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentrl.core.errors import UserError
from agentrl.training.checkpoint.recovery import recovery


class Run:
    def __init__(self) -> None:
        self.saved: list[int] = []
        self.undone = 0

    def undo(self) -> None:
        self.undone += 1

    def save(self, step: int, *, last: bool) -> None:
        assert last
        self.saved.append(step)

    def end(self, step: int, updating: Callable[[], bool]) -> None:
        checkpoints = SimpleNamespace(has=lambda step: step in self.saved)
        with recovery(cast(Any, checkpoints), self, self.save, 0, updating) as recover, recover(step):
            raise UserError("row 7 is too long; shorten it")


def test_the_step_before_is_saved() -> None:
    run = Run()
    with pytest.raises(UserError, match="^step 3: row 7 is too long; shorten it, then .* resumes after step 2$"):
        run.end(3, lambda: False)
    assert (run.saved, run.undone) == ([2], 1)


def test_in_the_first_step_there_is_nothing_to_save() -> None:
    run = Run()
    with pytest.raises(UserError, match="^step 1: row 7 is too long; shorten it, then start the run again$"):
        run.end(1, lambda: False)
    assert run.saved == []


def test_weights_within_an_update_are_not_saved() -> None:
    run = Run()
    with pytest.raises(UserError, match="^row 7"):
        run.end(3, lambda: True)
    assert (run.saved, run.undone) == ([], 0)
