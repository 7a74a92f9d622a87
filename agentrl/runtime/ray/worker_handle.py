"""The controller's side of one rollout worker.

Invariant: a worker that died is started again until it was started `MAX_STARTS` times; meanwhile others take over what
it had not finished.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayError

from agentrl.core.errors import InfraError, UserError, plural
from agentrl.core.tasks import Tasks, cancelled
from agentrl.rollout.group_jobs import GroupJob
from agentrl.rollout.worker_scheduler import WorkerLost
from agentrl.runtime.ray.failures import answered, plain_error
from agentrl.runtime.ray.links import State
from agentrl.runtime.ray.rollout_worker import Event, Lost
from agentrl.training.checkpoint.restarts import WorkerDied
from agentrl.trajectory.store import Store, Stored
from agentrl.trajectory.trajectory import Trajectory

log = logging.getLogger(__name__)

MAX_STARTS = 5
CLOSING = 10.0
"""Seconds that a worker has to stop its tools."""


@dataclass(eq=False)
class WorkerHandle:
    """One rollout worker; a `GroupWorker`."""

    name: str
    make: Callable[[], tuple[Any, Any]]
    """Starts its process: (the actor, the answer to come of its `open`)."""
    confirm: Callable[[str], Any]
    """Waits until a server serves again."""
    state: Callable[[], State]
    store: Store
    """Has the bodies of its trajectories."""
    actor: Any = None
    load: int = 0
    starts: int = 0
    _opening: Any = None
    _serving: asyncio.Event = field(default_factory=asyncio.Event)
    _lost: str | None = None
    _tasks: Tasks = field(default_factory=Tasks)

    @property
    def serving(self) -> bool:
        """Whether it takes jobs."""
        return self._serving.is_set()

    def launch(self) -> None:
        """Start its process; returns at once."""
        self.starts += 1
        self.actor, self._opening = self.make()

    async def opened(self) -> None:
        """Wait until it is ready, and listen to it from now on. Raises UserError."""
        await answered(self._opening, self.name)
        told: State = -1  # of no version
        while told != self.state():
            told = self.state()
            await self.actor.set.remote(told)
        self._serving.set()
        self._tasks.start(self._listen())

    async def run(self, job: GroupJob) -> AsyncGenerator[Trajectory, None]:
        """Run a job on this worker."""
        await self._serving.wait()
        if self._lost:
            raise InfraError(self._lost)
        actor = self.actor
        made = actor.run.options(num_returns="streaming").remote(job)
        try:
            async for body in made:
                outline = await (await anext(made, body))  # the last item of a job that failed is its error
                yield Stored(replace(outline, body=body), job.row, self.store)
        except RayError as error:
            found = plain_error(error, self.name)
            if not isinstance(found, WorkerDied):
                raise found from error
            self._died(actor)
            raise WorkerLost(f"{self.name} died") from error
        finally:
            ray.cancel(made)  # does nothing where it has ended

    async def ask(self, method: str, *args: Any) -> Any:
        """Call it; None where it is dead: when it is started again, it learns the state."""
        if not self.serving or self._lost:
            return None
        try:
            return await answered(getattr(self.actor, method).remote(*args), self.name)
        except WorkerDied:
            return None

    async def close(self) -> None:
        """Stop it."""
        await cancelled(self._tasks)
        if self.actor is not None:
            with suppress(TimeoutError, RayError):
                await asyncio.wait_for(self.actor.close.remote(), CLOSING)
            ray.kill(self.actor)

    async def _listen(self) -> None:
        actor = self.actor
        with suppress(RayError):
            async for event in actor.events.options(num_returns="streaming").remote():
                self._receive(await event)
        self._died(actor)

    def _died(self, actor: Any) -> None:
        """Start it again, once for each death."""
        if actor is not self.actor or not self.serving:
            return
        self._serving.clear()
        left = plural(self.load, "conversation")
        log.warning("%s died: what it had not finished (%s) starts over", self.name, left)
        self._tasks.start(self._revive())

    async def _revive(self) -> None:
        try:
            if self.starts >= MAX_STARTS:
                raise InfraError(f"{self.name} died {MAX_STARTS} times: killed, out of memory, or a tool ends it")
            ray.kill(self.actor)
            self.launch()
            await self.opened()
            log.warning("%s runs again", self.name)
        except (InfraError, UserError, RayError) as error:
            self._lost = str(error)
            self._serving.set()  # whoever waits for it raises that

    def _receive(self, event: Event) -> None:
        if isinstance(event, Lost):
            self._tasks.start(self._confirm(event.url))
        else:
            logging.getLogger(event.name).log(event.levelno, "%s: %s", self.name, event.getMessage())

    async def _confirm(self, url: str) -> None:
        error = None
        try:
            await self.confirm(url)
        except InfraError as failure:
            error = str(failure)
        await self.ask("serves", url, error)
