"""The state of the live view: fed by calls from the training loop, read by the thread that draws.

Invariant: a reader sees whole values. Fields are replaced or appended to, never emptied and refilled.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from agentrl.tracking.metrics import is_wall_clock
from agentrl.tracking.status import Ended

VALIDATION = "val/"
ETA_STEPS = 10


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
    step_ends: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=ETA_STEPS + 1))

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
        """Seconds left at the pace of the last steps; None before there is a pace."""
        if self.total_steps is None or not self.step_ends or self.ended:
            return None
        (first_step, first), (last_step, last) = self.step_ends[0], self.step_ends[-1]
        if last_step == first_step:
            return None
        pace = (last - first) / (last_step - first_step)
        return max(0.0, pace * (self.total_steps - last_step) - (now - last))

    def _train(self, step: int, metrics: dict[str, float], now: float) -> None:
        if not self.step_ends:
            # The first step has no end before it; when it began is as good.
            self.step_ends.append((step - 1, now - metrics["time/step"] if "time/step" in metrics else self.started))
        self.step_ends.append((step, now))
        self.step = step
        self.metrics = metrics
        _remember(self.rewards, metrics.get("rollout/reward_mean"))
        _remember(self.successes, metrics.get("rollout/success"))


def _remember(history: list[float], value: float | None) -> None:
    if value is not None and math.isfinite(value):
        history.append(value)
