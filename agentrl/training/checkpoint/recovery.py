"""Save a run whose step fails or is interrupted.

Invariant: a step that ends early returns its rows, and the checkpoint of the step before is written, unless its update
had begun.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from agentrl.core.errors import UserError
from agentrl.core.stopping import Interrupted
from agentrl.tracking.resume_notes import how_to_resume
from agentrl.training.checkpoint.run_state import Checkpoints
from agentrl.trajectory.drops import TooManyDrops


class Rows(Protocol):
    """Where a step takes its rows from."""

    def undo(self) -> None:
        """Return the rows of the present step, which has not trained on them."""


class Save(Protocol):
    """Writes a checkpoint."""

    def __call__(self, step: int, *, last: bool) -> Any:
        """Write the checkpoint of `step`; the `last` one is on the disk when this returns."""


Recover = Callable[[int], AbstractContextManager[None]]
"""A context manager around one step."""


@contextmanager
def recovery(
    checkpoints: Checkpoints, rows: Rows, save: Save, start: int, updating: Callable[[], bool] = lambda: False
) -> Iterator[Recover]:
    """Context of all steps after `start`; yields the context manager of one step. Raises Interrupted with a command to
    resume.

    `updating`: whether the weights may be no longer those of the step before.
    """
    taken = start

    @contextmanager
    def recover(step: int) -> Iterator[None]:
        """Save the step before, then raise the step's TooManyDrops, UserError or Interrupted."""
        nonlocal taken
        try:
            yield
        except (TooManyDrops, UserError, Interrupted) as early:
            if updating():
                raise
            rows.undo()
            if step > 1 and not checkpoints.has(step - 1):
                save(step - 1, last=True)
            if not isinstance(early, Interrupted):
                resumes = f": with trainer.resume_mode=auto it resumes after step {step - 1}" if step > 1 else ""
                early.args = (f"step {step}: {early}, then start the run again{resumes}",)
            raise
        taken = step

    try:
        yield recover
    except KeyboardInterrupt:
        mode = checkpoints.trainer.resume_mode
        raise Interrupted(how_to_resume(start, taken, checkpoints.newest(), mode)) from None
