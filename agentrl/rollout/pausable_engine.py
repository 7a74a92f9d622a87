"""Engines around another one, which they stop for updates; one of them measures how busy it is.

Invariants:
- the engine counts as idle while it has no request, and while requests are held back for the update;
- its mean number of requests is that of the time in which they are not held back;
- without `partial`, a request that has begun ends before the engine stops: all its tokens have one version;
- the time in which a request is held back counts towards no limit of its conversation (core/clocks.py).
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from agentrl.core.clocks import Pauses, uncounted
from agentrl.engines.engine import Engine, Generation, Sampling
from agentrl.trajectory.medium import Medium


class StoppableEngine(ABC):
    """Holds requests of an engine back while it is paused, sleeps, or gets weights; all other calls go to it."""

    weight_version = 0
    _paused = False
    """Whether requests are held back after `update_weights` too: not after `sleep`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    @abstractmethod
    async def stop(self) -> None:
        """Hold requests back."""

    @abstractmethod
    async def go_on(self) -> None:
        """Let requests continue, with the weights of `weight_version`."""

    async def pause(self) -> None:
        self._paused = True
        await self.stop()
        await self.engine.pause()

    async def resume(self) -> None:
        self._paused = False
        await self.engine.resume()
        await self.go_on()

    async def update_weights(self, version: int) -> None:
        """Load the current weights. An engine that was not paused before is stopped for the time of the update."""
        await self.stop()
        await self.engine.update_weights(version)
        self.weight_version = version
        if not self._paused:
            await self.go_on()

    async def sleep(self) -> None:
        self._paused = False
        await self.stop()
        await self.engine.sleep()

    async def wake(self) -> None:
        await self.engine.wake()
        await self.go_on()


class PausableEngine(StoppableEngine):
    """Measures an engine and stops it; used from one event loop."""

    def __init__(self, engine: Engine, *, partial: bool = True) -> None:
        """`partial`: `rollout.partial_rollout`."""
        super().__init__(engine)
        self.partial = partial
        self._admits, self._empty = asyncio.Event(), asyncio.Event()
        self._admits.set()
        self._empty.set()
        self._running = 0
        self._halted, self._pauses = False, Pauses()
        self._idle = self._open = self._requests = 0.0
        self._interruptions = 0
        self._marked = self._begun = time.perf_counter()

    async def activity(self) -> dict[str, float]:
        """Since the last call: share of the time without sampling, mean number of requests, interrupted requests."""
        self._mark()
        spent, self._begun = self._marked - self._begun, self._marked
        figures = {
            "perf/engine_idle_share": self._idle / spent if spent else 0.0,
            "perf/running_requests": self._requests / self._open if self._open else 0.0,
            "perf/interruptions": float(self._interruptions),
        }
        self._idle = self._open = self._requests = 0.0
        self._interruptions = 0
        return figures

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, key: str, media: Sequence[Medium] = ()
    ) -> Generation:
        """Continue `token_ids`, when the engine takes requests."""
        with uncounted():
            await self._admits.wait()
        self._count(1)
        try:
            with self._pauses.request():
                return await self.engine.generate(token_ids, sampling, key=key, media=media)
        finally:
            self._count(-1)

    async def stop(self) -> None:
        """Count the engine as idle, and its requests as interrupted; without `partial`, when those that have begun have
        ended."""
        if not self.partial:
            self._admits.clear()
            await self._empty.wait()
        self._mark()
        if not self._halted:
            self._interruptions += self._running
        self._halted = True
        self._pauses.set(paused=True)

    async def go_on(self) -> None:
        """Count the engine as idle only without requests."""
        self._mark()
        self._halted = False
        self._pauses.set(paused=False)
        self._admits.set()

    def _count(self, change: int) -> None:
        self._mark()
        self._running += change
        if self._running:
            self._empty.clear()
        else:
            self._empty.set()

    def _mark(self) -> None:
        now = time.perf_counter()
        spent, self._marked = now - self._marked, now
        if self._halted or not self._running:
            self._idle += spent
        if not self._halted:
            self._open += spent
            self._requests += spent * self._running
