"""Containers of Apptainer: as every provider's, by the program itself."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema.rollout import Containers
from agentrl.containers.contract import Container, ContainerProvider, ContainerSpec
from agentrl.core.errors import InfraError, UserError
from agentrl.core.points import CONTAINER_PROVIDERS
from tests.containers.conformance import Conformance, sleeping

NAME = "apptainer"
IMAGE = os.environ.get("AGENTRL_APPTAINER_IMAGE", "")
"""A SIF file, or the name of an image."""
OPTIONS = os.environ.get("AGENTRL_APPTAINER_OPTIONS", "--fakeroot").split()
real = [
    pytest.mark.integration,
    pytest.mark.skipif(not IMAGE, reason="AGENTRL_APPTAINER_IMAGE names no image"),
    pytest.mark.skipif(not shutil.which("apptainer"), reason="no apptainer here"),
]


def made(**settings: Any) -> ContainerProvider:
    given = Containers(NAME, options=settings)
    provider: ContainerProvider = CONTAINER_PROVIDERS.make(NAME, "rollout.containers.provider", given)
    return provider


class TestContract(Conformance):
    pytestmark = real

    @pytest.fixture
    def spec(self) -> ContainerSpec:
        return ContainerSpec(IMAGE)

    @pytest.fixture
    def provider(self) -> ContainerProvider:
        return made(limits=False, start=OPTIONS)


KILLED = """
import asyncio, os, signal, sys
from agentrl.config.schema.rollout import Containers
from agentrl.core.points import CONTAINER_PROVIDERS
from agentrl.containers.contract import ContainerSpec


async def main():
    options = {"limits": False, "start": sys.argv[2:]}
    provider = CONTAINER_PROVIDERS.make("apptainer", "provider", Containers(options=options))
    container = provider.container(ContainerSpec(sys.argv[1]))
    await container.start()
    print(container.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main())
"""


class TestReal:
    pytestmark = real

    def test_a_killed_process_leaves_no_container(self) -> None:
        words = [sys.executable, "-c", KILLED, IMAGE, *OPTIONS]
        killed = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=120)
        assert killed.returncode == -signal.SIGKILL
        while killed.stdout.strip() in instances():
            time.sleep(0.1)

    async def test_environment_users_network_and_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tempfile.mkdtemp()
        os.chmod(folder, 0o777)
        monkeypatch.setenv("TMPDIR", folder)
        command = ("sh", "-c", "echo $NAME >/tmp/served; exec sleep 7072")
        spec = ContainerSpec(IMAGE, env={"NAME": "a 'value'"}, workdir="/made/for/it", command=command)
        async with started(spec) as container:
            assert (await container.exec("pwd; cat /tmp/served", timeout=30)).stdout == "/made/for/it\na 'value'\n"
            assert await sleeping(container) == ["7072"]
            assert (await container.exec("grep -c : /proc/net/dev; ls -A /root", timeout=30)).stdout[:2] == "1\n"
            if "--fakeroot" in OPTIONS:
                done = await container.exec("touch /opt/x && chown -R nobody /opt && id -u", timeout=30)
                assert done.output == "0\n"
                assert (await container.exec("id -u", user="65534:65534", timeout=30)).stdout == "65534\n"
                assert (await container.exec("whoami; sleep 9", user="nobody", timeout=1)).stdout == "nobody\n"
            with pytest.raises(InfraError, match="has no network"):
                await container.host()
            assert os.listdir(folder)
        os.rmdir(folder)  # nothing is in it

    async def test_an_instance_that_ended_is_no_failure_of_the_model(self) -> None:
        async with started(ContainerSpec(IMAGE)) as container:
            assert (await container.exec("exit 255", timeout=30)).code == 255
            stop = ["apptainer", "instance", "stop", container.name]
            await asyncio.to_thread(subprocess.run, stop, check=True, capture_output=True)
            with pytest.raises(InfraError, match="has ended"):
                await container.exec("true", timeout=30)

    async def test_an_image_that_is_not_there(self, tmp_path: Path) -> None:
        provider = made(images=str(tmp_path / "images"))
        with pytest.raises(UserError, match="build"):
            await provider.prepare(ContainerSpec(f"docker-archive://{tmp_path}/none.tar"))


def instances() -> str:
    return subprocess.run(["apptainer", "instance", "list"], capture_output=True, text=True, check=True).stdout


@asynccontextmanager
async def started(spec: ContainerSpec) -> AsyncIterator[Container]:
    provider = made(limits=False, start=OPTIONS)
    await provider.prepare(spec)
    container = provider.container(spec)
    try:
        await container.start()
        yield container
    finally:
        await container.stop()
