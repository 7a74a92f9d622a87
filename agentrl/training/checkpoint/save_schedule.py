"""Decide after which steps a run saves a checkpoint.

Invariant: without a number of steps, a crash loses minutes of work, and saving takes at most SHARE of the time for a
model of any size.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERVAL = 600.0
"""Fewest seconds between automatic checkpoints."""
SHARE = 0.05
"""Largest share of the time spent on writing them."""
KEPT = 2
"""Newest automatic checkpoints that are kept."""


class SaveSchedule:
    """Decides after which steps a checkpoint is due."""

    def __init__(self, save_freq: int | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`save_freq`: steps between checkpoints, 0 or less: none are due; None: automatic, by time."""
        self.automatic = save_freq is None
        self.none = save_freq is not None and save_freq <= 0
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
        """Time the body, which writes a checkpoint."""
        begun = self._clock()
        yield
        self._saved = self._clock()
        self._cost = self._saved - begun
