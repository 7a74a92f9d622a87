"""What becomes of a run whose step fails or is interrupted.

Invariant: a step that ends early leaves the rows of the step before, and the checkpoint of the step before is written.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from agentrl.core.stopping import Interrupted
from agentrl.tracking.resume_notes import how_to_resume
from agentrl.training.checkpoint.run_state import Checkpoints, Stateful
from agentrl.trajectory.drops import TooManyDrops


class Save(Protocol):
    """Writes a checkpoint."""

    def __call__(self, step: int, *, last: bool) -> Any:
        """Write the checkpoint of `step`; the `last` one is on the disk when this returns."""


Recover = Callable[[int], AbstractContextManager[None]]
"""Surrounds one step."""


@contextmanager
def recovery(checkpoints: Checkpoints, rows: Stateful, save: Save, start: int) -> Iterator[Recover]:
    """Surrounds the steps after `start`; gives what surrounds each. Raises Interrupted with how to resume."""
    taken = start

    @contextmanager
    def recover(step: int) -> Iterator[None]:
        """Raises TooManyDrops or Interrupted of the step, once the step before is saved."""
        nonlocal taken
        before = rows.state_dict()
        try:
            yield
        except (TooManyDrops, Interrupted) as early:
            rows.load_state_dict(before)
            if step > 1 and not checkpoints.has(step - 1):
                save(step - 1, last=True)
            if isinstance(early, Interrupted):
                raise
            fix = f"then start the run again: with trainer.resume_mode=auto it resumes after step {step - 1}"
            raise TooManyDrops(f"step {step}: {early}, {fix}") from early
        taken = step

    try:
        yield recover
    except KeyboardInterrupt:
        mode = checkpoints.trainer.resume_mode
        raise Interrupted(how_to_resume(start, taken, checkpoints.newest(), mode)) from None
