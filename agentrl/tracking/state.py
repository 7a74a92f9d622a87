"""The state of the live view: fed by calls from the training loop, read by the thread that draws.

Invariant: a reader sees whole values. Fields are replaced or appended to, never emptied and refilled.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from agentrl.tracking.metrics import is_wall_clock
from agentrl.tracking.status import Ended

VALIDATION = "val/"
PACE_STEPS = 10


@dataclass
class State:
    """A run in progress; times in seconds of one clock."""

    total_steps: int | None
    title: str
    started: float
    step: int = 0
    phase: str | None = None
    phase_started: float = 0.0
    done: int = 0
    """Within the phase: trajectories finished, say."""
    expected: int = 0
    containers: Mapping[str, int] = field(default_factory=dict)
    """Trajectories with a container in each phase of it, which the run counts."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last training step."""
    rewards: list[float] = field(default_factory=list)
    successes: list[float] = field(default_factory=list)
    validations: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    ended: Ended | None = None
    absent: Collection[str] = ()
    """Metrics that this kind of run does not have: up to 1 they are left out of what is shown."""
    seconds: list[float] = field(default_factory=list)
    """Of each step."""
    step_ended: float = 0.0
    """When the last one ended."""

    def enter(self, phase: str | None, now: float) -> None:
        """A phase begins, or all are over."""
        self.done = self.expected = 0
        self.phase, self.phase_started = phase, now

    def record(self, step: int, metrics: Mapping[str, float], now: float) -> tuple[dict[str, float], dict[str, float]]:
        """Take in a step; returns its training figures (none where it only validated) and its validation figures."""
        metrics = {name: value for name, value in metrics.items() if value > 1.0 or name not in self.absent}
        training = {name: value for name, value in metrics.items() if not name.startswith(VALIDATION)}
        validation = {name: value for name, value in metrics.items() if name.startswith(VALIDATION)}
        if all(is_wall_clock(name) for name in training):
            training = {}
        if training:
            self._train(step, training, now)
        if validation:
            self.validations.append((step, validation))
        return training, validation

    def eta(self, now: float) -> float | None:
        """Seconds left; None before there is a pace."""
        if self.total_steps is None or self.ended:
            return None
        return time_left(self.seconds, self.total_steps - self.step, now - self.step_ended)

    def _train(self, step: int, metrics: dict[str, float], now: float) -> None:
        self.step, self.step_ended, self.metrics = step, now, metrics
        _remember(self.seconds, metrics.get("time/step"))
        _remember(self.rewards, metrics.get("rollout/reward_mean"))
        _remember(self.successes, metrics.get("rollout/success"))


def time_left(seconds: Iterable[float], steps: int, since: float) -> float | None:
    """Seconds that `steps` more will take at the pace of the last ones, `since` seconds after the last of these; None
    before there is a pace."""
    last = list(seconds)[-PACE_STEPS:]
    return max(0.0, fmean(last) * steps - since) if last else None


def _remember(history: list[float], value: float | None) -> None:
    if value is not None and math.isfinite(value):
        history.append(value)
