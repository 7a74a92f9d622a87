"""The gate before the servers: sends requests, stops them, and interrupts those in flight.

Invariants: no request is sent while the gate is closed; a request whose answer is not needed any more is aborted on its
server.
"""

import asyncio
import itertools
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from agentrl.engines.engine import Sampling
from agentrl.engines.servers.backend import Answer, ServerBackend
from agentrl.engines.servers.in_flight import InFlightRequest
from agentrl.engines.servers.replica import Replica
from agentrl.engines.servers.replica_pool import ReplicaPool
from agentrl.http.client import Http, RequestTimeout, quietly


class RequestGate:
    """Sends all requests for tokens to the servers of `pool`."""

    def __init__(self, backend: ServerBackend, pool: ReplicaPool, *, timeout: float | None, router: str | None) -> None:
        """`timeout`: seconds for one request. `router`: address of a router that chooses the replica."""
        self.backend, self.pool, self.timeout = backend, pool, timeout
        self.router = None if router is None else Http(router)
        self.open = True
        self._wire: dict[str, Replica] = {}
        self._changed = asyncio.Event()
        self._rids = map(f"{secrets.token_hex(4)}-{{}}".format, itertools.count())
        self._aborts: set[asyncio.Task[None]] = set()

    async def ask(self, request: InFlightRequest, replica: Replica, ids: Sequence[int], sampling: Sampling) -> Answer:
        """One request. Raises ServerLost and RequestRefused."""
        rid = request.rid = next(self._rids)
        self._wire[rid] = replica
        try:
            http = self.router or replica.http
            return await self.backend.generate(http, rid, ids, sampling, self.timeout, request.media)
        except (asyncio.CancelledError, RequestTimeout):
            self._background(self._abort({replica: [rid]}))
            raise
        finally:
            del self._wire[rid]
            self._notify()

    async def wait(self, request: InFlightRequest) -> None:
        """Wait until requests may go out, or the request is over."""
        await self._until(lambda: self.open or request.ended)

    def unlock(self) -> None:
        """Open the gate."""
        self.open = True
        self._notify()

    async def halt(self) -> None:
        """Close the gate, and interrupt the requests in flight: they return the tokens they have."""
        self.open = False
        await self._interrupt(set(self._wire))

    async def drain(self) -> None:
        """Close the gate, and wait until the requests in flight are done."""
        self.open = False
        await self._until(lambda: not self._wire)

    async def end(self, requests: Sequence[InFlightRequest]) -> None:
        """End requests: they return the tokens they have."""
        for request in requests:
            request.ended = True
        self._notify()
        await self._interrupt({request.rid for request in requests})

    def end_soon(self, requests: Sequence[InFlightRequest]) -> None:
        """The same, without waiting for it."""
        if requests:
            self._background(self.end(requests))

    async def settled(self) -> None:
        """Wait for aborts that still run: those of cancelled requests too."""
        await asyncio.gather(*self._aborts, return_exceptions=True)

    async def close(self) -> None:
        """Wait for aborts that still run."""
        await self.settled()
        if self.router is not None:
            await self.router.close()

    async def _interrupt(self, rids: set[str]) -> None:
        while rids := rids & self._wire.keys():
            wanted: dict[Replica, list[str]] = {}
            for rid in rids:
                wanted.setdefault(self._wire[rid], []).append(rid)
            await self._abort(wanted)
            try:  # again after a while: an abort may reach the server before its request does
                async with asyncio.timeout(0.2):
                    await self._until(lambda: not (rids & self._wire.keys()))
            except TimeoutError:
                continue

    async def _abort(self, wanted: dict[Replica, list[str]]) -> None:
        """End requests on their servers; behind a router, on all servers, since it does not say which one serves."""
        if self.router is not None:
            everything = list(itertools.chain(*wanted.values()))
            wanted = dict.fromkeys(self.pool.serving, everything)
        await asyncio.gather(*(quietly(self.backend.abort(r.http, own)) for r, own in wanted.items()))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _background(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)
