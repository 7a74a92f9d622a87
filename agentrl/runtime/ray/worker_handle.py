"""The controller's side of one rollout worker.

Invariant: a worker that died is started again until it was started `MAX_STARTS` times; meanwhile others take over what
it had not finished.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from agentrl.core.errors import InfraError, UserError, plural
from agentrl.core.tasks import Tasks, cancelled
from agentrl.rollout.group_jobs import Done, GroupJob
from agentrl.rollout.worker_scheduler import WorkerLost
from agentrl.runtime.ray.failures import plain_error
from agentrl.runtime.ray.links import State
from agentrl.runtime.ray.rollout_worker import Lost
from agentrl.trajectory.store import Store, Stored
from agentrl.trajectory.trajectory import Trajectory

log = logging.getLogger(__name__)

MAX_STARTS = 5
CLOSING = 10.0
"""Seconds that a worker has to stop its tools."""
Take = Callable[[Trajectory], None]


@dataclass(eq=False)
class Sent:
    """A job that a worker has."""

    job: GroupJob
    take: Take
    ended: "asyncio.Future[None]"


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
    _sent: dict[int, Sent] = field(default_factory=dict)
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
        try:
            await self._opening
        except RayError as error:
            raise plain_error(error, self.name) from error
        state = None
        while state != self.state():
            state = self.state()
            await self.actor.set.remote(state)
        self._serving.set()
        self._tasks.start(self._listen())

    async def run(self, job: GroupJob, take: Take) -> None:
        """Run a job on this worker."""
        await self._serving.wait()
        if self._lost:
            raise InfraError(self._lost)
        sent = self._sent[job.number] = Sent(job, take, asyncio.get_running_loop().create_future())
        try:
            self.actor.start.remote(job)
            await sent.ended
        except asyncio.CancelledError:
            self.actor.cancel.remote(job.number)
            raise
        finally:
            del self._sent[job.number]

    async def ask(self, method: str, *args: Any) -> Any:
        """Call it; None where it is dead: when it is started again, it learns the state."""
        if not self.serving or self._lost:
            return None
        try:
            return await getattr(self.actor, method).remote(*args)
        except RayActorError:
            return None
        except RayError as error:
            raise plain_error(error, self.name) from error

    async def close(self) -> None:
        """Stop it."""
        await cancelled(self._tasks)
        if self.actor is not None:
            with suppress(TimeoutError, RayError):
                await asyncio.wait_for(self.actor.close.remote(), CLOSING)
            ray.kill(self.actor)

    async def _listen(self) -> None:
        while True:
            try:
                events = await asyncio.gather(*map(self._with_body, await self.actor.events.remote()))
            except RayError:
                break
            for event in events:
                self._receive(event)
        self._serving.clear()
        left = sum(len(sent.job.trajectories) for sent in self._sent.values())
        log.warning("%s died: what it had not finished (%s) starts over", self.name, plural(left, "conversation"))
        for sent in self._sent.values():
            if not sent.ended.done():
                sent.ended.set_exception(WorkerLost(f"{self.name} died"))
        self._tasks.start(self._revive())

    async def _with_body(self, event: Any) -> Any:
        """The event; the body of its trajectory is in the store."""
        if not isinstance(event, Done) or event.outline is None:
            return event
        there, body = self.actor.take.options(num_returns=2).remote(event.outline.body)
        await there
        return replace(event, outline=replace(event.outline, body=body))

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

    def _receive(self, event: Any) -> None:
        if isinstance(event, Lost):
            self._tasks.start(self._confirm(event.url))
        elif isinstance(event, logging.LogRecord):
            logging.getLogger(event.name).log(event.levelno, "%s: %s", self.name, event.getMessage())
        elif (sent := self._sent.get(event.job)) is not None:
            self._finished(sent, event)

    def _finished(self, sent: Sent, event: Done) -> None:
        if sent.ended.done():
            return
        try:
            if event.error is not None:
                raise event.error
            assert event.outline is not None
            trajectory = Stored(event.outline, sent.job.row, self.store)
            sent.take(trajectory)
            sent.job.trajectories.pop(trajectory.key)
        except Exception as error:  # a user's objects unpack themselves; the waiting caller gets the error
            sent.ended.set_exception(error)
            return
        if not sent.job.trajectories:
            sent.ended.set_result(None)

    async def _confirm(self, url: str) -> None:
        error = None
        try:
            await self.confirm(url)
        except InfraError as failure:
            error = str(failure)
        await self.ask("serves", url, error)
