"""Who may run next: a bounded queue with one line per client, served in turn, so that no client starves another."""

import asyncio
import time
from collections import OrderedDict, deque

from agentrl.sandbox.job import Busy

_MEMORY = 0.9
"""Weight of the past in the mean time that a place is held."""


class Turnstile:
    """`places` at once; the others wait. Use `enter` and `leave` in pairs, from one event loop."""

    def __init__(self, places: int, queue: int) -> None:
        self.places, self.queue = places, queue
        self.inside = self.waiting = 0
        self.lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.mean = 0.0

    async def enter(self, client: str, patience: float | None) -> float:
        """Wait for a place, for `patience` seconds at most; a time stamp for `leave`. Raises Busy."""
        if self.inside >= self.places:
            await self._wait(client, patience)
        else:
            self.inside += 1
        return time.monotonic()

    def leave(self, entered: float) -> None:
        """Give the place back: to whoever is next."""
        held = time.monotonic() - entered
        self.mean = _MEMORY * self.mean + (1 - _MEMORY) * held if self.mean else held
        while self.lines:
            client, line = self.lines.popitem(last=False)
            future = line.popleft()
            if line:
                self.lines[client] = line  # to the end of the round
            if not future.done():
                future.set_result(None)
                return
        self.inside -= 1

    def expected(self, client: str) -> float:
        """Seconds that a newcomer of this client would wait, as far as the past tells."""
        own = len(self.lines.get(client, ()))
        ahead = sum(min(len(line), own + 1) for line in self.lines.values())
        return (ahead + 1) / self.places * self.mean if self.inside >= self.places else 0.0

    async def _wait(self, client: str, patience: float | None) -> None:
        if self.waiting >= self.queue:
            raise Busy(f"the sandbox's queue of {self.queue} is full")
        if patience is not None and self.expected(client) > patience:
            raise Busy(f"the wait for a place in the sandbox would outlast {patience:g} s")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lines.setdefault(client, deque()).append(future)
        self.waiting += 1
        try:
            await asyncio.wait_for(asyncio.shield(future), patience)
        except BaseException as error:
            self._abandon(client, future)
            if isinstance(error, TimeoutError):
                raise Busy(f"no place in the sandbox within {patience:g} s") from error
            raise
        finally:
            self.waiting -= 1

    def _abandon(self, client: str, future: "asyncio.Future[None]") -> None:
        if future.done() and not future.cancelled():
            self.leave(time.monotonic())  # the place came too late
            return
        future.cancel()
        line = self.lines.get(client)
        if line is not None and future in line:
            line.remove(future)
            if not line:
                del self.lines[client]
