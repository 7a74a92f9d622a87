"""A Ray worker that makes trajectories: conversations, tools, interactions, templates, rewards.

Invariants:
- it sends requests to the engine itself; the controller starts servers and sends weights, and no request is under way
  while they change;
- all that it reports besides trajectories goes out in order by `events`;
- the body of a trajectory is taken apart from its outline, and goes to the ranks that train on it.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from agentrl.config.schema import Config
from agentrl.core.errors import InfraError
from agentrl.rollout.group_jobs import GroupJob
from agentrl.rollout.user_objects import UserObjects
from agentrl.runtime.ray.links import Link, ServerLink, State
from agentrl.runtime.ray.worker import Worker


@dataclass(frozen=True)
class Lost:
    """A server did not answer; the controller restarts it and calls `serves`."""

    url: str


Event = Lost | logging.LogRecord
"""A record is a warning, for the run's log."""


class RolloutWorker(Worker):
    """Makes the trajectories of the jobs that it gets. `AGENTRL_ROLLOUT_WORKER` has its number."""

    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, config: Config, folder: str, env: dict[str, str], threads: int, path: list[str]) -> None:
        """`path`: the controller's `sys.path`, for the user's modules."""
        sys.path.extend(entry for entry in path if entry not in sys.path)
        super().__init__(config, folder, env, threads)
        self._events = asyncio.Queue[Event]()
        self._served: dict[str, asyncio.Future[None]] = {}

    async def open(self, link: Link, objects: UserObjects, scored: bool) -> None:
        """Load tools, interactions and rewards. `scored`: whether rewards are computed here. Raises UserError."""
        from agentrl.engines.teachers import launch_teachers
        from agentrl.rollout.group_jobs import GroupJobs
        from agentrl.rollout.pausable_engine import PausableEngine
        from agentrl.rollout.rollouts import Rollouts
        from agentrl.training import load_tokenizer

        assert self.device.type == "cpu"  # PyTorch has few threads there, should a tool use it
        self.link = link
        link.open(self._lost)
        self.engine = PausableEngine(link.engine, partial=self.config.rollout.partial_rollout)
        tokenizer = load_tokenizer(self.config.model)
        teachers = launch_teachers(self.config, "cpu", _never)  # their servers run
        self.rollouts = Rollouts(
            self.config, tokenizer, self.engine, _never, objects=objects, scored=scored, teachers=teachers
        )
        self.jobs = GroupJobs(self.rollouts.scheduler)  # type: ignore[arg-type]  # not spread any further
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=_end_with, args=(threading.current_thread(),), daemon=True).start()

    async def run(self, job: GroupJob) -> AsyncIterator[Any]:
        """Two items for each trajectory of a job, as it finishes: its body, which Ray's store has from then on, also
        when this process ends, and its outline."""
        async with aclosing(self.jobs.run(job)) as outlines:
            async for outline in outlines:
                yield outline.body
                yield replace(outline, body=None)

    async def events(self) -> AsyncIterator[Event]:
        """Events, without an end."""
        while True:
            yield await self._events.get()

    async def set(self, state: State) -> None:
        """Halt the requests, or let them continue; returns when no halted request is under way."""
        if state is None:
            await self.engine.stop()
        await self.link.set(state)
        if state is not None:
            await self.engine.go_on()

    async def serves(self, url: str, error: str | None) -> None:
        """A lost server serves again, or is given up for a reason."""
        waiting = self._served.pop(url, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(InfraError(error)) if error else waiting.set_result(None)

    async def settle(self) -> None:
        """Wait until aborted requests have ended."""
        if isinstance(self.link, ServerLink):
            await self.link.engine.abort()

    async def activity(self) -> dict[str, float]:
        """Metrics of this worker's requests since the last call."""
        return await self.engine.activity()

    async def close(self) -> None:
        """End all conversations, and stop tools, interactions and rewards."""
        await self.jobs.close()
        await self.rollouts.end()

    async def _lost(self, url: str) -> None:
        if url not in self._served:
            self._served[url] = asyncio.get_running_loop().create_future()
            self._events.put_nowait(Lost(url))
        await asyncio.shield(self._served[url])

    def put_nowait(self, record: logging.LogRecord) -> None:
        """Give a warning to the controller at once, from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._events.put_nowait, record)


def _never(*work: Any) -> Any:
    raise RuntimeError("a rollout worker runs on Ray's event loop")


def _end_with(loop: threading.Thread) -> None:
    """End the process with its event loop: SystemExit in user code stops that silently."""
    loop.join()
    os._exit(1)
