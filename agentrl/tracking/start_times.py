"""Seconds of a run's start, by cause: from the command to its first step."""

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from agentrl.tracking.phases import Phases

T = TypeVar("T")

CAUSES = ("imports", "model", "compile", "wait", "weights", "probe")
"""Causes in their order; `server` runs in parallel to the first four."""


class StartTimes(Phases):
    """Adds up the seconds of each cause. A cause inside another one does not count in that one."""

    def __init__(self, age: float = 0.0) -> None:
        """`age`: seconds that have passed already."""
        super().__init__(time.monotonic)
        self._step_start -= age

    phase = Phases.__call__

    def timed(self, cause: str, call: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        """`call`, with its seconds added to the cause."""

        async def run(*args: object) -> T:
            with self.phase(cause):
                return await call(*args)

        return run

    def imported(self) -> None:
        """All time until now went into settings, checks and imports."""
        self._seconds["imports"] = time.monotonic() - self._step_start

    def served(self, launched: float) -> None:
        """The servers answer, which were launched at that `time.monotonic()`."""
        self._seconds["server"] = time.monotonic() - launched

    def metrics(self) -> dict[str, float]:
        """`start/` metrics in seconds; `start/total` is the time until now."""
        seconds = {name.removeprefix("time/"): value for name, value in super().metrics().items()}
        return {f"start/{'total' if cause == 'step' else cause}": value for cause, value in seconds.items()}


def start_line(metrics: dict[str, float]) -> str:
    """The `start/` metrics in one line."""
    parts = [f"{cause} {metrics[f'start/{cause}']:.1f}" for cause in CAUSES if f"start/{cause}" in metrics]
    server = f"; server {metrics['start/server']:.1f} beside them" if "start/server" in metrics else ""
    return f"Start: {metrics['start/total']:.1f} s: {', '.join(parts)}{server}"


def process_age() -> float:
    """Seconds since this process began; 0 where the system does not say."""
    try:
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return 0.0
    return max(age, 0.0) if ticks else 0.0
