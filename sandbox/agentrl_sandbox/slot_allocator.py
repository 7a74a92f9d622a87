"""A slot allocator: a bounded queue with one line per client, served in turn, so that no client starves another.

Invariant: a caller waits for its whole `queue_timeout`, unless the queue is full.
"""

import asyncio
from collections import OrderedDict, deque

from agentrl_sandbox.job import Busy


class SlotAllocator:
    """`slots` are in use at most, and up to `queue` callers wait (None: any number). Belongs to one event loop."""

    def __init__(self, slots: int, queue: int | None = None) -> None:
        self.slots, self.queue = slots, queue
        self.used = self.waiting = 0
        self.lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def acquire(self, client: str, queue_timeout: float | None) -> None:
        """Take a slot, after at most `queue_timeout` seconds (None: any time). Raises Busy."""
        if self.used >= self.slots:
            await self._wait(client, queue_timeout)
        else:
            self.used += 1

    def release(self) -> None:
        """Give a slot back: the next caller gets it."""
        while self.lines:
            client, line = self.lines.popitem(last=False)
            future = line.popleft()
            if line:
                self.lines[client] = line  # to the end of the round
            if not future.done():
                future.set_result(None)
                return
        self.used -= 1

    async def _wait(self, client: str, queue_timeout: float | None) -> None:
        if self.queue is not None and self.waiting >= self.queue:
            raise Busy(f"the sandbox's queue of {self.queue} is full; serve with a larger --queue")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lines.setdefault(client, deque()).append(future)
        self.waiting += 1
        try:
            await asyncio.wait_for(asyncio.shield(future), queue_timeout)
        except BaseException as error:
            self._abandon(client, future)
            if isinstance(error, TimeoutError):
                raise Busy(f"no free slot in the sandbox within {queue_timeout:g} s; more slots would help") from error
            raise
        finally:
            self.waiting -= 1

    def _abandon(self, client: str, future: "asyncio.Future[None]") -> None:
        if future.done() and not future.cancelled():
            self.release()  # the slot came too late
            return
        future.cancel()
        line = self.lines.get(client)
        if line is not None and future in line:
            line.remove(future)
            if not line:
                del self.lines[client]
