"""Links from rollout workers to the engine.

Invariant: each worker begins elsewhere among equally loaded engines, so that not all choose the first one.
"""

from dataclasses import dataclass
from typing import Any

from agentrl.core.shares import worker
from agentrl.engines.engine import Engine
from agentrl.engines.servers import RemoteEngine, Replica, ServerBackend
from agentrl.engines.servers.client import ServerClient
from agentrl.engines.servers.replica_pool import ReplicaPool
from agentrl.runtime.ray.engine import RayEngine
from agentrl_sandbox.open_files import allow_open_files

State = int | None
"""The engine's state, which all workers must know: the version of its weights; None: requests wait."""


@dataclass
class ServerLink:
    """To SGLang and vLLM servers, by HTTP. Each worker prefers another one of equally loaded servers."""

    backend: ServerBackend
    urls: tuple[str, ...]
    engine: Any = None
    """The worker's end, once it is open."""

    def open(self, lost: Any) -> None:
        """Make the worker's end. `lost(url)` returns when a server that did not answer serves again."""
        allow_open_files()
        replicas = [Replica(self.backend, url) for url in turned(self.urls)]
        for replica in replicas:
            replica.serving = True
        pool = ReplicaPool(replicas, lambda replica: lost(replica.url))
        self.engine = ServerClient(self.backend, pool, paused=True)

    async def set(self, state: State) -> None:
        """Halt the requests, or let them continue with the weights of the version."""
        if state is None:
            await self.engine.pause()
        else:
            self.engine.version = state
            await self.engine.resume()


@dataclass
class ActorLink:
    """To hf engines in Ray workers, which the controller itself pauses."""

    actors: tuple[Any, ...]
    names: tuple[str, ...]
    engine: Any = None

    def open(self, lost: Any) -> None:
        """Make the worker's end."""
        self.engine = RayEngine(turned(self.actors), turned(self.names), push=lambda _: None)

    async def set(self, state: State) -> None:
        """Nothing to do: the engines stop at their present token."""


def turned(items: Any) -> list[Any]:
    """The items in an order that begins elsewhere in each worker, so that not all choose the first one."""
    number, workers = worker()
    first = number * len(items) // workers
    return [*items[first:], *items[:first]]


Link = ServerLink | ActorLink
"""How a rollout worker reaches the engine; sent to the worker."""


def link_to(own: Engine) -> Link:
    """How workers reach the engine."""
    if isinstance(own, RayEngine):
        handles = own.workers
        return ActorLink(tuple(handle.actor for handle in handles), tuple(handle.name for handle in handles))
    assert isinstance(own, RemoteEngine)
    return ServerLink(own.backend, tuple(replica.url for replica in own.pool.replicas))
