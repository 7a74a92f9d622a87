"""Stops a step while it samples: too many trajectories were lost, or user code has a mistake."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agentrl.core.errors import InfraError, UserError
from agentrl.trajectory.trajectory import Outcome, Trajectory

VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+")
"""The parts that differ between two messages about the same failure: numbers, addresses, ids."""


ROUNDING = 1e-9
"""Rounding error of a share times a number: 0.29 of 100 is no less than 29."""


class TooManyDrops(InfraError):
    """A step lost more of its trajectories to infrastructure failures than it may."""


class SamplingStopped(UserError):
    """A mistake that shows while a step samples: nothing was trained on yet."""


@contextmanager
def while_sampling() -> Iterator[None]:
    """In the body, a UserError is a SamplingStopped."""
    try:
        yield
    except UserError as error:
        stopped = SamplingStopped(str(error))
        stopped.details = error.details
        raise stopped from error


def check_drops(trajectories: Sequence[Trajectory], most: float) -> None:
    """Raises TooManyDrops when more than the share `most` of the trajectories were dropped, or all of them."""
    dropped = [t for t in trajectories if t.outcome is Outcome.INFRA_ERROR]
    total = len(trajectories)
    if dropped and (len(dropped) == total or len(dropped) > most * total + ROUNDING):
        raise TooManyDrops(_why(dropped, total, most))


def _why(dropped: Sequence[Trajectory], total: int, most: float) -> str:
    lost = f"infrastructure failures took {len(dropped)} of {total} trajectories"
    if len(dropped) < total:
        lost += f", more than rollout.max_infra_drop_share={most:g} allows"
    causes = [VARYING.sub("#", t.error or "") for t in dropped]
    ((cause, times),) = Counter(causes).most_common(1)
    example = dropped[causes.index(cause)]
    fix = "raise it, or limit turns and tokens" if example.finish == "timeout" else "fix that"
    return f"{lost}; the most frequent cause ({times} of {len(dropped)}): {example.error or 'it has no message'}; {fix}"
