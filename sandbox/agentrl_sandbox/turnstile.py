"""Who may run next: a bounded queue with one line per client, served in turn, so that no client starves another.

Invariant: nobody is sent away before the seconds that they gave are over, unless the queue itself is full.
"""

import asyncio
from collections import OrderedDict, deque

from agentrl_sandbox.job import Busy


class Turnstile:
    """`places` at once; up to `queue` others wait (None: all). Use `enter` and `leave` in pairs, in one event loop."""

    def __init__(self, places: int, queue: int | None = None) -> None:
        self.places, self.queue = places, queue
        self.inside = self.waiting = 0
        self.lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, client: str, patience: float | None) -> None:
        """Wait for a place, for `patience` seconds at most (None: as long as it takes). Raises Busy."""
        if self.inside >= self.places:
            await self._wait(client, patience)
        else:
            self.inside += 1

    def leave(self) -> None:
        """Give the place back: to whoever is next."""
        while self.lines:
            client, line = self.lines.popitem(last=False)
            future = line.popleft()
            if line:
                self.lines[client] = line  # to the end of the round
            if not future.done():
                future.set_result(None)
                return
        self.inside -= 1

    async def _wait(self, client: str, patience: float | None) -> None:
        if self.queue is not None and self.waiting >= self.queue:
            raise Busy(f"the sandbox's queue of {self.queue} is full; serve with a larger --queue")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lines.setdefault(client, deque()).append(future)
        self.waiting += 1
        try:
            await asyncio.wait_for(asyncio.shield(future), patience)
        except BaseException as error:
            self._abandon(client, future)
            if isinstance(error, TimeoutError):
                raise Busy(f"no place in the sandbox within {patience:g} s; more slots would help") from error
            raise
        finally:
            self.waiting -= 1

    def _abandon(self, client: str, future: "asyncio.Future[None]") -> None:
        if future.done() and not future.cancelled():
            self.leave()  # the place came too late
            return
        future.cancel()
        line = self.lines.get(client)
        if line is not None and future in line:
            line.remove(future)
            if not line:
                del self.lines[client]
