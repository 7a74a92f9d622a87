"""Containers of Docker: as every provider's, limited, and removed."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from agentrl.cli.main import main
from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.container import MAX_PROCESSES, OOM_SCORE, DockerContainer
from agentrl.containers.docker.engine import environments
from agentrl.containers.docker.images import pack
from agentrl.containers.docker.provider import DockerProvider, clean
from agentrl.containers.docker.reaper import OWNER
from agentrl.core.errors import InfraError, UserError
from tests.containers.conformance import Conformance, sleeping
from tests.sandbox.docker.engine import Engine


@pytest.fixture
async def provider(docker_host: None) -> AsyncIterator[DockerProvider]:
    provider = DockerProvider()
    yield provider
    await provider.close()
    client = docker.from_env()
    label = {"label": f"agentrl.run={provider.engine.run}"}
    assert not client.containers.list(all=True, filters=label, ignore_removed=True)
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
def busybox_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of busybox and nothing else: no bash, no `timeout` that others have."""
    found = shutil.which("busybox")
    if found is None or subprocess.run(["ldd", found], capture_output=True).returncode == 0:
        pytest.skip("no static busybox here: install busybox-static")
    root = tmp_path_factory.mktemp("busybox")
    (root / "bin").mkdir()
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    shutil.copy(found, root / "bin")
    for name in subprocess.run([found, "--list"], capture_output=True, text=True).stdout.split():
        if not (root / "bin" / name).exists():
            (root / "bin" / name).symlink_to("busybox")
    subprocess.run(["tar", "-C", root, "-cf", root.parent / "busybox.tar", "."], check=True)
    return root.parent / "busybox.tar"


@pytest.fixture(scope="session")
def busybox(engine: Engine, busybox_files: Path) -> Iterator[str]:
    name = f"agentrl-test-busybox-{os.getpid()}"
    engine.docker("import", str(busybox_files), name)
    yield name
    engine.docker("rmi", name)


@pytest.mark.docker
@pytest.mark.parametrize("name", ["test_commands", "test_a_late_command_ends_with_its_children"])
async def test_busybox_is_enough(provider: DockerProvider, busybox: str, name: str) -> None:
    async with started(provider, ContainerSpec(busybox)) as container:
        await getattr(Conformance(), name)(container)


