"""An engine over one or more servers, which it starts, and gives the policy's weights.

Invariants, besides those of `ServerClient`: weights change only while no request is in flight; a restarted server
serves again only with the current weights; a server that died `MAX_STARTS` times ends the run.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.core.errors import InfraError
from agentrl.engines.servers.backend import ServerBackend
from agentrl.engines.servers.client import MAX_RETRIES, ServerClient
from agentrl.engines.servers.process import Scratch
from agentrl.engines.servers.replica import Replica
from agentrl.engines.servers.replica_pool import ReplicaPool
from agentrl.http.client import ServerLost, quietly
from agentrl.tracking.waiting import Waiting
from agentrl_sandbox.open_files import allow_open_files

if TYPE_CHECKING:
    from agentrl.engines.servers.weights.transport import Transport

MAX_STARTS = 5
Check = Callable[[Sequence[Replica]], Awaitable[None]]


class RemoteEngine(ServerClient):
    """`agentrl.engines.engine.Engine` over HTTP servers of one backend."""

    def __init__(
        self,
        backend: ServerBackend,
        replicas: Sequence[Replica],
        transport: "Transport | None",
        *,
        check: Check | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        """`transport` sends the weights, first at the first `update_weights`: until then the servers may have any
        weights; None: never. `check` runs on replicas that have just got weights. `scratch` is removed at the end."""
        super().__init__(backend, ReplicaPool(replicas, self._restart))
        self.transport, self.check, self.scratch = transport, check, scratch
        self.adapters: dict[str, Path] = {}
        """Folders of the adapters that were loaded by name."""
        self.weights_lock = asyncio.Lock()
        """Held while the trainer changes the weights: a server that was restarted gets none in that time."""

    async def start(self) -> None:
        allow_open_files()
        for replica in self.pool.replicas:
            replica.launch()
        with Waiting(f"{self.backend.name} starts") as waiting:
            await asyncio.gather(*(r.ready(self.rollout.start_timeout, waiting) for r in self.pool.replicas))
        for replica in self.pool.replicas:
            replica.serving = True

    async def answers(self) -> bool:
        """Whether all servers are ready now: `start` would return at once."""
        return all(await asyncio.gather(*(replica.answers() for replica in self.pool.replicas)))

    async def close(self) -> None:
        await self._settle()
        if self.transport is not None:
            await self.transport.close()  # before its servers end
        await self.pool.close()
        if self.scratch is not None:
            self.scratch.remove()

    async def update_weights(self, version: int) -> None:
        """Send the policy's current weights to every server; requests in flight are interrupted, and continue
        afterwards. A sleeping engine is awake then."""
        resumes = not self.paused or any(replica.asleep for replica in self.pool.replicas)
        await self.pause()
        for _ in range(MAX_RETRIES):
            await self.pool.wait_all_serving()
            try:
                await self._send_weights(self.pool.replicas, version)
                break
            except ServerLost:
                await self.pool.probe(self.pool.replicas)
        else:
            raise InfraError(f"weights did not reach the servers in {MAX_RETRIES} tries; their logs say why")
        self.version = version
        if resumes:
            await self.resume()

    async def load_adapter(self, folder: Path, name: str) -> None:
        """Have requests whose `Sampling.adapter` is `name` sampled from an adapter. Raises InfraError."""
        async with self.weights_lock:  # a server that starts again has it from now on
            await asyncio.gather(*(self.backend.load_adapter(r.http, folder, name) for r in self.pool.serving))
            self.adapters[name] = folder

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter, which no request names."""
        del self.adapters[name]
        await asyncio.gather(*(quietly(self.backend.unload_adapter(r.http, name)) for r in self.pool.serving))

    async def sleep(self) -> None:
        """Free the memory of weights and caches. Requests wait for `wake`."""
        await self.pause()
        await asyncio.gather(*map(self._sleep, self.pool.serving))

    async def _sleep(self, replica: Replica) -> None:
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
        return totals | {"replicas": float(len(loads)), "in_flight": float(sum(map(len, self._in_flight.values())))}

    async def _restart(self, replica: Replica) -> None:
        """Start a server that does not answer again, and send it the current weights between two updates."""
        if replica.starts >= MAX_STARTS:
            raise InfraError(f"{replica.url} died {MAX_STARTS} times; its log says why")
        if replica.server is not None:
            if await replica.answers():
                return
            await replica.server.stop()  # it may hang rather than be dead
            replica.launch()
        await replica.ready(self.rollout.start_timeout)
        async with self.weights_lock:
            await self._send_weights([replica], self.version)

    async def _send_weights(self, replicas: Sequence[Replica], version: int) -> None:
        """Send the weights. Memory for the cache is allocated after them: so the peak is lowest."""
        await asyncio.gather(*map(self._begin_update, replicas))
        if self.transport is not None:
            await self.transport.push(replicas)
        for name, folder in self.adapters.items():
            await asyncio.gather(*(self.backend.load_adapter(r.http, folder, name) for r in replicas))
        await asyncio.gather(*(self._end_update(replica, version) for replica in replicas))
        if self.check is not None:
            await self.check(replicas)

    async def _begin_update(self, replica: Replica) -> None:
        if replica.asleep:
            await self.backend.wake(replica.http, "weights")
        await self.backend.begin_update(replica.http)

    async def _end_update(self, replica: Replica, version: int) -> None:
        await self.backend.end_update(replica.http, version)
        if replica.asleep:
            await self.backend.wake(replica.http, "kv_cache")
            replica.asleep = False
