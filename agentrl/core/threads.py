"""Threads for functions that may hang.

The standard pool will not do: it has a fixed size, so hung calls use it up, and it waits for all of them at exit.
Here a piece of work never waits for another, and threads are daemons. A finished thread stays around for IDLE
seconds, because starting one costs more than most calls.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

IDLE = 5.0
Work = Callable[[], None]


class DaemonThreads:
    """A pool with as many threads as there is work at once. Nothing bounds them here: callers do."""

    def __init__(self) -> None:
        self.idle: deque[SimpleQueue[Work]] = deque()

    def run(self, work: Work) -> None:
        """Start `work`, which must not raise, in an idle thread or a new one; returns at once."""
        try:
            inbox = self.idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), daemon=True).start()
        inbox.put(work)

    def _serve(self, inbox: "SimpleQueue[Work]") -> None:
        while True:
            try:
                work = inbox.get(timeout=IDLE)
            except Empty:
                with suppress(ValueError):  # it was picked for new work at this very moment
                    self.idle.remove(inbox)
                    return
                continue
            work()
            del work  # or it would keep its arguments alive while the thread is idle
            self.idle.append(inbox)
