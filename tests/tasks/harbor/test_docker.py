"""Task folders in containers of Docker: solved, untouched, and tampered with."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.containers import Container
from agentrl.containers.docker.provider import DockerProvider
from agentrl.tasks.format import Verdict
from agentrl.tasks.harbor.check import NEEDS_PROCESSES, TaskReport, check_tasks
from agentrl.tasks.harbor.folder import find_tasks
from agentrl.tasks.harbor.format import HarborTask
from agentrl.tasks.runner import TaskRunner
from tests.sandbox.docker.engine import Engine
from tests.tasks.harbor.unpack import have_image, unpack

pytestmark = pytest.mark.docker

BARE = ("compose-command", "hello-file", "many-processes", "plain-user", "marked-verdict")
"""Tasks that Debian alone can run."""
HARBORS = {
    "build-up": (1, 0),
    "named-thresholds": (0.5, 0),
    "shared-volume": (1, 0),
    "hidden-tests": (1, 0.5),
    "last-counts": (2, 0),
    "mean-of-parts": (1.75 / 3, 0.5 / 3),
    "stops-early": (0.4, 0.4),
}
"""Rewards of Harbor's agents oracle and nop."""
SPECIAL = ("background-worker", "broken-build", "marked-verdict")

TAMPERED = """\
mkdir -p /tests /logs/verifier && echo 1 > /logs/verifier/reward.json
printf '#!/bin/bash\\necho 1 > /logs/verifier/reward.txt\\n' > /tests/test.sh; chmod a-w /tests/test.sh
echo /no/library.so > /etc/ld.so.preload
setsid bash -c 'while sleep 0.01; do echo 1 > /logs/verifier/reward.json; done' > /dev/null 2>&1 < /dev/null &
"""


@pytest.fixture
async def provider(docker_host: None) -> AsyncIterator[DockerProvider]:
    provider = DockerProvider()
    yield provider
    await provider.close()


async def test_tasks_are_checked(engine: Engine, provider: DockerProvider, tmp_path: Path) -> None:
    unpack("folders", tmp_path / "tasks", *BARE, image=engine.base())
    unpack("special", tmp_path / "tasks", *SPECIAL, image=engine.base())
    reports = await _reports(tmp_path / "tasks", provider, tmp_path / "logs", jobs=4)
    found = {name: (reports[name].oracle, reports[name].noop, reports[name].problem) for name in BARE}
    assert found == dict.fromkeys(BARE, (1, 0, ""))
    assert reports["background-worker"].problem == NEEDS_PROCESSES
    assert "no such compiler" in " ".join([reports["broken-build"].problem, *reports["broken-build"].details])
    assert (tmp_path / "logs/hello-file/oracle/reward.txt").read_text() == "1\n"


async def test_tampering_earns_nothing(engine: Engine, provider: DockerProvider, tmp_path: Path) -> None:
    folder = unpack("folders", tmp_path, "hello-file", image=engine.base()) / "hello-file"
    task = HarborTask({"path": str(folder)})
    await provider.prepare(task.spec)
    container = provider.container(task.spec)
    try:
        await container.start()
        await task.set_up(container)
        assert (await container.exec(TAMPERED, timeout=60)).code == 0
        assert await _verified(task, container, tmp_path / "first") == 0
        assert (await container.exec("echo 'Hello, world!' > hello.txt", timeout=60)).code == 0
        assert await _verified(task, container, tmp_path / "second") == 1
    finally:
        await container.stop()


@pytest.fixture
def compose(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose for the provider too, where the tests had to fetch it."""
    engine.have_compose()
    if folder := engine.env.get("DOCKER_CONFIG"):
        monkeypatch.setenv("DOCKER_CONFIG", folder)


@pytest.mark.usefixtures("compose")
@pytest.mark.parametrize(
    ("kind", "names"), [("steps", ("build-up", "named-thresholds")), ("services", ("shared-volume",))]
)
async def test_steps_and_services(
    kind: str, names: tuple[str, ...], engine: Engine, provider: DockerProvider, tmp_path: Path
) -> None:
    """Their rewards are those of Harbor 0.26."""
    unpack(kind, tmp_path / "tasks", *names, image=engine.base())
    reports = await _reports(tmp_path / "tasks", provider, tmp_path / "logs", jobs=2)
    found = {name: (report.oracle, report.noop) for name, report in reports.items()}
    assert found == {name: HARBORS[name] for name in names}
    left = engine.docker("volume", "ls", "--quiet") + engine.docker("network", "ls", "--format", "{{.Name}}")
    assert provider.engine.run not in left


@pytest.mark.slow
@pytest.mark.usefixtures("compose")
async def test_all_steps_and_services(engine: Engine, provider: DockerProvider, tmp_path: Path) -> None:
    have_image(engine, tmp_path / "image")
    for kind in ("steps", "services"):
        unpack(kind, tmp_path / "tasks")
    reports = await _reports(tmp_path / "tasks", provider, tmp_path / "logs", jobs=2)
    assert len(reports) == 20
    found = {name: (report.oracle, report.noop) for name, report in reports.items()}
    assert found == {name: pytest.approx(HARBORS.get(name, (1, 0))) for name in reports}


@pytest.mark.slow
async def test_all_tasks(engine: Engine, provider: DockerProvider, tmp_path: Path) -> None:
    have_image(engine, tmp_path / "image")
    reports = await _reports(unpack("folders", tmp_path / "tasks"), provider, tmp_path / "logs", jobs=3)
    assert len(reports) >= 20
    assert {name: report.problem for name, report in reports.items() if report.problem} == {}
    assert {(report.oracle, report.noop) for report in reports.values()} == {(1, 0)}
    old = unpack("special", tmp_path / "old", "first-format", "marked-verdict", "typed-solution")
    first = await _reports(old, provider, tmp_path / "logs", jobs=2)
    assert [(report.oracle, report.noop) for report in first.values()] == [(1, 0)] * 3


def test_without_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    tasks = unpack("folders", tmp_path / "tasks", "hello-file", "env-config", image="debian")
    assert main(["tasks", "check", str(tasks)]) == 2
    shown = capsys.readouterr()
    assert len(shown.err.strip().splitlines()) == 1
    assert "no Docker engine answers" in shown.err


async def _reports(folder: Path, provider: DockerProvider, logs: Path, jobs: int) -> dict[str, TaskReport]:
    tasks = find_tasks(folder)
    runner = TaskRunner()
    runner.provider = provider
    return {report.name: report async for report in check_tasks(tasks, runner, logs, jobs=jobs)}


async def _verified(task: HarborTask, container: Container, logs: Path) -> float:
    verdict: Verdict = await task.verify(container, logs)
    return verdict.reward
