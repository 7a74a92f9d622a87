"""Runs an agent in the container of its row: image, start, set-up, agent, verification, stop.

Invariants:
- a container belongs to one try of one trajectory. It is stopped when the try ends, also by an error or a
  cancellation; where the run's reward function scores it, when that has ended;
- each phase has its own limit, and none counts towards the agent's; a phase that fails masks the trajectory, but
  for a verification where `reward.on_failure` is zero;
- an agent that ended by an infrastructure error is not verified; one that ended in any other way is;
- images are prepared in the background, ahead of need.
"""

import asyncio
import logging
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from agentrl.config.schema.rollout import Containers
from agentrl.containers import Container, ContainerProvider, ContainerSpec
from agentrl.core.clocks import now
from agentrl.core.contracts import keywords_of
from agentrl.core.errors import InfraError, UserError
from agentrl.core.points import CONTAINER_PROVIDERS, TASK_FORMATS
from agentrl.core.registry import is_path
from agentrl.core.shares import share_of, worker
from agentrl.rewards.scorer import without_verdict
from agentrl.tasks.format import SET_UP_TIMEOUT, VERIFY_TIMEOUT, TaskFormat, TookTooLong, Verdict, through_steps
from agentrl.tasks.images import PreparedImages
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Span, SpanKind, Trajectory

log = logging.getLogger(__name__)

KEY = "rollout.containers.provider"
STOP_LIMIT = 60.0
"""Seconds that a trajectory waits for the end of its container; after that it is removed in the background."""

SHORTEST_SPAN = 0.001
"""Seconds; a shorter phase is not shown."""

Phase = SpanKind | Literal["run"]
"""`run` is the agent's; its parts have their own spans."""
Agent = Callable[..., Awaitable[None]]
"""Fills a trajectory in `own_timeout` seconds (None: the run's limit); failures become the trajectory's outcome."""
Adapt = Callable[[ContainerSpec], ContainerSpec]

PHASES = {
    "build": "the container's image",
    "start": "the container's start",
    "set_up": "the task's set-up",
    "run": "the agent",
    "verify": "the task's verification",
}
"""How messages name them."""


