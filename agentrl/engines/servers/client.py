"""Sends requests for tokens to servers: when they may go out, what is sent again, and how they are interrupted.

Invariants:
- each token counts once: a request without an answer is sent again unchanged, an interrupted one continues after its
  tokens, and each token has the version of the weights that drew it;
- no request is sent while the client is paused;
- a request whose answer is not needed any more, such as that of a cancelled `generate`, is aborted on its server.
"""

import asyncio
import itertools
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from agentrl.core.clocks import uncounted
from agentrl.core.errors import InfraError
from agentrl.core.grouping import grouped
from agentrl.core.tasks import Tasks
from agentrl.engines.engine import Drawn, Generation, Sampling, limit_sampling
from agentrl.engines.experts import checked_experts
from agentrl.engines.scores import ServerScores
from agentrl.engines.servers.backend import ServerAnswer, ServerBackend
from agentrl.engines.servers.replica import Replica
from agentrl.engines.servers.replica_pool import ReplicaPool
from agentrl.http.client import Http, RequestRefused, RequestTimeout, ServerLost, quietly
from agentrl.trajectory.medium import Media, Medium

MAX_RETRIES = 5
MAX_TIMEOUTS = 1
"""Timeouts of one request: a retry draws the same tokens, so a second timeout is not the server's fault."""
ABORT_AGAIN_SECONDS = 0.2
"""Seconds after which an abort is repeated: it may reach the server before its request does."""


@dataclass(eq=False)
class InFlightRequest(Drawn):
    """One call of `generate`, which takes one or more HTTP requests. After the `finish_reason` "abort" it returns the
    tokens that it has."""

    prompt: Sequence[int]
    sampling: Sampling
    media: tuple[Medium, ...] = ()
    """Images and videos of the prompt."""
    rid: str = ""
    """Id of the current HTTP request."""
    retries: int = 0
    """HTTP requests that got no answer."""
    timeouts: int = 0
    """HTTP requests that exceeded the timeout."""
    token_ids: list[int] = field(default_factory=list)

    @property
    def input_ids(self) -> Sequence[int]:
        """The prompt and the tokens drawn after it."""
        return [*self.prompt, *self.token_ids] if self.token_ids else self.prompt

    @property
    def remaining(self) -> Sampling:
        """The sampling of the tokens that are still to be drawn."""
        left = replace(self.sampling, max_new_tokens=self.sampling.max_new_tokens - len(self.token_ids))
        if left.experts_from is None:
            return left
        return replace(left, experts_from=left.experts_from + sum(map(len, self.experts)))

    def take(self, answer: ServerAnswer, version: int, experts: int = 0) -> None:
        """Add the tokens of an answer; `experts`: of the model in a layer. Raises InfraError when log-probs or experts
        do not match the tokens."""
        if len(answer.token_ids) != len(answer.logprobs):
            raise InfraError(f"{len(answer.token_ids)} tokens came with {len(answer.logprobs)} log-probs")
        if (start := self.remaining.experts_from) is not None and answer.token_ids:
            if answer.experts is None:
                raise InfraError("the server returned no experts: does it run with --enable-return-routed-experts?")
            rows = len(self.input_ids) + len(answer.token_ids) - 1 - start
            self.experts.append(checked_experts(answer.experts, rows=rows, experts=experts))
        self.candidates = self.candidates if self.token_ids else answer.candidates
        self.token_ids += answer.token_ids
        self.logprobs += answer.logprobs
        self.versions += [version] * len(answer.token_ids)
        if answer.finish_reason != "abort":
            self.finish_reason = answer.finish_reason
        elif len(self.token_ids) >= self.sampling.max_new_tokens:
            self.finish_reason = "length"


