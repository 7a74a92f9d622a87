"""Sends requests for tokens to servers, and says nothing about their weights.

Invariants:
- each token counts once: a request without an answer is sent again unchanged, an interrupted one continues after its
  tokens, and each token has the version of the weights that drew it;
- a cancelled `generate` is aborted on its server.
"""

from collections.abc import Sequence
from dataclasses import replace

from agentrl.core.clocks import uncounted
from agentrl.core.errors import InfraError
from agentrl.engines.engine import Generation, Sampling
from agentrl.engines.sampling import within
from agentrl.engines.servers.backend import Answer, ServerBackend
from agentrl.engines.servers.in_flight import InFlightRequest
from agentrl.engines.servers.replica import Replica
from agentrl.engines.servers.replica_pool import ReplicaPool
from agentrl.engines.servers.request_gate import RequestGate
from agentrl.http.client import RequestRefused, RequestTimeout, ServerLost
from agentrl.trajectory.medium import Medium

MAX_RETRIES = 5
MAX_TIMEOUTS = 1
"""Timeouts of one request: a retry draws the same tokens, so a second timeout is not the server's fault."""


class ServerClient:
    """The half of `agentrl.engines.engine.Engine` that trajectories use, over HTTP servers of one backend."""

    def __init__(
        self,
        backend: ServerBackend,
        pool: ReplicaPool,
        *,
        max_model_len: int,
        request_timeout: float | None = None,
        router: str | None = None,
    ) -> None:
        """`request_timeout` in seconds. `router`: address of a router that chooses the replica of a request."""
        self.backend, self.pool, self.max_model_len = backend, pool, max_model_len
        self.gate = RequestGate(backend, pool, timeout=request_timeout, router=router)
        self.version = 0
        self._in_flight: dict[str, set[InFlightRequest]] = {}  # by key

    async def close(self) -> None:
        """Close all connections; servers that the run started end too."""
        await self.gate.close()
        await self.pool.close()

    def open(self, key: str) -> None:
        """Nothing to do: servers need no announcement."""

    def release(self, key: str) -> None:
        self.pool.forget(key)
        if key in self._in_flight:
            self.gate.end_soon(list(self._in_flight[key]))

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, key: str, media: Sequence[Medium] = ()
    ) -> Generation:
        """Continue `token_ids`. Raises UserError for a request that cannot work, InfraError when servers fail."""
        sampling = within(sampling, len(token_ids), self.max_model_len)
        request = InFlightRequest(key, tuple(media))
        alike = self._in_flight.setdefault(key, set())
        alike.add(request)
        try:
            return await self._finish(request, token_ids, sampling)
        finally:
            alike.discard(request)
            if not alike:
                self._in_flight.pop(key, None)

    async def abort(self) -> None:
        await self.gate.end([request for alike in self._in_flight.values() for request in alike])
        await self.gate.settled()

    async def pause(self) -> None:
        """Interrupt all requests: those in flight return their tokens, and continue after them at `resume`."""
        await self.gate.halt()

    async def resume(self) -> None:
        self.gate.unlock()

    async def _finish(self, request: InFlightRequest, prompt: Sequence[int], sampling: Sampling) -> Generation:
        while True:
            with uncounted():
                await self.gate.wait(request)
                replica = None if request.ended else await self.pool.pick(request.key)
            if replica is None:
                return request.generation("abort", self.version)
            if not self.gate.open:
                continue
            version = self.version
            left = replace(sampling, max_new_tokens=sampling.max_new_tokens - len(request.token_ids))
            ids = [*prompt, *request.token_ids] if request.token_ids else prompt
            answer = await self._request(request, replica, ids, left)
            if answer is None:
                continue
            request.take(answer, version)
            if answer.finish_reason != "abort" or len(request.token_ids) >= sampling.max_new_tokens:
                return request.generation(
                    "length" if answer.finish_reason == "abort" else answer.finish_reason, version
                )

    async def _request(
        self, request: InFlightRequest, replica: Replica, ids: Sequence[int], sampling: Sampling
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
