"""An engine made of servers.

Invariants:
- tokens are counted once: a request that got no answer is sent again as it was, one that was interrupted goes on
  after the tokens it has, and each token bears the version of the weights that drew it;
- weights change only while no request is on the wire;
- a cancelled `generate` is aborted on its server.
"""

import asyncio
import itertools
import secrets
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrl.errors import InfraError
from agentrl.rollout.engine import FinishReason, Generation, Sampling
from agentrl.rollout.engines.remote.dialect import Answer, Dialect
from agentrl.rollout.engines.remote.http import Http, Lost, quietly
from agentrl.rollout.engines.remote.pool import Pool
from agentrl.rollout.engines.remote.replica import Progress, Replica
from agentrl.rollout.engines.remote.weights.transport import Transport
from agentrl.rollout.sampling import within

MOST_RESENDS = 5
Check = Callable[[Sequence[Replica]], Awaitable[None]]


@dataclass(eq=False)
class Flight:
    """One `generate` on its way: what it drew so far."""

    key: str
    rid: str = ""
    """Of the request on the wire."""
    ended: bool = False
    """Somebody asked for it to return what it has."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    candidates: tuple[tuple[int, float], ...] = ()

    def take(self, answer: Answer, version: int) -> None:
        """Add what a request drew."""
        if len(answer.token_ids) != len(answer.logprobs):
            raise InfraError(f"{len(answer.token_ids)} tokens came with {len(answer.logprobs)} log-probs")
        self.candidates = self.candidates if self.token_ids else answer.candidates
        self.token_ids += answer.token_ids
        self.logprobs += answer.logprobs
        self.versions += [version] * len(answer.token_ids)

    def landed(self, reason: FinishReason, version: int) -> Generation:
        """What the caller gets."""
        first = self.versions[0] if self.versions else version
        return Generation(self.token_ids, self.logprobs, reason, first, tuple(self.versions), self.candidates)


class RemoteEngine:
    """`agentrl.rollout.engine.Engine` over HTTP servers that speak one dialect."""

    def __init__(
        self,
        dialect: Dialect,
        replicas: Sequence[Replica],
        transport: Transport,
        *,
        max_model_len: int,
        start_timeout: float = 600.0,
        request_timeout: float | None = None,
        check: Check | None = None,
        scratch: Path | None = None,
        router: str | None = None,
        progress: Progress = lambda _: None,
    ) -> None:
        """Timeouts in seconds. Weights come by `transport`, at the first `update_weights`: before that the servers
        may hold anything. `check` is run on replicas that have just got weights. `scratch` is a folder to remove at
        the end. `router`: address of a router before the replicas, which decides who serves a request. `progress` is
        told how the start goes."""
        self.dialect, self.transport, self.check, self.progress = dialect, transport, check, progress
        self.scratch = scratch
        self.router = None if router is None else Http(router)
        self.max_model_len, self.start_timeout, self.request_timeout = max_model_len, start_timeout, request_timeout
        self.pool = Pool(replicas, lambda replica: self._send([replica], self.version), start_timeout=start_timeout)
        self.version = 0
        self._flights: set[Flight] = set()
        self._wire: dict[str, Replica] = {}
        self._open = True
        self._changed = asyncio.Event()
        self._rids = map(f"{secrets.token_hex(4)}-{{}}".format, itertools.count())
        self._aborts: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        for replica in self.pool.replicas:
            replica.launch()
        await asyncio.gather(*(r.ready(self.start_timeout, self.progress) for r in self.pool.replicas))
        for replica in self.pool.replicas:
            replica.serving = True

    async def close(self) -> None:
        await asyncio.gather(*self._aborts, return_exceptions=True)
        await self.transport.close()
        await self.pool.close()
        if self.router is not None:
            await self.router.close()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def open(self, key: str) -> None:
        """Nothing to announce: servers batch what comes."""

    def release(self, key: str) -> None:
        self.pool.forget(key)
        flights = [flight for flight in self._flights if flight.key == key]
        if flights:
            self._background(self._end(flights))

    async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str) -> Generation:
        """Continue `token_ids`. Raises UserError for a request that cannot work, InfraError when servers fail."""
        sampling = within(sampling, len(token_ids), self.max_model_len)
        flight = Flight(key)
        self._flights.add(flight)
        try:
            return await self._fly(flight, token_ids, sampling)
        finally:
            self._flights.discard(flight)

    async def abort(self) -> None:
        await self._end(list(self._flights))

    async def pause(self) -> None:
        """Hold all requests: those on the wire come back with what they have, and go on from there at `resume`."""
        self._open = False
        await self._interrupt(set(self._wire))

    async def resume(self) -> None:
        self._open = True
        self._notify()

    async def update_weights(self, version: int) -> None:
        """Send the policy's present weights to every server. A sleeping engine is awake afterwards."""
        reopen = self._open or any(replica.asleep for replica in self.pool.replicas)
        await self.pause()
        for _ in range(MOST_RESENDS):
            await self.pool.whole()
            try:
                await self._send(self.pool.replicas, version)
                break
            except Lost:
                await self.pool.find_lost()
        else:
            raise InfraError(f"weights did not reach the servers in {MOST_RESENDS} tries; their logs say why")
        self.version = version
        if reopen:
            await self.resume()

    async def sleep(self) -> None:
        """Give back the memory of weights and caches. Requests wait for `wake`."""
        await self.pause()
        for replica in self.pool.serving:
            await self.dialect.sleep(replica.http)
            replica.asleep = True

    async def wake(self) -> None:
        """Take it back, and the policy's present weights with it."""
        if any(replica.asleep for replica in self.pool.replicas):
            await self.update_weights(self.version)

    async def health(self) -> dict[str, float]:
        loads = await asyncio.gather(*(self.dialect.load(replica.http) for replica in self.pool.serving))
        if not loads:
            raise InfraError("no engine serves")
        totals = {name: sum(load[name] for load in loads) for name in loads[0]}
        return totals | {"replicas": float(len(loads)), "in_flight": float(len(self._flights))}

    async def _fly(self, flight: Flight, prompt: list[int], sampling: Sampling) -> Generation:
        losses = 0
        while True:
            await self._until(lambda: self._open or flight.ended)
            if flight.ended:
                return flight.landed("abort", self.version)
            replica = await self.pool.pick(flight.key)
            if not self._open:
                continue
            version = self.version
            left = replace(sampling, max_new_tokens=sampling.max_new_tokens - len(flight.token_ids))
            try:
                answer = await self._request(flight, replica, prompt + flight.token_ids, left)
            except Lost as error:  # nothing of the answer has come, so nothing can be doubled
                self.pool.lost(replica)
                losses += 1
                if losses > MOST_RESENDS:
                    raise InfraError(f"given up after {losses} tries: {error}") from error
                continue
            flight.take(answer, version)
            if answer.finish_reason != "abort" or len(flight.token_ids) >= sampling.max_new_tokens:
                return flight.landed("length" if answer.finish_reason == "abort" else answer.finish_reason, version)

    async def _request(self, flight: Flight, replica: Replica, ids: list[int], sampling: Sampling) -> Answer:
        rid = flight.rid = next(self._rids)
        self._wire[rid] = replica
        try:
            return await self.dialect.generate(self.router or replica.http, rid, ids, sampling, self.request_timeout)
        except asyncio.CancelledError:
            self._background(self._abort({replica: [rid]}))
            raise
        finally:
            del self._wire[rid]
            self._notify()

    async def _send(self, replicas: Sequence[Replica], version: int) -> None:
        """Weights first, the cache's memory after them: the peak is lowest so."""
        for replica in replicas:
            if replica.asleep:
                await self.dialect.wake(replica.http, "weights")
            await self.dialect.begin_update(replica.http)
        await self.transport.push(replicas)
        for replica in replicas:
            await self.dialect.end_update(replica.http, version)
            if replica.asleep:
                await self.dialect.wake(replica.http, "kv_cache")
                replica.asleep = False
        if self.check is not None:
            await self.check(replicas)

    async def _end(self, flights: Sequence[Flight]) -> None:
        """Have flights return what they have."""
        for flight in flights:
            flight.ended = True
        self._notify()
        await self._interrupt({flight.rid for flight in flights if flight.rid in self._wire})

    async def _interrupt(self, rids: set[str]) -> None:
        """Have requests on the wire come back, and wait until they have."""
        while rids := rids & self._wire.keys():
            wanted: dict[Replica, list[str]] = {}
            for rid in rids:
                wanted.setdefault(self._wire[rid], []).append(rid)
            await self._abort(wanted)
            try:  # again after a while: a request still on its way to the server did not hear it
                async with asyncio.timeout(0.2):
                    await self._until(lambda: not (rids & self._wire.keys()))
            except TimeoutError:
                continue

    async def _abort(self, wanted: dict[Replica, list[str]]) -> None:
        """End requests on their servers; behind a router nobody knows which those are."""
        if self.router is not None:
            everything = list(itertools.chain(*wanted.values()))
            wanted = dict.fromkeys(self.pool.serving, everything)
        await asyncio.gather(*(quietly(self.dialect.abort(r.http, own)) for r, own in wanted.items()))

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
