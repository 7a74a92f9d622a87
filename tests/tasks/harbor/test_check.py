"""`agentrl tasks check`: reports and their table, without an engine."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.cli.main import main
from agentrl.containers import Done
from agentrl.core.errors import InfraError
from agentrl.tasks.harbor.check import NEEDS_PROCESSES, TaskReport, check_tasks
from agentrl.tasks.harbor.format import HarborTask
from agentrl.tasks.harbor.table import CheckTable
from agentrl.tasks.runner import TaskRunner
from tests.tasks.harbor.fake import FakeContainer, FakeProvider
from tests.tasks.harbor.test_reading import PLAIN, write

SOLVED = PLAIN | {"solution/solve.sh": "true"}


def good(container: FakeContainer, command: str) -> Done | None:
    """A task that its solution solves."""
    if command == "/solution/solve.sh":
        container.rewards = "1"
    return None


def test_the_order_of_a_trial(tmp_path: Path) -> None:
    write(tmp_path / "a", SOLVED)
    provider = FakeProvider(good)
    assert _reports(tmp_path, provider, "a")["a"].problem == ""
    happened = provider.made[1].happened
    places = [
        _place(happened, word) for word in ("mkdir -p /logs/agent", "/solution/solve.sh", "rm -rf", "upload tests")
    ]
    assert places == sorted(places)
    assert happened[-1] == "/tests/test.sh"
    assert "rm -rf /tests /logs/verifier" in happened[places[2]]
    assert all(container.stopped for container in provider.made)


def test_reports(tmp_path: Path) -> None:
    def answer(container: FakeContainer, command: str) -> Done | None:
        folder = container.spec.build.parent.name if container.spec.build else ""
        if folder == "free":
            container.rewards = "1"
        if folder == "slow" and command == "/tests/test.sh":
            return Done(None, "", "", 600.0)
        if folder == "wrong" and command == "/solution/solve.sh":
            return Done(3, "", "first\nno such file\n", 0.0)
        if folder == "lost" and command == "/tests/test.sh":
            raise InfraError("the container is gone")
        return good(container, command)

    for name in ("free", "good", "lost", "slow", "unbuildable", "wrong"):
        write(tmp_path / name, SOLVED)
    write(tmp_path / "unsolved", PLAIN)
    write(tmp_path / "refused", SOLVED | {"task.toml": "[environment]\ngpus = 2"})
    provider = FakeProvider(answer)
    reports = _reports(tmp_path, provider, *(place.name for place in tmp_path.iterdir()))
    assert (reports["good"].oracle, reports["good"].noop, reports["good"].problem) == (1, 0, "")
    assert reports["free"].problem == "doing nothing earns 1, not 0"
    assert reports["lost"].problem == "the task's verification: the container is gone"
    assert reports["slow"].problem == "the task's verification: the tests took longer than its 600 s"
    assert reports["unbuildable"].problem == "the image cannot be built"
    assert reports["wrong"].problem.endswith("not 1: it ended with exit code 3: no such file")
    assert (reports["unsolved"].problem, reports["unsolved"].notes) == ("", ("it has no solution",))
    assert "GPU" in reports["refused"].problem
    assert all(container.stopped for container in provider.made)


def test_a_solution_whose_processes_are_needed(tmp_path: Path) -> None:
    def answer(container: FakeContainer, command: str) -> Done | None:
        if command.startswith("echo"):  # a process more after the solution
            ran = any(word == "/solution/solve.sh" for word in container.happened)
            return Done(0, "9\n/proc/1" + (" /proc/7" if ran else "") + "\n@\n1 (sh) S" + " 0" * 30, "", 0.0)
        if command.startswith("kill"):
            container.rewards = "0"
            return None
        return good(container, command)

    write(tmp_path / "a", SOLVED)
    assert _reports(tmp_path, FakeProvider(answer), "a")["a"].problem == NEEDS_PROCESSES


async def test_a_health_check_that_fails(tmp_path: Path) -> None:
    toml = "[environment.healthcheck]\ncommand = 'ask'\ninterval_sec = 0\nretries = 3"
    task = HarborTask({"path": str(write(tmp_path, SOLVED | {"task.toml": toml}))})
    container = FakeContainer(task.spec, lambda _, command: Done(1, "not yet", "", 0.0) if command == "ask" else None)
    with pytest.raises(InfraError, match="health check failed 3 times: ask: not yet"):
        await task.set_up(container)
    assert container.happened.count("ask") == 3


def test_the_table() -> None:
    console = Console(file=io.StringIO(), width=200)
    table = CheckTable(console, ["good-one", "bad"])
    table.add(TaskReport("good-one", 1.0, 0.0, 2.5, 0.04, 61.0, notes=("agent.x is unknown",)))
    table.add(TaskReport("bad", 0.5, problem="it is broken", details=("last words",)))
    assert table.close() == 1
    assert isinstance(console.file, io.StringIO)
    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == [
        "task      oracle   no-op   build   start  verify",
        "good-one       1       0    2.5s    40ms    1:01  ok",
        "  note: agent.x is unknown",
        "bad        0.500       -       -       -       -",
        "    last words",
        "  broken: it is broken",
        "1 of 2 tasks are fine",
    ]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", SOLVED)
    write(tmp_path / "unbuildable", SOLVED)
    provider = f"{Path(__file__)}:good_provider"
    assert main(["tasks", "check", str(tmp_path), f"rollout.containers.provider={provider}", "--task", "a"]) == 0
    assert main(["tasks", "check", str(tmp_path), f"rollout.containers.provider={provider}"]) == 1
    assert "1 of 2 tasks are fine" in capsys.readouterr().out
    assert main(["tasks", "check", str(tmp_path), f"rollout.containers.provider={provider}", "--task", "b"]) == 2
    assert "it has a, unbuildable" in capsys.readouterr().err


def good_provider(settings: None) -> FakeProvider:
    return FakeProvider(good)


def _reports(folder: Path, provider: FakeProvider, *names: str) -> dict[str, TaskReport]:
    import asyncio

    async def run() -> dict[str, TaskReport]:
        tasks, runner = {name: folder / name for name in names}, TaskRunner()
        runner.provider = provider
        return {report.name: report async for report in check_tasks(tasks, runner, folder / "logs", jobs=2)}

    return asyncio.run(run())


def _place(happened: list[str], word: str) -> int:
    return next(place for place, text in enumerate(happened) if text.startswith(word))
