"""An engine over one or more servers.

Invariants:
- each token counts once: a request without an answer is sent again unchanged, an interrupted one continues after its
  tokens, and each token has the version of the weights that drew it;
- weights change only while no request is in flight;
- a cancelled `generate` is aborted on its server.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from agentrl.core.errors import InfraError
from agentrl.core.open_files import allow_files
from agentrl.engines.engine import Generation, Sampling
from agentrl.engines.sampling import within
from agentrl.engines.servers.backend import Answer, ServerBackend
from agentrl.engines.servers.http import RequestRefused, RequestTimeout, ServerLost
from agentrl.engines.servers.in_flight import InFlightRequest
from agentrl.engines.servers.replica import Progress, Replica
from agentrl.engines.servers.replica_pool import ReplicaPool
from agentrl.engines.servers.request_gate import RequestGate
from agentrl.engines.servers.scratch import Scratch
from agentrl.engines.servers.weights.transport import Transport
from agentrl.trajectory.medium import Medium

MAX_RETRIES = 5
MAX_TIMEOUTS = 1
"""Timeouts of one request: a retry draws the same tokens, so a second timeout is not the server's fault."""
Check = Callable[[Sequence[Replica]], Awaitable[None]]


class RemoteEngine:
    """`agentrl.engines.engine.Engine` over HTTP servers of one backend."""

    def __init__(
        self,
        backend: ServerBackend,
        replicas: Sequence[Replica],
        transport: Transport,
        *,
        max_model_len: int,
        start_timeout: float = 600.0,
        request_timeout: float | None = None,
        partial: bool = True,
        check: Check | None = None,
        scratch: Scratch | None = None,
        router: str | None = None,
        progress: Progress = lambda _: None,
    ) -> None:
        """Timeouts in seconds. `transport` sends the weights, first at the first `update_weights`: until then the
        servers may have any weights. `partial`: an update interrupts the requests in flight; otherwise it waits for
        them. `check` runs on replicas that have just got weights. `scratch` is removed at the end. `router`: address of
        a router that chooses the replica of a request. `progress` gets a line about the start."""
        self.backend, self.transport, self.check, self.progress = backend, transport, check, progress
        self.max_model_len, self.start_timeout = max_model_len, start_timeout
        self.partial, self.scratch = partial, scratch
        self.pool = ReplicaPool(
            replicas, lambda replica: self._send([replica], self.version), start_timeout=start_timeout
        )
        self.gate = RequestGate(backend, self.pool, timeout=request_timeout, router=router)
        self.version = 0
        self._in_flight: set[InFlightRequest] = set()

    async def start(self) -> None:
        allow_files()
        for replica in self.pool.replicas:
            replica.launch()
        await asyncio.gather(*(r.ready(self.start_timeout, self.progress) for r in self.pool.replicas))
        for replica in self.pool.replicas:
            replica.serving = True

    async def answers(self) -> bool:
        """Whether all servers are ready now: `start` would return at once."""
        return all(await asyncio.gather(*(replica.answers() for replica in self.pool.replicas)))

    async def close(self) -> None:
        await self.gate.close()
        await self.transport.close()
        await self.pool.close()
        if self.scratch is not None:
            self.scratch.remove()

    def open(self, key: str) -> None:
        """Nothing to do: servers need no announcement."""

    def release(self, key: str) -> None:
        self.pool.forget(key)
        self.gate.end_soon([request for request in self._in_flight if request.key == key])

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, key: str, media: Sequence[Medium] = ()
    ) -> Generation:
        """Continue `token_ids`. Raises UserError for a request that cannot work, InfraError when servers fail."""
        sampling = within(sampling, len(token_ids), self.max_model_len)
        request = InFlightRequest(key, tuple(media))
        self._in_flight.add(request)
        try:
            return await self._finish(request, token_ids, sampling)
        finally:
            self._in_flight.discard(request)

    async def abort(self) -> None:
        await self.gate.end(list(self._in_flight))
        await self.gate.settled()

    async def pause(self) -> None:
        """Interrupt all requests: those in flight return their tokens, and continue after them at `resume`."""
        await self.gate.halt()

    async def resume(self) -> None:
        self.gate.unlock()

    async def update_weights(self, version: int) -> None:
        """Send the policy's current weights to every server. A sleeping engine is awake afterwards."""
        reopen = self.gate.open or any(replica.asleep for replica in self.pool.replicas)
        await (self.gate.halt() if self.partial else self.gate.drain())
        for _ in range(MAX_RETRIES):
            await self.pool.whole()
            try:
                await self._send(self.pool.replicas, version)
                break
            except ServerLost:
                await self.pool.find_lost()
        else:
            raise InfraError(f"weights did not reach the servers in {MAX_RETRIES} tries; their logs say why")
        self.version = version
        if reopen:
            await self.resume()

    async def sleep(self) -> None:
        """Free the memory of weights and caches. Requests wait for `wake`."""
        await self.pause()
        for replica in self.pool.serving:
            await self.backend.sleep(replica.http)
            replica.asleep = True

    async def wake(self) -> None:
        """Allocate it again, and load the policy's current weights."""
        if any(replica.asleep for replica in self.pool.replicas):
            await self.update_weights(self.version)

    async def health(self) -> dict[str, float]:
        loads = await asyncio.gather(*(self.backend.load(replica.http) for replica in self.pool.serving))
        if not loads:
            raise InfraError("no engine serves")
        totals = {name: sum(load[name] for load in loads) for name in loads[0]}
        return totals | {"replicas": float(len(loads)), "in_flight": float(len(self._in_flight))}

    async def _finish(self, request: InFlightRequest, prompt: list[int], sampling: Sampling) -> Generation:
        while True:
            await self.gate.wait(request)
            if request.ended:
                return request.generation("abort", self.version)
            replica = await self.pool.pick(request.key)
            if not self.gate.open:
                continue
            version = self.version
            left = replace(sampling, max_new_tokens=sampling.max_new_tokens - len(request.token_ids))
            answer = await self._request(request, replica, prompt + request.token_ids, left)
            if answer is None:
                continue
            request.take(answer, version)
            if answer.finish_reason != "abort" or len(request.token_ids) >= sampling.max_new_tokens:
                return request.generation(
                    "length" if answer.finish_reason == "abort" else answer.finish_reason, version
                )

    async def _request(
        self, request: InFlightRequest, replica: Replica, ids: list[int], sampling: Sampling
    ) -> Answer | None:
        """The answer to one HTTP request; None: none came, so it can be sent again without doubling tokens."""
        try:
            return await self.gate.ask(request, replica, ids, sampling)
        except (ServerLost, RequestRefused) as error:
            # A server that is shutting down refuses everything; that is no answer to this request.
            if isinstance(error, RequestRefused) and (error.status < 500 or await replica.answers()):
                raise
            request.retries += 1
            request.timeouts += isinstance(error, RequestTimeout)
            if request.retries > MAX_RETRIES or request.timeouts > MAX_TIMEOUTS:
                raise InfraError(f"given up after {request.retries} tries: {error}") from error
            self.pool.lost(replica)
            return None

    async def _send(self, replicas: Sequence[Replica], version: int) -> None:
        """Send the weights. Memory for the cache is allocated after them: so the peak is lowest."""
        for replica in replicas:
            if replica.asleep:
                await self.backend.wake(replica.http, "weights")
            await self.backend.begin_update(replica.http)
        await self.transport.push(replicas)
        for replica in replicas:
            await self.backend.end_update(replica.http, version)
            if replica.asleep:
                await self.backend.wake(replica.http, "kv_cache")
                replica.asleep = False
        if self.check is not None:
            await self.check(replicas)
