"""Checks task folders: in each, the task's own solution earns 1 and doing nothing earns 0.

Invariant: a folder that cannot be read, built, started or verified is a report with one line that says why; nothing
that is wrong with one task stops the others.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agentrl.containers import Container, ContainerProvider, Done
from agentrl.core.errors import InfraError, UserError, last_line
from agentrl.tasks.format import Verdict, through_steps
from agentrl.tasks.harbor.format import HarborStep, HarborTask

SHOWN_CHARACTERS = 160
Read = Callable[[str], HarborTask]
"""Reads a task, given what becomes of its processes."""
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


@dataclass(frozen=True)
class ContainerTrial:
    """One container of a task, from its start to the verdict."""

    verdict: Verdict
    start: float
    verify: float
    solved: Done | None


async def check_tasks(
    tasks: Mapping[str, Path],
    provider: ContainerProvider,
    logs: Path,
    *,
    jobs: int = 2,
    pass_env: Collection[str] = (),
) -> AsyncIterator[TaskReport]:
    """The report of each task as soon as it is there, at most `jobs` at a time. Logs go to `logs`/NAME. `pass_env`:
    environment variables that the tasks may have."""
    slots = asyncio.Semaphore(jobs)

    async def checked(name: str, folder: Path) -> TaskReport:
        async with slots:
            return await check_task(name, partial(_task, folder, pass_env), provider, logs / name)

    running = [asyncio.ensure_future(checked(name, folder)) for name, folder in tasks.items()]
    try:
        for report in asyncio.as_completed(running):
            yield await report
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def check_task(name: str, read: Read, provider: ContainerProvider, logs: Path) -> TaskReport:
    """Build a task's image, try its solution and nothing at all. Raises nothing that the task is to blame for."""
    report = TaskReport(name)
    try:
        await _fill(report, read, provider, logs)
    except (UserError, InfraError) as error:
        report.problem = " ".join(str(error).split())
        report.details = getattr(error, "details", ())
    return report


async def _fill(report: TaskReport, read: Read, provider: ContainerProvider, logs: Path) -> None:
    harbor = read("stop")
    task, report.notes = harbor.task, harbor.task.notes
    began = time.monotonic()
    for spec in (harbor.spec, *harbor.further):
        await provider.prepare(spec)
    report.build = time.monotonic() - began
    nothing = await _trial(read, provider, logs / "noop", solve=False)
    report.noop, report.start, report.verify = nothing.verdict.reward, nothing.start, nothing.verify
    if not all(step.task.solution for step in harbor.steps or [harbor]):
        report.notes = (*task.notes, "it has no solution")
    else:
        solved = await _trial(read, provider, logs / "oracle", solve=True)
        report.oracle, report.verify = solved.verdict.reward, solved.verify
        if solved.verdict.reward != 1:
            report.problem = await _why(solved, read, provider, logs)
    if not report.problem and report.noop != 0:
        report.problem = f"doing nothing earns {report.noop:g}, not 0"


async def _why(solved: ContainerTrial, read: Read, provider: ContainerProvider, logs: Path) -> str:
    """Why the solution does not earn 1."""
    kept = await _trial(read, provider, logs / "oracle-kept", solve=True, processes="keep")
    if kept.verdict.reward == 1:
        return NEEDS_PROCESSES
    assert solved.solved is not None
    words = last_line(solved.verdict.output)[:SHOWN_CHARACTERS]
    if solved.solved.code != 0:
        ended = "took too long" if solved.solved.code is None else f"ended with exit code {solved.solved.code}"
        words = f"it {ended}: {last_line(solved.solved.output)[:SHOWN_CHARACTERS]}"
    return f"the solution earns {solved.verdict.reward:g}, not 1" + (f": {words}" if words else "")


async def _trial(
    read: Read, provider: ContainerProvider, logs: Path, *, solve: bool, processes: str = "stop"
) -> ContainerTrial:
    """Start a container, perhaps solve its task, verify. Raises InfraError, UserError."""
    harbor = read(processes)
    began = time.monotonic()
    async with _started(provider, harbor) as container:
        start = time.monotonic() - began
        began, solved = time.monotonic(), list[Done]()

        async def work(step: HarborStep) -> Verdict:
            if step is not harbor:
                async with _limit(step.set_up_timeout, f"the set-up of step {step.name}"):
                    await step.set_up(container)
            if solve:
                solved.append(await step.solve(container))
            async with _limit(step.verify_timeout, "verification"):
                return await step.verify(container, logs / step.name)

        verdict = await through_steps(harbor, work)
        assert verdict is not None
        return ContainerTrial(verdict, start, time.monotonic() - began, solved[-1] if solve else None)


@asynccontextmanager
async def _started(provider: ContainerProvider, harbor: HarborTask) -> AsyncIterator[Container]:
    container = provider.container(harbor.spec)
    try:
        async with _limit(harbor.spec.start_timeout, "the start of the container"):
            await container.start()
        async with _limit(harbor.set_up_timeout, "the set-up"):
            await harbor.set_up(container)
        yield container
    finally:
        await container.stop()


@asynccontextmanager
async def _limit(seconds: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise InfraError(f"{what} took more than {seconds:g} s") from None


def _task(folder: Path, pass_env: Collection[str], processes: str) -> HarborTask:
    return HarborTask({"format": "harbor", "path": str(folder), "processes": processes}, pass_env=pass_env)
