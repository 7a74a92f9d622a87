"""Files written beside the run: what is sampled and learned does not wait for them.

Invariants: they are written in order, and whole; at most `AHEAD` of them are not on the disk yet, so a disk that is
slower than the steps holds these up and fills no memory; what went wrong with one is raised, at the next or at the end.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

AHEAD = 2


class Writer:
    """One thread that writes. An error that a function raises there is raised here, later."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writer")
        self._pending: deque[Future[None]] = deque()

    def __call__(self, write: Callable[[], None]) -> None:
        """Have `write()` done soon; what it reads must not change any more."""
        self.wait(AHEAD - 1)
        self._pending.append(self._thread.submit(write))

    def wait(self, left: int = 0) -> None:
        """Return when all, or all but `left`, is on the disk."""
        while len(self._pending) > left:
            self._pending.popleft().result()

    def close(self) -> None:
        """Finish everything, though something of it fails."""
        self._thread.shutdown()
        self.wait()