@pytest.fixture
def podman(busybox_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An image of podman, whose socket is the engine."""
    if shutil.which("podman") is None:
        pytest.skip("no podman here")
    name, address = f"localhost/agentrl-test-{os.getpid()}:1", f"unix://{tmp_path}/podman.sock"
    subprocess.run(["podman", "import", busybox_files, name], check=True, capture_output=True)
    if subprocess.run(["podman", "run", "--rm", "--network=none", name, "true"], capture_output=True).returncode:
        pytest.skip("podman runs no container here")
    service = subprocess.Popen(["podman", "system", "service", "--time", "0", address])
    while not (tmp_path / "podman.sock").exists():
        time.sleep(0.05)
    monkeypatch.setenv("DOCKER_HOST", address)
    yield name
    subprocess.run(["podman", "rmi", name], capture_output=True)
    service.terminate()
    service.wait()


@pytest.mark.docker
async def test_podman(podman: str, tmp_path: Path) -> None:
    provider = DockerProvider()
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "Dockerfile").write_text(f"FROM {podman}\nRUN echo built >/built\n")
    spec = ContainerSpec(build=tmp_path / "made", network="allow")
    async with started(provider, spec) as container:
        await Conformance().test_commands(container)
        await Conformance().test_a_late_command_ends_with_its_children(container)
        await Conformance().test_files_go_both_ways(container, tmp_path)
        assert "403 example.org is not" in (await container.exec("wget -O- http://example.org", timeout=30)).stderr
        assert (await container.exec("cat /built", timeout=30)).stdout == "built\n"
    await asyncio.to_thread(subprocess.run, ["podman", "rmi", tag_of(tmp_path / "made")], capture_output=True)
    await provider.close()


def test_podmans_sockets_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "podman").mkdir()
    (tmp_path / "podman" / "podman.sock").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    own, first, *_ = environments()
    assert "DOCKER_HOST" not in own
    assert first["DOCKER_HOST"] == f"unix://{tmp_path}/podman/podman.sock"
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:1")
    assert [env["DOCKER_HOST"] for env in environments()] == ["tcp://elsewhere:1"]


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
async def test_no_limits_but_one_that_protects_the_machine(provider: DockerProvider, spec: ContainerSpec) -> None:
    async with started(provider, replace(spec, cpus=None, memory_mb=None, processes=None)) as container:
        settings = docker.from_env().containers.get(container.name).attrs["HostConfig"]
        assert (settings["Memory"], settings["MemorySwap"], settings["NanoCpus"]) == (0, 0, 0)
        assert (settings["PidsLimit"], settings["OomScoreAdj"]) == (MAX_PROCESSES, OOM_SCORE)


@pytest.mark.docker
async def test_a_command_runs_beside_the_commands(provider: DockerProvider, spec: ContainerSpec) -> None:
    command = ("sh", "-c", "echo $NAME >/tmp/served; exec sleep 7072")
    async with started(provider, replace(spec, command=command, env={"NAME": "value"})) as container:
        assert await sleeping(container) == ["7072"]
        assert (await container.exec("cat /tmp/served; kill -9 -1", timeout=30)).stdout == "value\n"
        assert (await container.exec("true", timeout=30)).code == 0


@pytest.mark.docker
async def test_a_command_at_the_limit_of_processes_ends(provider: DockerProvider, spec: ContainerSpec) -> None:
    async with started(provider, replace(spec, processes=30)) as container:
        await container.exec("echo kept >/root/file", timeout=30)
        bomb = "f() { sleep 7051 & f & }; while :; do f; done 2>/dev/null"
        assert (await container.exec(bomb, timeout=1)).code is None
        assert await sleeping(container) == []
        assert (await container.exec("cat /root/file", timeout=30)).stdout == "kept\n"


@pytest.mark.prevents(
    "the model ends its container, fills the disk, or puts links into its files, and its failure passes for one "
    "of the machine"
)
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
        docker.from_env().images.build(path=str(tmp_path / name), tag=tag, rm=True)
        try:
            async with started(provider, replace(spec, image=tag)) as container:
                assert await sleeping(container) == (["7071"] if name == "service" else [])
            async with started(provider, replace(spec, image=tag, command=("sleep", "7073"))) as container:
                assert await sleeping(container) == (["7071", "7073"] if name == "service" else [])
        finally:
            engine.docker("rmi", tag)


@pytest.mark.docker
async def test_a_list_of_hosts(provider: DockerProvider, spec: ContainerSpec) -> None:
    """Allowed hosts answer through the proxy; others, names and addresses do not; each container has its own list."""
    async with served() as port:
        allow = replace(spec, network="allow", allowed=("127.0.0.1",))
        other = replace(allow, allowed=("example.org", "*.example.org"))
        async with started(provider, allow) as container, started(provider, other) as second:
            assert "200 OK" in await asked(container, f"GET http://127.0.0.1:{port}/ HTTP/1.1")
            tunnelled = await asked(container, f"CONNECT 127.0.0.1:{port} HTTP/1.1", "GET / HTTP/1.0")
            assert "200 Connected" in tunnelled
            assert "the page" in tunnelled
            assert "403 localhost is not" in await asked(container, f"GET http://localhost:{port}/ HTTP/1.1")
            assert "403 127.0.0.1 is not" in await asked(second, f"CONNECT 127.0.0.1:{port} HTTP/1.1")
            near = f"127.0.0.1,{await container.host()}"
            assert near in (await container.exec("echo $NO_PROXY", timeout=30)).stdout
            peer = (await second.exec("hostname -i", timeout=30)).stdout.strip()
            for words in ("exec 3<>/dev/tcp/1.1.1.1/53", f"exec 3<>/dev/tcp/{peer}/1", "getent hosts example.org"):
                done = await container.exec(["timeout", "2", "bash", "-c", words], timeout=30)
                assert done.code, words
                assert "refused" not in done.stderr, words


async def asked(container: DockerContainer, *requests: str) -> str:
    """The answer of the proxy that the container uses."""
    sent = "".join(f"{request}\\r\\nHost: x\\r\\n\\r\\n" for request in requests)
    code = f"a=${{http_proxy#http://}}; exec 3<>/dev/tcp/${{a%:*}}/${{a#*:}}; printf '{sent}' >&3; timeout 5 cat <&3"
    return (await container.exec(code, timeout=30)).output


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    """The port of a web server of this machine alone."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nthe page\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.docker
async def test_a_disk_that_is_too_full_ends_commands(
    provider: DockerProvider, spec: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.containers.docker.container.DISK_PAUSE", 0.3)
    async with started(provider, replace(spec, storage_mb=50)) as container:
        done = await container.exec("head -c 100000000 /dev/zero >/root/big; sleep 600", timeout=60)
        assert done.code == 137
        assert "written more than 50 MiB" in done.stderr
        for _ in range(20):  # it is over its limit until this one is in time
            await container.exec("rm -f /root/big", timeout=30)
        assert (await container.exec("sleep 2; ls /root", timeout=30)).code == 0


@pytest.mark.docker
async def test_a_folder_is_built_once(
    provider: DockerProvider, spec: ContainerSpec, engine: Engine, tmp_path: Path
) -> None:
    made = folder(tmp_path / "a", "RUN date +%N >/built", left_out=str(tmp_path))
    spec = replace(spec, image=None, build=made)
    try:
        await asyncio.gather(*(provider.prepare(spec) for _ in range(4)))
        async with started(provider, spec) as container:
            first = (await container.exec("cat /built; ls /context", timeout=30)).stdout.split()
            assert first[1:] == ["Dockerfile", "kept"]
        (made / "left_out").write_text("changed")
        again = DockerProvider()
        async with started(again, spec) as container:
            assert (await container.exec("cat /built", timeout=30)).stdout.split() == first[:1]
        await again.close()
    finally:
        engine.docker("rmi", tag_of(made))


@pytest.mark.docker
async def test_builds_that_fail(provider: DockerProvider, spec: ContainerSpec, engine: Engine, tmp_path: Path) -> None:
    broken = folder(tmp_path / "broken", "RUN echo some words && exit 3")
    with pytest.raises(UserError, match=r"broken/Dockerfile fails: .*exit 3") as caught:
        await provider.prepare(replace(spec, image=None, build=broken))
    assert any("some words" in line for line in caught.value.details)
    slow = folder(tmp_path / "slow", "RUN sleep 7081")
    with pytest.raises(InfraError, match=r"slow: its image is not built within 3 s; last line: .*"):
        await provider.prepare(replace(spec, image=None, build=slow, build_timeout=3))
    while "7081" in engine.docker("ps", "--no-trunc"):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    with pytest.raises(UserError, match="none: it has no Dockerfile"):
        await provider.prepare(replace(spec, image=None, build=tmp_path / "none"))


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.provider import DockerProvider


async def main():
    provider, spec = DockerProvider(), ContainerSpec(sys.argv[1])
    await provider.prepare(spec)
    await provider.container(spec).start()
    print(provider.engine.run, flush=True)
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main())
"""


@pytest.mark.docker
def test_a_killed_process_leaves_no_container(engine: Engine, docker_host: None) -> None:
    """Nor where its child processes are killed before: Ray does that to a worker's."""
    words = [sys.executable, "-c", KILLED, engine.base()]
    killed = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    label = {"label": f"agentrl.run={killed.stdout.strip()}"}
    while docker.from_env().containers.list(all=True, filters=label, ignore_removed=True):
        time.sleep(0.1)


@pytest.mark.docker
async def test_clean_leaves_a_run_that_is_alive(provider: DockerProvider, spec: ContainerSpec) -> None:
    async with started(provider, spec) as container:
        await asyncio.to_thread(clean, images=False)
        assert (await container.exec("true", timeout=60)).code == 0


@pytest.mark.docker
def test_clean_removes_what_a_crash_left(engine: Engine, docker_host: None, capsys: pytest.CaptureFixture[str]) -> None:
    client = docker.from_env()
    run, labels = crashed()
    client.containers.create(engine.base(), ["true"], name=f"agentrl-{run}", labels=labels)
    client.networks.create(f"agentrl-{run}", labels=labels)
    assert main(["tasks", "clean"]) == 0
    assert {f"removed container agentrl-{run}", f"removed network agentrl-{run}"} <= set(
        capsys.readouterr().out.split("\n")
    )
    assert not client.containers.list(all=True, filters={"label": f"agentrl.run={run}"}, ignore_removed=True)


@pytest.mark.docker
def test_clean_names_what_docker_does_not_remove(
    engine: Engine, docker_host: None, capsys: pytest.CaptureFixture[str]
) -> None:
    client = docker.from_env()
    run, labels = crashed()
    network = client.networks.create(f"agentrl-{run}", labels=labels)
    other = client.containers.run(engine.base(), ["sleep", "600"], detach=True, network=network.name)
    try:
        assert main(["tasks", "clean"]) == 2
        assert f"Docker does not remove network agentrl-{run}" in capsys.readouterr().err
    finally:
        other.remove(force=True, v=True)
        network.remove()


def crashed() -> tuple[str, dict[str, str]]:
    """A run whose process has ended, and the labels of what it left."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    run = f"old-{ended.pid}"
    return run, {OWNER: f"{os.uname().nodename} {ended.pid} 1", "agentrl.run": run}


@pytest.mark.docker
async def test_clean_removes_built_images(
    provider: DockerProvider, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("images", "provider"):  # others use this engine
        monkeypatch.setattr(f"agentrl.containers.docker.{module}.LABEL", f"agentrl.test.{os.getpid()}")
    spec = ContainerSpec(build=folder(tmp_path / "one", "RUN true"))
    async with started(provider, spec):
        tag = tag_of(tmp_path / "one")
        assert f"image {tag}" not in await removed_by_clean()
    assert f"image {tag}" in await removed_by_clean()
    with pytest.raises(InfraError, match="No such image"):  # of a run that goes on
        await provider.container(spec).start()
    async with started(provider, spec):  # built again
        pass
    assert f"image {tag}" in await removed_by_clean()


async def removed_by_clean() -> list[str]:
    removed, left = await asyncio.to_thread(clean, images=True)
    assert not left
    return removed


def folder(path: Path, line: str, left_out: str = "") -> Path:
    """A folder to build: all it has goes to /context."""
    path.mkdir()
    (path / "Dockerfile").write_text(f"FROM {Engine().base()}\n{line}\nCOPY . /context\n")
    (path / ".dockerignore").write_text("# not for the image\nleft_*\n.dockerignore\n")
    (path / "left_out").write_text(left_out)
    (path / "kept").write_text(str(path))
    return path


def tag_of(path: Path) -> str:
    with tempfile.TemporaryFile() as file:
        return pack(path, file)


@asynccontextmanager
async def started(provider: DockerProvider, spec: ContainerSpec) -> AsyncIterator[DockerContainer]:
    await provider.prepare(spec)
    container = provider.container(spec)
    try:
        await container.start()
        yield container
    finally:
        await container.stop()
