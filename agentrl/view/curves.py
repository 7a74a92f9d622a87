"""Metrics of a run, column by column, few enough points to draw.

Invariant: thinning keeps the smallest and the largest value of every stretch, so no spike is lost.
"""

import bisect
import json
import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

from agentrl.tracking.state import time_left

MAX_POINTS = 1500
LONGEST = 2**22
"""Bytes of a line; the parts of a longer one are damaged lines."""

AXES = {"tokens": "rollout/model_tokens", "time": "time/step"}
"""Horizontal axes in place of steps: the sum, so far, of a metric of each step."""

Series = tuple[list[int], list[float]]


class Curves:
    """The series of one metrics.jsonl. Only what was appended since the last look is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0.0
        """When the file was last written to, in seconds since the epoch."""
        self._inode = 0
        self._begin()

    def refresh(self) -> None:
        """Read new lines; if the file was rewritten, read it from the start."""
        stat = self.path.stat() if self.path.exists() else None
        size, self.written = (stat.st_size, stat.st_mtime) if stat else (0, 0.0)
        if size < self.position or (stat and stat.st_ino != self._inode):
            self._begin()
            self._inode = stat.st_ino if stat else 0
        if size == self.position:
            return
        with self.path.open("rb") as file:
            file.seek(self.position)
            while line := file.readline(LONGEST):
                if not line.endswith(b"\n") and len(line) < LONGEST:
                    break
                self.position += len(line)
                self._add(line)

    def thinned(self, name: str, most: int = MAX_POINTS) -> Series:
        """Steps and values of one metric, at most about `most` of them."""
        line = self.series.get(name, {})
        steps, values = list(line), list(line.values())
        if len(steps) <= most:
            return steps, values
        stride = math.ceil(len(steps) * 2 / most)
        kept: set[int] = set()
        for start in range(0, len(steps), stride):
            stretch = range(start, min(start + stride, len(steps)))
            kept |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
        order = sorted(kept)
        return [steps[i] for i in order], [values[i] for i in order]

    def at(self, step: int, names: Iterable[str]) -> dict[str, float]:
        """The values of a step; a metric that the step does not have is left out."""
        return {name: line[step] for name in names if step in (line := self.series.get(name, {}))}

    def last(self, name: str) -> float | None:
        """The newest value of a metric."""
        return next(reversed(self.series.get(name, {}).values()), None)

    def eta(self, total: int, now: float) -> float | None:
        """Seconds left to step `total`; None before there is a pace."""
        timed = self.series.get(AXES["time"], {}).items()
        seconds = [seconds for step, seconds in timed if step]  # step 0 is a validation
        return time_left(seconds, total - (self.last_step or 0), now - self.written)

    def sums(self, axis: str, steps: Sequence[int]) -> list[float]:
        """How much of one of AXES a run had behind it after each of `steps`, which ascend."""
        line = self.series.get(AXES[axis], {})
        known, totals = list(line), [0.0, *accumulate(line.values())]
        return [totals[bisect.bisect_right(known, step)] for step in steps]

    def _begin(self) -> None:
        self.position = 0
        self.series: dict[str, dict[int, float]] = {}
        self.last_step: int | None = None

    def _add(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            step = int(record.pop("step"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # a damaged line does not affect the next ones
        self.last_step = step
        for name, value in record.items():
            if isinstance(value, int | float) and math.isfinite(value):
                self.series.setdefault(name, {})[step] = float(value)
