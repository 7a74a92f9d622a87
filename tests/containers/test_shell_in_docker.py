"""The shell in containers of Docker, where nothing is as on this machine but the contract."""

from collections.abc import AsyncIterator

import pytest

from agentrl.containers import Container, ContainerSpec
from agentrl.containers.docker.provider import DockerProvider
from agentrl.containers.shell import Shell, ShellAnswer
from tests.sandbox.docker.engine import Engine

pytestmark = pytest.mark.docker


@pytest.fixture
async def container(engine: Engine, docker_host: None) -> AsyncIterator[Container]:
    provider = DockerProvider()
    container = provider.container(ContainerSpec(engine.base()))
    await container.start()
    yield container
    await container.stop()
    await provider.close()


async def test_a_shell(container: Container) -> None:
    shell = Shell(container, output=100)
    job = (await shell.run("cd /usr; export A=1; sleep 60 & echo $!", 30)).output.strip()
    assert (await shell.run("pwd; echo $A; sleep 30; echo no", 0.5)).end == "timeout"
    assert await shell.run("pwd; jobs -p | wc -l; ls /nosuch 2>/dev/null", 30) == ShellAnswer("/usr\n0\n", 2)
    assert (await shell.run(f"kill {job} && echo it was there", 30)).output == "it was there\n"
    assert (await shell.run("yes", 30)).output.startswith("y\ny\n")
    assert (await shell.run("echo here", 30)).output == "here\n"
    await shell.restart()
    assert (await container.exec("ls -A /dev/shm", timeout=30)).stdout == ""
