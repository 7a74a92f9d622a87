"""Runs a task folder in a container: set-up, the reference solution, the tests.

Invariants: the tests come into the container after the agent's end, into folders that the agent cannot have prepared;
the agent's processes have ended by then, but for services; what the tests fail at is a reward of 0.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from agentrl.containers import Container, ContainerSpec, Done
from agentrl.core.errors import InfraError, UserError, last_line
from agentrl.core.points import task_format
from agentrl.tasks.format import TookTooLong, Verdict
from agentrl.tasks.harbor.fields import Passed
from agentrl.tasks.harbor.folder import read_task
from agentrl.tasks.harbor.processes import Process, look, stop_left
from agentrl.tasks.harbor.rewards import PARSERS, mean, read_numbers, verdict_on
from agentrl.tasks.harbor.task import LOGS, TESTS, Healthcheck, Script, Separate, Task

STEP_TIMEOUT = 120.0
"""Seconds for a step of the set-up that is over at once in a healthy container."""
PUBLISHED = f"{LOGS}/artifacts"
"""A folder whose files the verifier's own container always gets."""
LEFTOVERS = ("stop", "keep")
"""Ways to treat processes that the agent left."""
ARGUMENTS = {"format", "path", "processes"}
TAIL = 4000


class HarborStep:
    """A step of a task, or a task that is its only step."""

    def __init__(self, task: Task, processes: str) -> None:
        self.task, self.processes, self.name, self.agent_timeout = task, processes, task.name, task.agent_timeout
        self.prompt = [{"role": "user", "content": task.instruction}]
        self.numbers: dict[str, float] = {}
        """Of the verdict, by name."""
        self._before: tuple[Process, ...] | None = None
        self._own_tests = False
        check = task.healthcheck
        healthy = 0 if check is None else check.start_period + check.retries * (check.interval + check.timeout)
        self.set_up_timeout: float = 5 * STEP_TIMEOUT + healthy
        starts = task.separate.spec.start_timeout if task.separate else 0.0
        self.verify_timeout: float = 5 * STEP_TIMEOUT + starts + (task.tests.timeout or 0)

    @property
    def passed(self) -> bool:
        """Whether the numbers that the next step asks for were reached."""
        return all(self.numbers.get(name, -math.inf) >= least for name, least in self.task.least.items())

    async def set_up(self, container: Container) -> None:
        """Make the folders that the format promises, and wait until the container is healthy. Raises InfraError."""
        folders = " ".join(f"{LOGS}/{name}" for name in ("agent", "verifier", "artifacts"))
        old = f"rm -rf {PUBLISHED}; " if self.name else ""
        made = await _root(container, f"{old}mkdir -p {folders} && chmod 777 {folders}; test -e {TESTS}")
        self._own_tests = made.code == 0 and not self.name  # the image has a folder for the tests, with its own files
        for copy in self.task.files:
            target = copy.to or (await container.exec("pwd", timeout=STEP_TIMEOUT)).stdout.strip() or "/"
            await container.upload(copy.source, target)
            if self.name and (copy.source / "setup.sh").is_file():
                done = await container.exec(["bash", f"{target}/setup.sh"], timeout=STEP_TIMEOUT)
                if done.code != 0:
                    raise InfraError(f"step {self.name}: its setup.sh fails: {last_line(done.output)}")
        if self.task.healthcheck is not None:
            await wait_healthy(container, self.task.healthcheck)
        self._before = (await look(container)).processes

    async def solve(self, container: Container) -> Done:
        """Run the task's own solution, which it has. Raises InfraError."""
        assert self.task.solution is not None
        return await _run(container, self.task.solution, {"DEBIAN_FRONTEND": "noninteractive"})

    async def verify(self, container: Container, logs: Path) -> Verdict:
        """Run the tests; their files in /logs/verifier and their output go to `logs`. Raises InfraError."""
        if self.task.separate is not None:
            async with verifier_container(container, self.task.separate, logs / "artifacts") as own:
                return await self._test(own, logs)
        if self._before is not None and self.processes == "stop":
            await stop_left(container, self._before)
        await self._clear(container)
        verdict = await self._test(container, logs)
        if self.name:  # the next step's agent does not see these tests
            await self._clear(container)
        return verdict

    async def _test(self, container: Container, logs: Path) -> Verdict:
        done = await _run(container, self.task.tests, {})
        await asyncio.to_thread(_keep, logs, done)
        self.output = done.output[-TAIL:]
        if done.code is None:
            raise TookTooLong("the tests", self.task.tests.timeout or 0.0)
        if self.task.parser:
            return Verdict(PARSERS[self.task.parser](done), output=self.output)
        await container.download(f"{LOGS}/verifier", logs)
        self.numbers = read_numbers(logs, done.code, self.output)
        return verdict_on(self.numbers, self.output)

    async def _clear(self, container: Container) -> None:
        """Remove all that the agent may have put where tests and rewards go."""
        tests = "" if self._own_tests else TESTS
        preload = "/etc/ld.so.preload"  # a library there would be in every program of the tests
        commands = f"rm -rf {tests} {LOGS}/verifier {preload}; [ -d {LOGS} ] && [ ! -L {LOGS} ] || rm -rf {LOGS}"
        done = await _root(container, f"{commands}; mkdir -p {LOGS}/verifier && chmod 777 {LOGS}/verifier")
        if done.code != 0:
            raise InfraError(f"{LOGS}/verifier cannot be made: {done.output.strip()[-200:]}")


