"""Checks of rows' containers: the provider answers, the first images are there, the first row's task runs."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentrl.config.schema.rollout import Containers
from agentrl.containers import ContainerSpec
from agentrl.core.errors import InfraError, UserError, plural
from agentrl.core.plugins import import_external
from agentrl.doctor.finding import Finding, ok, problem
from agentrl.tasks.runner import PHASES, Agent, TaskRunner, task_for
from agentrl.tracking.waiting import Waiting
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory

MOST_IMAGES = 4
"""Images that are prepared before a run begins; the others are prepared during it."""


def check_containers(config: Any, rows: Iterable[Row]) -> None:
    """Rows describe containers that the provider can make. Raises UserError.

    Images are looked at here only where containers run here, and not on the machines of rollout workers.
    """
    rows = [row for row in rows if row.task]
    if not rows:
        return
    import_external(config.model.external_lib, "model")  # may register formats
    containers = config.rollout.containers
    specs = {(str(spec.image), str(spec.build)): spec for spec in (task_for(row, containers).spec for row in rows)}
    if not config.rollout.agent.num_workers:
        _prepared(containers, [*specs.values()][:MOST_IMAGES])


def _prepared(settings: Containers, specs: list[ContainerSpec]) -> None:
    """Have the images. Raises UserError."""
    with Waiting("containers") as waiting, ThreadPoolExecutor(1) as thread:
        waiting(f"preparing {plural(len(specs), 'container image')}")
        work = thread.submit(asyncio.run, _prepare(settings, specs))  # there may be an event loop in this thread
        try:
            work.result()
        except InfraError as error:
            cause = error.__cause__  # it has the last lines of a failed build
            raise cause if isinstance(cause, UserError) else UserError(str(error)) from None


async def _prepare(settings: Containers, specs: list[ContainerSpec]) -> None:
    tasks = TaskRunner(settings)
    try:
        await asyncio.gather(*(tasks.images.ready(spec) for spec in specs))
    finally:
        await tasks.close()


async def row_runs(tasks: TaskRunner, row: Row, agent: Agent, trajectory: Trajectory) -> AsyncIterator[Finding]:
    """Run a row's task from the image to the verification, with `agent` in the agent's place."""
    await tasks.run(trajectory, agent)
    about = trajectory.extra["task"]
    seconds = ", ".join(f"{PHASES[phase]} {took:.1f} s" for phase, took in about["seconds"].items() if phase != "run")
    if trajectory.outcome is Outcome.INFRA_ERROR:
        yield problem(f"{row.uid}: {trajectory.error}", "fix the task, or leave the row out: it is masked")
    else:
        scored = "" if trajectory.reward is None else f"; no work at all scores {trajectory.reward:g}"
        yield ok(f"{row.uid}: {seconds}{scored}")
