"""Containers of Docker: as every provider's, limited, and removed."""

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.container import DockerContainer
from agentrl.containers.docker.images import with_tag
from agentrl.containers.docker.provider import DockerProvider
from tests.containers.conformance import Conformance, sleeping
from tests.sandbox.docker.engine import Engine


@pytest.fixture
async def provider(docker_host: None) -> AsyncIterator[DockerProvider]:
    provider = DockerProvider()
    yield provider
    await provider.close()
    client = docker.from_env()
    label = {"label": f"agentrl.run={provider.run}"}
    assert not client.containers.list(all=True, filters=label)
    assert not client.networks.list(filters=label)


@pytest.fixture
def spec(engine: Engine) -> ContainerSpec:
    return ContainerSpec(engine.base())


@pytest.mark.docker
class TestContract(Conformance):
    @pytest.fixture
    def spec(self, engine: Engine) -> ContainerSpec:
        return ContainerSpec(engine.base())


@pytest.fixture(scope="session")
def busybox(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with busybox and nothing else: no bash, no `timeout` that others have, no /tmp."""
    found = shutil.which("busybox")
    if found is None or b"ld-linux" in Path(found).read_bytes():
        pytest.skip("no static busybox here: install busybox-static")
    root = tmp_path_factory.mktemp("busybox")
    (root / "bin").mkdir()
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    shutil.copy(found, root / "bin")
    for name in subprocess.run([found, "--list"], capture_output=True, text=True).stdout.split():
        if not (root / "bin" / name).exists():
            (root / "bin" / name).symlink_to("busybox")
    name = f"agentrl-test-busybox-{os.getpid()}"
    subprocess.run(["tar", "-C", root, "-cf", root.parent / "busybox.tar", "."], check=True)
    engine.docker("import", str(root.parent / "busybox.tar"), name)
    yield name
    engine.docker("rmi", name)


@pytest.mark.docker
class TestContractWithBusybox(Conformance):
    @pytest.fixture
    def spec(self, busybox: str) -> ContainerSpec:
        return ContainerSpec(busybox)


@pytest.mark.docker
async def test_limits(provider: DockerProvider, spec: ContainerSpec) -> None:
    spec = replace(spec, cpus=0.5, memory_mb=64, processes=40, env={"NAME": "value"}, workdir="/var")
    async with started(provider, spec) as container:
        done = await container.exec("cd /sys/fs/cgroup; cat memory.max pids.max 2>/dev/null", timeout=30)
        if done.code:  # version 1
            files = "memory/memory.limit_in_bytes pids/pids.max"
            done = await container.exec(f"cat {files}", cwd="/sys/fs/cgroup", timeout=30)
        assert done.stdout.split() == [str(64 << 20), "40"]
        assert (await container.exec("echo $NAME; pwd", timeout=30)).stdout == "value\n/var\n"
        assert (await container.exec("tail /dev/zero", timeout=60)).code == 137
        assert (await container.exec("ls /sys/class/net", timeout=30)).stdout.split() == ["lo"]


@pytest.mark.docker
async def test_a_command_at_the_limit_of_processes_ends(provider: DockerProvider, spec: ContainerSpec) -> None:
    async with started(provider, replace(spec, processes=30)) as container:
        await container.exec("echo kept >/root/file", timeout=30)
        bomb = "f() { sleep 7051 & f & }; while :; do f; done 2>/dev/null"
        assert (await container.exec(bomb, timeout=1)).code is None
        assert await sleeping(container) == []
        assert (await container.exec("cat /root/file", timeout=30)).stdout == "kept\n"


@pytest.mark.docker
async def test_no_process_of_the_container_ends_it(provider: DockerProvider, spec: ContainerSpec) -> None:
    async with started(provider, spec) as container:
        await container.exec("kill -9 -1; kill -9 1; kill -15 1", timeout=30)
        done = await container.exec("sleep 7061 & sleep 7062", user="nobody", timeout=1)
        assert done.code is None
        assert await sleeping(container) == []


@pytest.mark.docker
async def test_entrypoints(provider: DockerProvider, spec: ContainerSpec, engine: Engine, tmp_path: Path) -> None:
    """One that runs its words starts beside them; one that does not is left out."""
    for name, entrypoint in (("service", ["sh", "-c", 'sleep 7071 & exec "$0" "$@"']), ("agent", ["echo"])):
        (tmp_path / name).mkdir()
        text = f"FROM {engine.base()}\nENTRYPOINT {json.dumps(entrypoint)}\n"
        (tmp_path / name / "Dockerfile").write_text(text)
        tag = f"agentrl-test-{name}-{os.getpid()}"
        docker.from_env().images.build(path=str(tmp_path / name), tag=tag)
        try:
            async with started(provider, replace(spec, image=tag)) as container:
                assert await sleeping(container) == (["7071"] if name == "service" else [])
        finally:
            engine.docker("rmi", tag)


@asynccontextmanager
async def started(provider: DockerProvider, spec: ContainerSpec) -> AsyncIterator[DockerContainer]:
    await provider.prepare(spec)
    container = provider.container(spec)
    try:
        await container.start()
        yield container
    finally:
        await container.stop()


@pytest.mark.parametrize(
    ("image", "found"),
    [
        ("debian", ("debian", "latest")),
        ("registry:5000/agent", ("registry:5000/agent", "latest")),
        ("registry:5000/agent:2", ("registry:5000/agent", "2")),
        ("agent@sha256:ab", ("agent@sha256:ab", None)),
    ],
)
def test_an_image_without_a_tag_is_the_latest(image: str, found: tuple[str, str | None]) -> None:
    assert with_tag(image) == found