@task_format("harbor")
class HarborTask(HarborStep):
    """A row's task folder: `path`; `processes`: whether to `stop` (default) or `keep` the agent's before the tests."""

    def __init__(self, arguments: dict[str, Any], *, pass_env: Passed = ()) -> None:
        if unknown := arguments.keys() - ARGUMENTS:
            raise UserError(f"extra_info.task.{min(unknown)}: no such field; there are {', '.join(sorted(ARGUMENTS))}")
        processes = arguments.get("processes", "stop")
        if processes not in LEFTOVERS:
            raise UserError(f"extra_info.task.processes is {processes!r}: write {' or '.join(LEFTOVERS)}")
        if "path" not in arguments:
            raise UserError("extra_info.task.path is missing: write the task's folder there")
        super().__init__(read_task(Path(arguments["path"]), pass_env), processes)
        self.spec, self.offers = self.task.spec, self.task.offers
        self.steps = [HarborStep(step, processes) for step in self.task.steps]
        separate = [step.task.separate for step in self.steps or [self]]
        self.further: tuple[ContainerSpec, ...] = tuple(one.spec for one in separate if one)
        """The verifiers' own containers, where the task has them."""

    def total(self) -> Verdict:
        """The verdict on the steps that were verified."""
        verified = [step for step in self.steps if step.numbers]
        numbers = verified[-1].numbers if self.task.last_counts else mean([step.numbers for step in verified])
        verdict = verdict_on(numbers, verified[-1].output)
        each = {f"step/{step.name}": verdict_on(step.numbers, "").reward for step in verified}
        return replace(verdict, scores=verdict.scores | each)


def _keep(logs: Path, done: Done) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "test-stdout.txt").write_text(done.output)


async def wait_healthy(container: Container, check: Healthcheck) -> None:
    """Repeat the check until it passes. Raises InfraError after as many failures as it allows."""
    quiet_until, failures = time.monotonic() + check.start_period, 0
    while (done := await container.exec(check.command, timeout=check.timeout)).code != 0:
        starting = time.monotonic() < quiet_until
        failures += not starting
        if failures >= max(check.retries, 1):
            words = done.output.strip()[-200:] or "no output"
            raise InfraError(f"the task's health check failed {failures} times: {check.command}: {words}")
        await asyncio.sleep(check.start_interval if starting else check.interval)


async def _run(container: Container, script: Script, env: dict[str, str]) -> Done:
    """Copy a script's files and run it. Raises InfraError."""
    for copy in script.files:
        await container.upload(copy.source, copy.to)
    if "\n" not in script.command:
        await _root(container, f"chmod +x {quote(script.command)}")
    timeout = script.timeout or 24 * 3600.0
    return await container.exec(script.command, timeout=timeout, env=env | script.env, user=script.user)


async def _root(container: Container, command: str) -> Done:
    return await container.exec(command, timeout=STEP_TIMEOUT, user="0:0", cwd="/")


@asynccontextmanager
async def verifier_container(agents: Container, separate: Separate, kept: Path) -> AsyncIterator[Container]:
    """A started container with the files that the task names, copied by way of the folder `kept`. Raises InfraError."""
    if not hasattr(agents, "sibling"):
        raise UserError(f"{type(agents).__name__} makes no second container, and the task's verifier needs one")
    for hook in separate.collect:  # a failure is for the tests to find
        await agents.exec(hook.command, timeout=hook.timeout or 60.0, user=hook.user)
    copied = [(source, await _fetched(agents, source, kept)) for source in (PUBLISHED, *separate.artifacts)]
    container: Container = agents.sibling(separate.spec)
    try:
        await container.start()
        folders = " ".join(f"{LOGS}/{name}" for name in ("verifier", "artifacts"))
        await container.exec(f"mkdir -p {folders} && chmod 777 {folders}", timeout=STEP_TIMEOUT, user="0:0", cwd="/")
        for source, target in copied:
            if target is not None:
                await container.upload(target, source)
        yield container
    finally:
        await container.stop()


async def _fetched(container: Container, source: str, kept: Path) -> Path | None:
    """Where a file or a folder of the container was copied to; None if it is not there."""
    path = quote(source)
    command = f"if [ -d {path} ]; then echo folder; else ls -d {path}; fi"
    kind = await container.exec(command, timeout=STEP_TIMEOUT, user="0:0")
    if kind.code != 0:
        return None
    target = kept / source.strip("/")
    (target if kind.stdout.strip() == "folder" else target.parent).mkdir(parents=True, exist_ok=True)
    await container.download(source, target)
    if not target.exists():
        raise InfraError(f"{source} cannot be copied out of {container.name}")
    return target
