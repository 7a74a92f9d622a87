"""Checks task folders: in each, the task's own solution earns 1 and doing nothing earns 0.

Invariant: a folder that cannot be read, built, started or verified is a report with one line that says why; nothing
that is wrong with one task stops the others.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.containers import Done
from agentrl.core.errors import InfraError, UserError, last_line, one_line
from agentrl.core.tasks import cancelled
from agentrl.tasks.harbor.format import HarborTask
from agentrl.tasks.runner import TaskRunner
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory

SHOWN_CHARACTERS = 160
NEEDS_PROCESSES = "passes only while what the solution left running goes on: add ?processes=keep to tasks:FOLDER"


@dataclass
class TaskReport:
    """How one task did. Seconds of a phase that did not happen are None."""

    name: str
    oracle: float | None = None
    """Reward of the solution; None: it has none, or did not get so far."""
    noop: float | None = None
    build: float | None = None
    start: float | None = None
    verify: float | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = field(default=())
    """The end of what a failed build wrote."""


async def check_tasks(
    tasks: Mapping[str, Path], runner: TaskRunner, logs: Path, *, jobs: int = 2
) -> AsyncIterator[TaskReport]:
    """The report of each task as soon as it is there, at most `jobs` at a time. Logs go to `logs`/NAME. Raises nothing
    that a task is to blame for."""
    slots = asyncio.Semaphore(jobs)

    async def checked(name: str, folder: Path) -> TaskReport:
        report = TaskReport(name)
        async with slots:
            try:
                await _fill(report, folder, runner, logs / name)
            except (UserError, InfraError) as error:
                report.problem = one_line(error)
                report.details = getattr(error.__cause__, "details", ())
        return report

    running = [asyncio.ensure_future(checked(name, folder)) for name, folder in tasks.items()]
    try:
        for report in asyncio.as_completed(running):
            yield await report
    finally:
        await cancelled(running)


async def _fill(report: TaskReport, folder: Path, runner: TaskRunner, logs: Path) -> None:
    """Build a task's image, try its solution and nothing at all. Raises UserError and InfraError."""
    harbor = HarborTask({"path": str(folder)}, pass_env=runner.containers.pass_env)
    report.notes, began = harbor.task.notes, time.monotonic()
    for spec in (harbor.spec, *harbor.further):
        await runner.images.ready(spec)
    report.build = time.monotonic() - began
    nothing, _ = await _trial(folder, runner, logs / "noop")
    seconds = nothing.extra["task"]["seconds"]
    report.noop, report.start = nothing.reward, seconds["start"] + seconds["set_up"]
    report.verify = seconds["verify"]
    if not all(step.task.solution for step in harbor.steps or [harbor]):
        report.notes = (*harbor.task.notes, "it has no solution")
    else:
        solved, done = await _trial(folder, runner, logs / "oracle", harbor)
        report.oracle, report.verify = solved.reward, solved.extra["task"]["seconds"]["verify"]
        if solved.reward != 1:
            kept, _ = await _trial(folder, runner, logs / "oracle-kept", harbor, "keep")
            report.problem = NEEDS_PROCESSES if kept.reward == 1 else _why(solved, done)
    if not report.problem and report.noop != 0:
        report.problem = f"doing nothing earns {report.noop:g}, not 0"


def _why(solved: Trajectory, done: Done) -> str:
    """Why the solution does not earn 1."""
    words = last_line(solved.extra["task"]["output"])[:SHOWN_CHARACTERS]
    if done.code != 0:
        ended = "took too long" if done.code is None else f"ended with exit code {done.code}"
        words = f"it {ended}: {last_line(done.output)[:SHOWN_CHARACTERS]}"
    return f"the solution earns {solved.reward:g}, not 1" + (f": {words}" if words else "")


async def _trial(
    folder: Path, runner: TaskRunner, logs: Path, solving: HarborTask | None = None, processes: str = "stop"
) -> tuple[Trajectory, Done]:
    """A container from its start to the verdict, with the task's solution or nothing for an agent, and how the solution
    ended. Raises InfraError, UserError."""
    task = {"format": "harbor", "path": str(folder), "processes": processes}
    trajectory = Trajectory(Row(folder.name, [], extra_info={"task": task}), folder.name, 0)
    steps, done = iter(solving.steps or [solving] if solving else ()), Done(0, "", "", 0.0)

    async def agent(part: Trajectory, *, own_timeout: float | None) -> None:
        nonlocal done
        for step in [next(steps)] if solving else ():
            done = await step.solve(part.container)

    await runner.run(trajectory, agent)
    if kept := trajectory.extra["task"].get("logs"):
        await asyncio.to_thread(shutil.copytree, kept, logs, dirs_exist_ok=True)
    if trajectory.outcome is Outcome.INFRA_ERROR:
        raise InfraError(str(trajectory.error))
    return trajectory, done
