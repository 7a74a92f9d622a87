"""`agentrl tasks build --push`, and runs that pull from the registry: a real one, where its program is here."""

import asyncio
import json
import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from agentrl.cli.main import main
from agentrl.config.schema.rollout import Containers
from agentrl.containers import ContainerSpec
from agentrl.containers.docker import images
from agentrl.containers.docker.provider import DockerProvider
from agentrl.containers.docker.registry import reference
from agentrl.core.errors import UserError
from agentrl.tasks.harbor.check import TaskReport, check_tasks
from agentrl.tasks.runner import TaskRunner
from tests.sandbox.docker.engine import Engine
from tests.sandbox.docker.test_gateway import free_port
from tests.tasks.harbor.unpack import unpack

CLOSED = "127.0.0.1:1"
CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry without a login, which Docker takes without TLS as it is this machine's."""
    program = shutil.which("registry") or shutil.which("docker-registry")
    if program is None:
        pytest.skip("no registry here: apt-get install docker-registry")
    folder, port = tmp_path_factory.mktemp("registry"), free_port()
    (folder / "config.yml").write_text(CONFIG.format(folder=folder / "data", port=port))
    server = subprocess.Popen([program, "serve", folder / "config.yml"], stdout=subprocess.DEVNULL)
    while socket.socket().connect_ex(("127.0.0.1", port)):
        assert server.poll() is None
        time.sleep(0.1)
    yield f"127.0.0.1:{port}"
    server.terminate()
    server.wait()
    shutil.rmtree(folder)


@pytest.fixture
def task(engine: Engine, docker_host: None, tmp_path: Path) -> Path:
    """A task folder whose image nobody has."""
    folder = unpack("folders", tmp_path / "tasks", "hello-file", image=engine.base()) / "hello-file"
    with (folder / "environment" / "Dockerfile").open("a") as file:
        file.write(f"\nRUN echo {tmp_path} > /made\n")
    return folder


@pytest.mark.docker
def test_a_folder_is_built_once_and_pulled(
    task: Path, registry: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", "build", str(task), "--push", registry]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    name, place = line.split()
    assert Path(name) == task / "environment"
    assert place.startswith(f"{registry}/agentrl:")
    built = f"agentrl-built:{place.rpartition(':')[2]}"
    remove(place, built)
    monkeypatch.setattr(images, "build", lambda *_: pytest.fail("it is built again"))
    report = checked(task, Containers(registry=registry))
    assert (report.oracle, report.noop, report.problem) == (1, 0, "")
    remove(place, built)


@pytest.mark.docker
def test_an_image_that_a_row_names(
    engine: Engine, docker_host: None, registry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"agentrl-test-registry-{os.getpid()}:1", "agentrl.invalid/none"]
    engine.docker("tag", engine.base(), names[0])
    rows = [{"prompt": "x", "extra_info": {"container": {"image": name, "verify": "true"}}} for name in names]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main(["tasks", "build", str(tmp_path / "rows.jsonl"), "--push", f"https://{registry}/"]) == 1
    pushed, failed = capsys.readouterr().out.splitlines()
    place = ":".join(reference(registry, names[0]))
    assert pushed == f"{names[0]}  {place}"
    assert failed.startswith("agentrl.invalid/none: image: agentrl.invalid/none is not there and cannot be pulled: ")
    remove(place, names[0])
    assert isinstance(prepare(Containers(), names[0])[0], UserError)
    assert prepare(Containers(registry=registry), names[0]) == [None]
    remove(place, names[0])


@pytest.mark.docker
def test_a_registry_that_is_down(
    task: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING, "agentrl"):
        report = checked(task, Containers(registry=CLOSED))
        assert (report.oracle, report.noop, report.problem) == (1, 0, "")
        caplog.clear()
        for failure in prepare(Containers(registry=CLOSED), "agentrl.invalid/a", "agentrl.invalid/b"):
            assert "cannot be pulled" in str(failure)
    (line,) = (message for message in caplog.messages if message.startswith("rollout.containers.registry"))
    assert f"={CLOSED}: agentrl.invalid/" in line
    assert "refused; it is built or pulled from elsewhere" in line
    assert main(["tasks", "build", str(task), "--push", CLOSED]) == 1
    assert f"{CLOSED} does not take its image: " in capsys.readouterr().out
    (place,) = (tag for tag in tags() if tag.startswith(f"{CLOSED}/agentrl:"))
    remove(place, f"agentrl-built:{place.rpartition(':')[2]}")


def test_rows_without_a_container(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x"}\n')
    assert main(["tasks", "build", str(tmp_path / "rows.jsonl"), "--push", CLOSED]) == 2
    assert "no row has a container" in capsys.readouterr().err


def prepare(settings: Containers, *names: str) -> list[BaseException | None]:
    """Have images by one provider; how each failed."""

    async def work() -> list[BaseException | None]:
        provider = DockerProvider(settings)
        try:
            return await asyncio.gather(*(provider.prepare(ContainerSpec(n)) for n in names), return_exceptions=True)
        finally:
            await provider.close()

    return asyncio.run(work())


def checked(task: Path, settings: Containers) -> TaskReport:
    async def work() -> TaskReport:
        runner = TaskRunner(settings)
        try:
            return await anext(check_tasks({"hello": task}, runner, task.parent.parent / "logs"))
        finally:
            await runner.close()

    return asyncio.run(work())


def tags() -> list[str]:
    return [tag for image in docker.from_env().images.list() for tag in image.tags]


def remove(*names: str) -> None:
    client = docker.from_env()
    for name in names:
        client.images.remove(name, force=True)
