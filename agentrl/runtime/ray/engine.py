"""The hf engine on many workers, as the scheduler of trajectories sees it: one engine.

Invariants:
- a trajectory stays on the worker that its first announcement chose, whatever the others do;
- a worker hears of a key before its first request, and of keys in the order in which the scheduler names them: what
  runs together in deterministic mode then depends on no clock.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from agentrl.engines.engine import Generation, Sampling
from agentrl.runtime.ray.failures import plain
from agentrl.runtime.ray.host import Announcement
from agentrl.trajectory.medium import Medium

AHEAD = 8
"""Keys by which a worker may be ahead of the least loaded one before a group is torn apart."""


class Seat:
    """One worker, and what it is still to be told."""

    def __init__(self, actor: Any, name: str) -> None:
        self.actor, self.name = actor, name
        self.load = 0
        self._untold: list[Announcement] = []
        self._telling: asyncio.Future[None] | None = None

    def tell(self, call: str, key: str) -> None:
        """Announce a key soon, together with what else comes up in this turn of the event loop."""
        self._untold.append((call, key))
        if len(self._untold) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    async def told(self) -> None:
        """Wait until the worker has heard everything."""
        self._flush()
        if self._telling is not None:
            await asyncio.shield(self._telling)

    async def ask(self, method: str, *args: Any) -> Any:
        """Call the worker; what goes wrong is raised in one line."""
        ref = getattr(self.actor, method).remote(*args)
        try:
            return await ref
        except asyncio.CancelledError:
            ray.cancel(ref)
            raise
        except RayError as error:
            raise plain(error, self.name) from error

    def _flush(self) -> None:
        calls, self._untold = self._untold, []
        if calls:
            self._telling = asyncio.ensure_future(self._say(calls, self._telling))
            self._telling.add_done_callback(lambda told: told.cancelled() or told.exception())  # seen: others may wait

    async def _say(self, calls: list[Announcement], before: "asyncio.Future[None] | None") -> None:
        if before is not None:
            await before
        await self.ask("announce", calls)


class RayEngine:
    """`agentrl.engines.engine.Engine` over the engines of many workers."""

    def __init__(self, actors: Sequence[Any], names: Sequence[str], push: Callable[[int], None]) -> None:
        """`push` gives all of them the policy's present weights under a version."""
        self.seats = [Seat(actor, name) for actor, name in zip(actors, names, strict=True)]
        self.push = push
        self._places: dict[str, Seat] = {}
        self._groups: dict[str, Seat] = {}

    async def start(self) -> None:
        await self._all("open_engine")

    async def close(self) -> None:
        """The workers end with the runtime."""

    def open(self, key: str) -> None:
        if key not in self._places:
            seat = self._places[key] = self._choose(key.rpartition("/")[0])
            seat.load += 1
        self._places[key].tell("open", key)

    def release(self, key: str) -> None:
        seat = self._places.pop(key, None)
        if seat is not None:
            seat.load -= 1
            seat.tell("release", key)
        if not self._places:
            self._groups.clear()

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, key: str, media: Sequence[Medium] = ()
    ) -> Generation:
        """As the engine's own. Raises UserError and InfraError as that does, WorkerDied when its worker is gone."""
        seat = self._places.get(key) or self._choose(key.rpartition("/")[0])
        await seat.told()
        generation: Generation = await seat.ask("generate", token_ids, sampling, key, tuple(media))
        return generation

    async def abort(self) -> None:
        await self._all("ask", "abort")

    async def pause(self) -> None:
        await self._all("ask", "pause")

    async def resume(self) -> None:
        await self._all("ask", "resume")

    async def update_weights(self, version: int) -> None:
        await asyncio.to_thread(self.push, version)

    async def sleep(self) -> None:
        await self._all("ask", "sleep")

    async def wake(self) -> None:
        await self._all("ask", "wake")

    async def health(self) -> dict[str, float]:
        """Sums over the workers."""
        figures = await self._all("ask", "health")
        versions = figures[0]["weight_version"]
        return {name: sum(f[name] for f in figures) for name in figures[0]} | {"weight_version": versions}

    async def _all(self, method: str, *args: Any) -> list[Any]:
        return await asyncio.gather(*(seat.ask(method, *args) for seat in self.seats))

    def _choose(self, group: str) -> Seat:
        """The worker that has the group's prompt cached, unless that leaves others idle."""
        least = min(self.seats, key=lambda seat: seat.load)
        own = self._groups.setdefault(group, least)
        return own if own.load < least.load + AHEAD else least