class TaskRunner:
    """The containers of a run's trajectories. Belongs to one event loop; without rows that ask for it, it does
    nothing."""

    def __init__(self, containers: Containers | None = None, *, on_failure: str = "mask") -> None:
        """`on_failure`: `reward.on_failure`."""
        self.containers, self.on_failure = containers or Containers(), on_failure
        self._running: dict[int, tuple[Container, asyncio.Task[None] | None]] = {}
        """By id, each container that may exist, with the task that stops it."""
        self.phases: Counter[str] = Counter()
        """Trajectories in each phase, for the live view."""
        self.images = PreparedImages(self._prepare)

    @cached_property
    def provider(self) -> ContainerProvider:
        """Made when a row first asks for a container. Raises UserError."""
        made: ContainerProvider = CONTAINER_PROVIDERS.make(self.containers.provider, KEY, self.containers)
        return made

    async def _prepare(self, spec: ContainerSpec) -> None:
        if spec.services is not None and not getattr(self.provider, "composes", False):
            raise UserError(f"{KEY}={self.containers.provider} runs no services beside a container; use docker")
        await self.provider.prepare(spec)

    def expect(self, rows: Iterable[Row]) -> None:
        """Begin to prepare the images of rows. Raises UserError for a row that describes no container."""
        for spec in specs_of({row.uid: row for row in rows}.values(), self.containers):
            self.images.expect(spec)

    async def run(self, trajectory: Trajectory, agent: Agent, adapt: Adapt = lambda spec: spec) -> None:
        """Run the agent in a container and verify its work. `adapt`: what the agent changes of the container.

        A failure becomes the trajectory's outcome; raises UserError alone.
        """
        trajectory.extra["task"] = {**(trajectory.row.task or {}), "seconds": {}}
        task, kept = task_for(trajectory.row, self.containers), False
        try:
            await self._start(trajectory, task, adapt(task.spec))
            verdict = await through_steps(task, partial(self._step, trajectory, agent, task))
            kept = trajectory.outcome is not Outcome.INFRA_ERROR and verdict is None
            if verdict is not None:
                trajectory.extra["task"]["output"] = verdict.output
                trajectory.reward = verdict.reward
                trajectory.reward_extra |= verdict.scores
        except UserError:
            raise
        except InfraError as error:
            self._fail(trajectory, error)
        except Exception as error:  # formats and providers may be the user's own
            log.exception("trajectory %s", trajectory.key)
            self._fail(trajectory, error)
        finally:
            if not kept:
                await self.release(trajectory)

    async def release(self, trajectory: Trajectory) -> None:
        """Stop the container of a trajectory, if it still has one. Never raises."""
        container, trajectory.container = trajectory.container, None
        if id(container) in self._running:
            await asyncio.wait([self._stop(container)], timeout=STOP_LIMIT)

    async def close(self) -> None:
        """Stop what is left. Never raises."""
        await self.images.close()
        if self._running:
            await asyncio.wait([self._stop(one) for one, _ in self._running.values()], timeout=STOP_LIMIT)
        if "provider" in self.__dict__:
            await self.provider.close()

    @cached_property
    def _starting(self) -> asyncio.Semaphore:
        """Each rollout worker starts at least one at once: a limit below the number of workers is no error."""
        most = max(self.containers.max_starting, worker()[1])
        return asyncio.Semaphore(share_of(most, "rollout.containers.max_starting"))

    async def _start(self, trajectory: Trajectory, task: TaskFormat, spec: ContainerSpec) -> None:
        """Give the trajectory a container that is ready for the agent."""
        async with self._phase(trajectory, "build"):
            for needed in (spec, *getattr(task, "further", ())):
                await self.images.ready(needed)
        async with self._starting:
            container = trajectory.container = self.provider.container(spec)
            self._running[id(container)] = container, None
            async with self._phase(trajectory, "start", spec.start_timeout):
                await container.start()
        trajectory.extra["task"] |= {**getattr(task, "offers", {}), "container": container.name}
        await self._set_up(trajectory, task)

    async def _set_up(self, trajectory: Trajectory, step: TaskFormat) -> None:
        async with self._phase(trajectory, "set_up", getattr(step, "set_up_timeout", SET_UP_TIMEOUT)):
            await step.set_up(trajectory.container)

    async def _step(self, trajectory: Trajectory, agent: Agent, task: TaskFormat, step: Any) -> Verdict | None:
        """Work on a step, or on the whole task, and verify it. None: the agent failed, or the run's reward function
        scores it."""
        about, part = trajectory.extra["task"], trajectory
        if step is not task:
            await self._set_up(trajectory, step)
            part = trajectory.part(step.prompt)
        async with self._phase(trajectory, "run"):
            await agent(part, own_timeout=step.agent_timeout)
        if step is not task:
            trajectory.append(part)
        trajectory.extra["task"] = about  # an agent may use the name, too
        if trajectory.outcome is Outcome.INFRA_ERROR:
            about["failed"] = "run"
            return None
        if "logs" not in about:
            about["logs"] = str(kept_folder(trajectory))
        async with self._phase(trajectory, "verify", getattr(step, "verify_timeout", VERIFY_TIMEOUT)):
            logs = Path(about["logs"], getattr(step, "name", ""))
            verdict: Verdict | None = await step.verify(trajectory.container, logs)
        return verdict

    def _fail(self, trajectory: Trajectory, error: Exception) -> None:
        failed = trajectory.extra["task"].get("failed")
        reason = str(error) if isinstance(error, InfraError) else f"{type(error).__name__}: {error}"
        reason = f"{PHASES.get(failed, 'the container')}: {reason}"
        if failed == "verify":
            without_verdict(trajectory, reason, self.on_failure)
            if trajectory.scored:
                return
        trajectory.outcome, trajectory.error = Outcome.INFRA_ERROR, reason
        trajectory.finish = "timeout" if isinstance(error, TookTooLong) else "error"

    @asynccontextmanager
    async def _phase(self, trajectory: Trajectory, kind: Phase, limit: float | None = None) -> AsyncIterator[None]:
        """Record the seconds of the body, and its name where it fails. Raises TookTooLong after `limit` seconds."""
        about, start, timeout = trajectory.extra["task"], now(), asyncio.timeout(limit)
        about["failed"] = kind
        self.phases[kind] += 1
        try:
            async with timeout:
                yield
        except TimeoutError:
            if not timeout.expired():  # a time limit of the body's own
                raise
            raise TookTooLong("it", limit or 0.0) from None
        else:
            del about["failed"]
        finally:
            self.phases[kind] -= 1
            end = now()
            about["seconds"][kind] = round(end - start + about["seconds"].get(kind, 0.0), 3)
            if kind != "run" and end - start > SHORTEST_SPAN:
                trajectory.spans.append(Span(kind, start, end))

    def _stop(self, container: Container) -> asyncio.Task[None]:
        """The task that stops a container; a cancellation of who waits for it does not reach it."""
        stop = self._running[id(container)][1]
        if stop is None:
            stop = asyncio.create_task(container.stop())
            self._running[id(container)] = container, stop
            stop.add_done_callback(lambda _: self._running.pop(id(container), None))
        return stop


def task_for(row: Row, containers: Containers) -> TaskFormat:
    """The task of a row that has one. Raises UserError, which begins with the row's uid."""
    arguments, key = row.task or {}, "extra_info.task.format"
    try:
        if is_path(arguments["format"]):
            fix = "register it by model.external_lib, and name it by its name"
            raise UserError(f"{key}={arguments['format']}: a row is data, and names no code by its path; {fix}")
        kind = TASK_FORMATS.get(arguments["format"], key)
        passed = {"pass_env": containers.pass_env} if "pass_env" in keywords_of(kind) else {}
        task: TaskFormat = TASK_FORMATS.make(arguments["format"], key, arguments, **passed)
    except UserError as error:
        raise UserError(f"{row.uid}: {error}") from None
    return task


def specs_of(rows: Iterable[Row], containers: Containers) -> Iterator[ContainerSpec]:
    """The containers of rows, and those that their verifiers start. Raises UserError."""
    for row in rows:
        if row.task:
            task = task_for(row, containers)
            yield from (task.spec, *getattr(task, "further", ()))


def kept_folder(trajectory: Trajectory) -> Path:
    """An empty folder that lives as long as its trajectory: reward functions find its files."""
    folder = tempfile.mkdtemp(prefix="agentrl-rollout-")
    weakref.finalize(trajectory, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