class ServerClient:
    """The half of `agentrl.engines.engine.Engine` that trajectories use, over HTTP servers of one backend."""

    def __init__(self, backend: ServerBackend, pool: ReplicaPool, *, paused: bool = False) -> None:
        """Time limits and the address of a router are those of the backend's settings."""
        self.backend, self.pool, self.paused = backend, pool, paused
        self.rollout, self.max_model_len = backend.settings.rollout, backend.settings.max_model_len
        self.router = None if self.rollout.router_url is None else Http(self.rollout.router_url)
        """Chooses the replica of a request."""
        self.version = 0
        self._in_flight: defaultdict[str, set[InFlightRequest]] = defaultdict(set)
        """By key, until its release."""
        self._wire: dict[str, Replica] = {}
        """Replica of each HTTP request without an answer, by the request's id."""
        self._changed = asyncio.Event()
        self._rids = map(f"{secrets.token_hex(4)}-{{}}".format, itertools.count())
        self._aborts = Tasks()

    async def close(self) -> None:
        """Close all connections; servers that the run started end too."""
        await self._settle()
        await self.pool.close()

    def open(self, key: str) -> None:
        """Nothing to do: servers need no announcement."""

    def release(self, key: str) -> None:
        self.pool.forget(key)
        if requests := self._in_flight.pop(key, None):
            self._aborts.start(self._end(requests))

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, key: str, media: Media = ()
    ) -> Generation:
        """Continue `token_ids`. Raises UserError for a request that cannot work, InfraError when servers fail."""
        sampling = limit_sampling(sampling, len(token_ids), self.max_model_len)
        request = InFlightRequest(token_ids, sampling, tuple(media))
        same_key = self._in_flight[key]
        same_key.add(request)
        try:
            while request.finish_reason is None:
                if (replica := await self._admitted(request, key)) is not None:
                    await self._send(request, replica)
        finally:
            same_key.discard(request)
        return request.generation(request.token_ids, self.version)

    async def score(
        self, ids: Sequence[int], media: Media, first: int, k: int, *, key: str, adapter: str | None = None
    ) -> ServerScores:
        """The log-probs of given tokens; see `ServerBackend.score`. Raises InfraError when servers fail."""
        request, name = InFlightRequest(ids, Sampling(1)), self.backend.adapter(adapter)
        while True:
            replica = await self.pool.pick(key)
            try:
                timeout = self.rollout.request_timeout
                return await self.backend.score(replica.http, ids, media, first, k, timeout, name)
            except (ServerLost, RequestRefused) as error:
                await self._lost(request, replica, error)
            except (TypeError, ValueError, LookupError, AttributeError, StopIteration) as error:  # another's server
                raise InfraError(f"{replica.url} returns no log-probs of given tokens: {error!r}") from error

    async def abort(self) -> None:
        await self._end([request for requests in self._in_flight.values() for request in requests])
        await asyncio.gather(*self._aborts, return_exceptions=True)

    async def pause(self) -> None:
        """Interrupt all requests: they keep the tokens that they have, and continue after them at `resume`."""
        self.paused = True
        await self._interrupt(set(self._wire))

    async def resume(self) -> None:
        self.paused = False
        self._notify()

    async def _admitted(self, request: InFlightRequest, key: str) -> Replica | None:
        """The replica to send a request to, once requests may go out; None: it has ended meanwhile."""
        with uncounted():
            while True:
                await self._until(lambda: not self.paused or request.finish_reason is not None)
                replica = None if request.finish_reason else await self.pool.pick(key)
                if request.finish_reason or not self.paused:
                    return replica

    async def _send(self, request: InFlightRequest, replica: Replica) -> None:
        """Send one HTTP request and take the tokens of its answer, if one comes. Raises InfraError."""
        http, version = self.router or replica.http, self.version
        try:
            with self._on_wire(request, replica) as rid:
                answer = await self.backend.generate(
                    http, rid, request.input_ids, request.remaining, self.rollout.request_timeout, request.media
                )
        except (ServerLost, RequestRefused) as error:
            await self._lost(request, replica, error)
        else:
            request.take(answer, version, (self.backend.settings.experts or (0,))[0])

    @contextmanager
    def _on_wire(self, request: InFlightRequest, replica: Replica) -> Iterator[str]:
        """Give a request a new id, by which it can be interrupted within the body. Where it is cancelled or late, the
        server is asked to end it."""
        rid = request.rid = next(self._rids)
        self._wire[rid] = replica
        try:
            yield rid
        except (asyncio.CancelledError, RequestTimeout):
            self._aborts.start(self._abort({replica: [rid]}))
            raise
        finally:
            del self._wire[rid]
            self._notify()

    async def _lost(self, request: InFlightRequest, replica: Replica, error: ServerLost | RequestRefused) -> None:
        """Count a request without an answer, and restart its replica: sent again, it doubles no token. Raises the error
        of one that must not be sent again."""
        # A server that is shutting down refuses everything; that is no answer to this request.
        if isinstance(error, RequestRefused) and (error.status < 500 or await replica.answers()):
            raise error
        request.retries += 1
        request.timeouts += isinstance(error, RequestTimeout)
        if request.retries > MAX_RETRIES or request.timeouts > MAX_TIMEOUTS:
            raise InfraError(f"given up after {request.retries} tries: {error}") from error
        self.pool.lost(replica)

    async def _end(self, requests: Iterable[InFlightRequest]) -> None:
        """End requests: they return the tokens that they have."""
        rids = {request.rid for request in requests}
        for request in requests:
            request.finish_reason = "abort"
        self._notify()
        await self._interrupt(rids)

    async def _interrupt(self, rids: set[str]) -> None:
        """End HTTP requests on their servers, and wait for their answers."""
        while rids := rids & self._wire.keys():
            await self._abort(grouped(rids, self._wire.__getitem__))
            try:
                async with asyncio.timeout(ABORT_AGAIN_SECONDS):
                    await self._until(lambda: not (rids & self._wire.keys()))
            except TimeoutError:
                continue

    async def _abort(self, rids: dict[Replica, list[str]]) -> None:
        """End requests on their servers; behind a router, on all servers, since it does not say which one serves."""
        if self.router is not None:
            everything = list(itertools.chain(*rids.values()))
            rids = dict.fromkeys(self.pool.serving, everything)
        await asyncio.gather(*(quietly(self.backend.abort(r.http, own)) for r, own in rids.items()))

    async def _settle(self) -> None:
        """Wait for aborts that are still under way, and close the connections to a router."""
        await asyncio.gather(*self._aborts, return_exceptions=True)
        if self.router is not None:
            await self.router.close()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
