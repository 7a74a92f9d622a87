"""Keeps the jobs whose client got a 504 and will repeat the request: they stay in the queue, or continue to run.

A client of SandboxFusion's protocol gives up when an answer takes too long, but repeats the request after a 504 (verl:
three times in all). So a job that is unfinished shortly before its client gives up is answered with a 504 and kept; the
next equal request of that client gets it.

Invariants: a job runs once, however often it is requested; a job that no client requests again is cancelled.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LINGER = 10.0
"""Seconds that a job is kept: clients wait one to nine seconds before they retry."""


@dataclass
class Work:
    """The work of a request, in progress."""

    task: "asyncio.Future[Any]"
    fields: dict[str, Any]
    """Fields for the log."""
    size: int
    """Bytes of the request."""
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)


class Retries:
    """The kept jobs, by a key that equal requests of one client share."""

    def __init__(self, most_bytes: int, linger: float = LINGER) -> None:
        """`most_bytes`: of all their requests together; a job beyond that is cancelled."""
        self.most_bytes, self.linger = most_bytes, linger
        self.kept: defaultdict[bytes, deque[Work]] = defaultdict(deque)
        self.bytes = 0

    def work(self, key: bytes, start: Callable[[], Work]) -> Work:
        """The oldest kept job of that key, or a new one."""
        if key not in self.kept:
            return start()
        work = self.kept[key][0]
        self._forget(key, work)
        return work

    def keep(self, key: bytes, work: Work) -> None:
        """Keep a job for `linger` seconds."""
        if self.bytes + work.size > self.most_bytes:
            work.task.cancel()
            return
        self.kept[key].append(work)
        self.bytes += work.size
        work.timer = asyncio.get_running_loop().call_later(self.linger, self._expire, key, work)

    def close(self) -> None:
        """Cancel all jobs."""
        for key, works in list(self.kept.items()):
            for work in list(works):
                self._expire(key, work)

    def _expire(self, key: bytes, work: Work) -> None:
        self._forget(key, work)
        work.task.cancel()
        if work.task.done() and not work.task.cancelled():
            work.task.exception()  # mark it as retrieved

    def _forget(self, key: bytes, work: Work) -> None:
        if work.timer is not None:
            work.timer.cancel()
        self.kept[key].remove(work)
        self.bytes -= work.size
        if not self.kept[key]:
            del self.kept[key]
