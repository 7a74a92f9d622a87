"""Links from rollout workers to the engine.

Invariant: each worker begins elsewhere among equally loaded engines, so that not all choose the first one.
"""

from dataclasses import dataclass
from typing import Any

from agentrl.core.shares import worker
from agentrl.engines.engine import Engine
from agentrl.engines.servers import RemoteEngine
from agentrl.engines.servers.backend import ServerBackend
from agentrl.runtime.ray.engine import RayEngine


@dataclass(frozen=True)
class State:
    """The engine's state, which all workers must know."""

    version: int = 0
    """Version of the weights."""
    halted: bool = True
    """Whether requests wait."""
    drained: bool = False
    """Whether a halt waits for requests in flight, in place of interrupting them."""


@dataclass(frozen=True)
class ServerLink:
    """To SGLang and vLLM servers, by HTTP."""

    backend: ServerBackend
    urls: tuple[str, ...]

    def open(self, lost: Any) -> "ServerClients":
        """The worker's end. `lost(url)` returns when a server that did not answer serves again."""
        return ServerClients(self, lost)


class ServerClients:
    """Requests to all servers. Each worker prefers another one of equally loaded servers."""

    def __init__(self, link: ServerLink, lost: Any) -> None:
        from agentrl.engines.servers.client import ServerClient
        from agentrl.engines.servers.replica import Replica
        from agentrl.engines.servers.replica_pool import ReplicaPool
        from agentrl_sandbox.open_files import allow_open_files

        allow_open_files()
        replicas = [Replica(link.backend, url) for url in turned(link.urls)]
        for replica in replicas:
            replica.serving = True
        pool = ReplicaPool(replicas, lambda replica: lost(replica.url))
        self.client = ServerClient(link.backend, pool, paused=True)
        self.engine: Any = self.client

    async def set(self, state: State) -> None:
        """Halt the requests, or let them continue with the weights of the version."""
        if not state.halted:
            self.client.version = state.version
            await self.client.resume()
        elif state.drained:
            await self.client.drain()
        else:
            await self.client.pause()


@dataclass(frozen=True)
class ActorLink:
    """To hf engines in Ray workers, which the controller itself pauses."""

    actors: tuple[Any, ...]
    names: tuple[str, ...]

    def open(self, lost: Any) -> "ActorClient":
        """The worker's end."""
        from agentrl.runtime.ray.engine import RayEngine

        return ActorClient(RayEngine(turned(self.actors), turned(self.names), push=lambda _: None))


@dataclass
class ActorClient:
    """Requests to hf engines."""

    engine: Any

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
