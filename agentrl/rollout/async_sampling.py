"""Rollouts that continue while the policy trains, for `trainer.max_staleness` > 0.

Invariants:
- no weights are read for an engine while an update changes them;
- an engine that shares parameters or memory with the trainer draws nothing from the first log-prob of a step to its
  last weight; its requests continue with their next token afterwards, or end before (`rollout.partial_rollout`);
- tools, users and rewards never wait for the policy's update.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from agentrl.core.loop_thread import LoopFuture, LoopThread
from agentrl.core.tasks import Tasks, cancelled
from agentrl.engines.servers import RemoteEngine
from agentrl.rollout.gc_control import deferred_collection
from agentrl.rollout.pausable_engine import StoppableEngine
from agentrl.trajectory.trajectory import Trajectory


class AsyncSampling:
    """Begins batches in the background, and pauses their engine for updates."""

    def __init__(self, thread: LoopThread, engine: StoppableEngine, servers: RemoteEngine | None) -> None:
        """`engine`: measures its `activity`. `servers`: the servers behind it; None: it samples from the tensors that
        are trained."""
        self.thread, self.engine, self.shares_parameters = thread, engine, servers is None
        self._weights = asyncio.Lock() if servers is None else servers.weights_lock
        self._paused = False
        self._tasks = Tasks()
        self._stack = ExitStack()
        self._stack.enter_context(deferred_collection())

    def start(self, work: Coroutine[Any, Any, list[Trajectory]]) -> LoopFuture[list[Trajectory]]:
        """Begin the trajectories of a batch."""
        self.resume()
        return self.thread.start(self._tracked(work))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Carry out other work of the rollouts. The engine samples, even if an update was interrupted before."""
        self.resume()
        return self.thread.run(work)

    def pause(self) -> None:
        """Before the trainer uses shared parameters: stop at the present token."""
        if self.shares_parameters and not self._paused:
            self.thread.run(self.engine.pause())
            self._paused = True

    def resume(self) -> None:
        """Continue after `pause`."""
        if self._paused:
            self.thread.run(self.engine.resume())
            self._paused = False

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Within the body the weights change."""
        self.thread.run(self._weights.acquire())
        try:
            yield
        finally:
            self.thread.run(self._release())

    def activity(self) -> dict[str, float]:
        """Metrics of the engine since the last call."""
        return self.thread.run(self.engine.activity())

    def close(self) -> None:
        """Cancel the trajectories that are under way; safe to call twice."""
        if self._tasks:
            self.thread.run(cancelled(self._tasks))
        self._stack.close()

    async def _tracked(self, work: Coroutine[Any, Any, list[Trajectory]]) -> list[Trajectory]:
        made: list[Trajectory] = await self._tasks.start(work)
        return made

    async def _release(self) -> None:
        self._weights.release()
