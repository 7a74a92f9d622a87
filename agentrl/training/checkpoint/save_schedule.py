"""When a run saves a checkpoint.

Invariant: without a number of steps, a crash loses minutes, and saving takes a small share of the time however large
the model is.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERVAL = 600.0
"""Seconds between automatic checkpoints, at least."""
SHARE = 0.05
"""The largest share of the time that goes into writing them."""
KEPT = 2
"""Automatic checkpoints that stay, the newest."""


class SaveSchedule:
    """Says after which steps a checkpoint is due."""

    def __init__(self, save_freq: int | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`save_freq`: steps between checkpoints, 0 or less: none are due; None: automatic, by time."""
        self.automatic = save_freq is None
        self._every = save_freq or 0
        self._clock = clock
        self._saved = clock()
        self._cost = 0.0

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due now, after `step`."""
        if self.automatic:
            return self._clock() - self._saved >= max(INTERVAL, self._cost / SHARE)
        return self._every > 0 and step % self._every == 0

    @contextmanager
    def saving(self) -> Iterator[None]:
        """The body writes a checkpoint; the time that it takes counts."""
        begun = self._clock()
        yield
        self._saved = self._clock()
        self._cost = self._saved - begun
