"""The hf engines of many workers as one engine.

Invariants:
- a trajectory stays on the worker that was chosen at its `open`;
- a worker gets the `open` of a key before its first request, and all `open` calls in the scheduler's order: the
  batches of deterministic mode do not depend on timing.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ray

from agentrl.engines.engine import Engine, Generation, Sampling
from agentrl.runtime.ray.engine_worker import Announcement
from agentrl.runtime.ray.failures import answered
from agentrl.trajectory.medium import Medium

AHEAD = 8
"""Keys that a worker may have more than the least loaded one before its group is split."""


class EngineHandle:
    """One worker, and the announcements it has not been sent yet."""

    def __init__(self, actor: Any, name: str) -> None:
        self.actor, self.name = actor, name
        self.load = 0
        self._pending: list[Announcement] = []
        self._sending: asyncio.Future[None] | None = None

    def announce(self, call: str, key: str) -> None:
        """Queue an announcement; those of one turn of the event loop are sent together."""
        self._pending.append((call, key))
        if len(self._pending) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    async def sent(self) -> None:
        """Wait until all announcements are sent."""
        self._flush()
        if self._sending is not None:
            await asyncio.shield(self._sending)

    async def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the worker. Raises its errors as one line."""
        ref = getattr(self.actor, method).remote(*args, **kwargs)
        try:
            return await answered(ref, self.name)
        except asyncio.CancelledError:
            ray.cancel(ref)
            raise

    def _flush(self) -> None:
        calls, self._pending = self._pending, []
        if calls:
            self._sending = asyncio.ensure_future(self._send(calls, self._sending))
            self._sending.add_done_callback(lambda sent: sent.cancelled() or sent.exception())  # it is seen

    async def _send(self, calls: list[Announcement], before: "asyncio.Future[None] | None") -> None:
        if before is not None:
            await before
        await self.ask("announce", calls)


class RayEngine:
    """An `Engine` over those of many workers, which all get the calls that it does not define."""

    def __init__(self, actors: Sequence[Any], names: Sequence[str], push: Callable[[int], None]) -> None:
        """`push(version)` sends all of them the current weights."""
        self.workers = [EngineHandle(actor, name) for actor, name in zip(actors, names, strict=True)]
        self.push = push
        self._worker_of: dict[str, EngineHandle] = {}
        self._groups: dict[str, EngineHandle] = {}

    async def start(self) -> None:
        await self._all("open_engine")

    async def close(self) -> None:
        """The workers end with the runtime."""

    def open(self, key: str) -> None:
        if key not in self._worker_of:
            worker = self._worker_of[key] = self._choose(key.rpartition("/")[0])
            worker.load += 1
        self._worker_of[key].announce("open", key)

    def release(self, key: str) -> None:
        worker = self._worker_of.pop(key, None)
        if worker is not None:
            worker.load -= 1
            worker.announce("release", key)
        if not self._worker_of:
            self._groups.clear()

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, key: str, media: Sequence[Medium] = ()
    ) -> Generation:
        """Continue `token_ids` on the key's worker. Raises WorkerDied if that is dead."""
        worker = self._worker_of.get(key) or self._choose(key.rpartition("/")[0])
        await worker.sent()
        return await worker.ask("ask", "generate", token_ids, sampling, key=key, media=media)

    async def update_weights(self, version: int) -> None:
        await asyncio.to_thread(self.push, version)

    async def health(self) -> dict[str, float]:
        """Sums over the workers."""
        figures = await self._all("ask", "health")
        versions = figures[0]["weight_version"]
        return {name: sum(f[name] for f in figures) for name in figures[0]} | {"weight_version": versions}

    def __getattr__(self, name: str) -> Any:
        if not hasattr(Engine, name):
            raise AttributeError(name)
        return partial(self._all, "ask", name)

    async def _all(self, method: str, *args: Any) -> list[Any]:
        return await asyncio.gather(*(worker.ask(method, *args) for worker in self.workers))

    def _choose(self, group: str) -> EngineHandle:
        """The worker that has the group's prompt in its cache, unless it is too busy."""
        least = min(self.workers, key=lambda worker: worker.load)
        own = self._groups.setdefault(group, least)
        return own if own.load < least.load + AHEAD else least
