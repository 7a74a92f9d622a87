"""How many batches of rows are under way at once, and how old the tokens are that come of it.

The window is the smallest one that keeps the trainer busy, at most `max_staleness` + 1 batches. Each further batch
makes all tokens one version older. It pays only where the trainer waits for a few slow conversations and the engine has
room for more requests: on average it runs fewer than half of the trajectories of a batch. An engine that is slower than
the trainer runs more, however many batches there are, and a further batch would only wait in it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.trajectory.trajectory import Trajectory

MIN_BATCHES = 2
"""The batch that the trainer waits for or trains on, and the next one."""
MAX_WAIT_SHARE = 0.05
"""Share of the time that the trainer may wait: less is not worth a further version of age."""
FULL_ENGINE_SHARE = 0.5
"""Requests over a batch's trajectories, from which on an engine has no room for more of them."""


@dataclass(frozen=True)
class StepTiming:
    """How a step got its groups."""

    seconds: float
    """Seconds since the previous step got its groups."""
    waited: float
    """Seconds in which the trainer waited."""
    requests: float
    """Mean number of running requests in that time."""
    spare: bool
    """Whether the next batch was finished too: with one batch less under way, this one would have been."""


@dataclass
class StalenessWindow:
    """Looks at as many steps as it has batches, so that each batch was used once; then it grows or shrinks."""

    most: int
    """`max_staleness` + 1."""
    trajectories: int
    """Trajectories of a batch."""
    size: int = MIN_BATCHES
    """Batches that may be begun and not yet trained on."""
    _steps: list[StepTiming] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.size = min(self.size, self.most)

    def record(self, step: StepTiming) -> None:
        """A step has got its groups."""
        self._steps.append(step)
        if len(self._steps) < self.size:
            return
        steps, self._steps = self._steps, []
        seconds = sum(step.seconds for step in steps)
        waited = sum(step.waited for step in steps) / seconds
        requests = sum(step.requests * step.seconds for step in steps) / seconds
        if waited > MAX_WAIT_SHARE and requests < FULL_ENGINE_SHARE * self.trajectories:
            self.size = min(max(self._wanted(waited, requests), self.size + 1), self.most)
        elif all(step.spare for step in steps):
            self.size = max(self.size - 1, min(MIN_BATCHES, self.most))

    def _wanted(self, waited: float, requests: float) -> int:
        """Batches with which the trainer would not wait, if conversations took as long as now; no more than would fill
        the engine."""
        enough = self.size / (1 - waited) if waited < 1 else self.most
        full = self.size * FULL_ENGINE_SHARE * self.trajectories / requests if requests else self.most
        return min(math.ceil(enough), int(full))


def staleness_metrics(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """`staleness/` metrics of the model's tokens; {} without tokens.

    A token's staleness is the number of updates between the weights that drew it and those that are trained, which have
    `version`: mean, maximum, the share of tokens at each age, and the share in trajectories of several versions.
    """
    ages, mixed = Counter[int](), 0  # tokens by their age
    for trajectory in trajectories:
        own = Counter[int]()
        for ledger in trajectory.outlines:
            own.update({version - drawn_by: tokens for drawn_by, tokens in ledger.drawn_by.items()})
        ages += own
        mixed += own.total() if len(own) > 1 else 0
    total = ages.total()
    if not total:
        return {}
    return {
        "staleness/mean": sum(age * tokens for age, tokens in ages.items()) / total,
        "staleness/max": float(max(ages)),
        "staleness/mixed": mixed / total,
        **{f"staleness/share_{age}": ages[age] / total for age in sorted(ages)},
    }
