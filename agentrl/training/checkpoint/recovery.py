"""Save a run whose step fails or is interrupted.

Invariant: a step that ends early returns its rows, and the checkpoint of the step before is written, unless its update
had begun.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentrl.core.errors import UserError
from agentrl.core.stopping import Interrupted
from agentrl.trajectory.drops import TooManyDrops


@contextmanager
def recovering(
    step: int, has: Callable[[int], bool], save: Callable[[int], object], undo: Callable[[], bool]
) -> Iterator[None]:
    """Context of one step: save the step before, then raise the step's TooManyDrops, UserError or Interrupted.

    `has`: whether the checkpoint of a step is there. `undo`: returns the rows of the step; false where its update has
    begun, and so nothing is saved.
    """
    try:
        yield
    except (TooManyDrops, UserError, Interrupted) as early:
        if not undo():
            raise
        if step > 1 and not has(step - 1):
            save(step - 1)
        if not isinstance(early, Interrupted):
            resumes = f": with trainer.resume_mode=auto it resumes after step {step - 1}" if step > 1 else ""
            early.args = (f"step {step}: {early}, then start the run again{resumes}",)
        raise
