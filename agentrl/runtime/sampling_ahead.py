"""What a runtime adds for `trainer.max_staleness` > 0: rollouts that continue while the policy trains.

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

from agentrl.engines.engine import Engine
from agentrl.engines.servers import RemoteEngine
from agentrl.rollout.garbage import deferred_collection
from agentrl.rollout.metered import MeteredEngine
from agentrl.rollout.rollouts import Rollouts
from agentrl.rollout.stream import AdmittedBatch, Pending
from agentrl.runtime.loop_thread import LoopThread
from agentrl.trajectory.trajectory import Trajectory


class SamplingAhead:
    """Pauses an engine for updates, and begins batches beside them."""

    def __init__(
        self, runner: LoopThread, engine: Engine, servers: RemoteEngine | None, *, partial: bool = True
    ) -> None:
        """`servers`: those behind `engine`; None: it samples from the tensors that are trained. `partial`: an update
        interrupts requests; otherwise it waits for those that have begun."""
        self.runner, self.shares_parameters = runner, servers is None
        self.engine = MeteredEngine(engine, partial=partial)
        self._weights = asyncio.Lock() if servers is None else servers.weights_lock
        self._paused = False
        self._tasks = set[asyncio.Task[Any] | None]()
        self._stack = ExitStack()
        self._stack.enter_context(deferred_collection())

    def begin(self, rollouts: Rollouts, batch: AdmittedBatch) -> Pending:
        """Begin the trajectories of a batch."""
        self.resume()
        return self.runner.start(self._noted(rollouts.stream(batch)))

    def pause(self) -> None:
        """Before the trainer uses shared parameters: stop at the present token."""
        if self.shares_parameters and not self._paused:
            self.runner.run(self.engine.pause())
            self._paused = True

    def resume(self) -> None:
        """Continue after `pause`."""
        if self._paused:
            self.runner.run(self.engine.resume())
            self._paused = False

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Within the body the weights change."""
        self.runner.run(self._weights.acquire())
        try:
            yield
        finally:
            self.runner.run(self._release())

    def activity(self) -> dict[str, float]:
        """As `RolloutWorkers` says."""
        return self.runner.run(self.engine.activity())

    def close(self) -> None:
        """Cancel the trajectories that are under way; safe to call twice."""
        if self._tasks:
            self.runner.run(self._cancel())
        self._stack.close()

    async def _noted(self, work: Coroutine[Any, Any, list[Trajectory]]) -> list[Trajectory]:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)

    async def _cancel(self) -> None:
        tasks = [task for task in self._tasks if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _release(self) -> None:
        self._weights.release()
