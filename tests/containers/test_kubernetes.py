"""Containers as pods: as every provider's, by a stand-in for the API server whose pods are containers of Docker."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

import pytest

from agentrl.config.schema.rollout import Containers
from agentrl.containers.contract import ContainerProvider, ContainerSpec
from agentrl.containers.docker import images
from agentrl.core.errors import InfraError, UserError
from agentrl.core.points import CONTAINER_PROVIDERS
from tests.containers.conformance import Conformance, sleeping
from tests.sandbox.docker.engine import Engine

pytest.importorskip("kubernetes_asyncio")
from tests.containers.api_server import ApiServer

pytestmark = pytest.mark.integration
NAME = "kubernetes"


@pytest.fixture
async def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    server, folder = ApiServer(), tmp_path_factory.mktemp("kube")
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": {"server": await server.start()}}],
        "users": [{"name": "me", "user": {"token": "secret"}}],
        "contexts": [{"name": "here", "context": {"cluster": "fake", "user": "me"}}],
        "current-context": "here",
    }
    (folder / "config").write_text(json.dumps(kubeconfig))
    monkeypatch.setattr("kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", f"{folder}/config")
    yield server
    await server.close()


def made(registry: str | None = None, **options: Any) -> Any:
    given = Containers(NAME, registry=registry, options=options)
    return CONTAINER_PROVIDERS.make(NAME, "rollout.containers.provider", given)


@pytest.mark.docker
class TestContract(Conformance):
    @pytest.fixture
    def spec(self, engine: Engine) -> ContainerSpec:
        return ContainerSpec(engine.base())

    @pytest.fixture
    async def provider(self, docker_host: None, server: ApiServer) -> AsyncIterator[ContainerProvider]:
        provider = made()
        yield provider
        await provider.close()
        assert not server.pods


@pytest.mark.docker
async def test_folder_environment_users_and_command(docker_host: None, engine: Engine, server: ApiServer) -> None:
    provider = made()
    command = ("sh", "-c", "echo $NAME >/tmp/served; exec sleep 7072")
    spec = ContainerSpec(engine.base(), env={"NAME": "a 'value'"}, workdir="/var", command=command)
    await provider.prepare(spec)
    container = provider.container(spec)
    await container.start()
    assert (await container.exec("pwd; cat /tmp/served", timeout=30)).stdout == "/var\na 'value'\n"
    assert await sleeping(container) == ["7072"]
    for user, number in (("0:0", "0"), ("65534:65534", "65534"), ("4242:7", "4242")):
        assert (await container.exec("id -u", user=user, timeout=30)).output == f"{number}\n"
    done = await container.exec("id -un; echo $NAME; sleep 7073", user="nobody", timeout=2)
    assert (done.code, done.stdout) == (None, "nobody\na 'value'\n")
    assert await sleeping(container) == ["7072"]
    await provider.close()
    assert server.deleted == [container.name]


async def test_the_pod(server: ApiServer) -> None:
    provider = made(namespace="rl", deadline=60, pod={"nodeSelector": {"disk": "ssd"}}, container={"tty": False})
    spec = ContainerSpec("huge", cpus=0.5, memory_mb=64, storage_mb=None, start_timeout=1)
    await provider.prepare(spec)
    container = provider.container(spec)
    with pytest.raises(InfraError, match=r"does not run within 0\.9 s: Unschedulable: Insufficient cpu"):
        await container.start()
    pod = server.pods[container.name]
    assert pod["metadata"]["labels"] == {"agentrl.run": provider.run, "agentrl.network": "none"}
    assert pod["spec"]["activeDeadlineSeconds"] == 60
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "0.5", "memory": "64Mi"}}
    assert server.policies[0]["spec"]["podSelector"] == {"matchLabels": {"agentrl.network": "none"}}
    await container.stop()
    assert server.deleted == [container.name]
    await provider.close()


async def test_an_image_that_is_not_there_is_told_at_once(server: ApiServer) -> None:
    provider = made()
    await provider.prepare(ContainerSpec("missing"))
    container = provider.container(ContainerSpec("missing"))
    with pytest.raises(InfraError, match='does not start: ImagePullBackOff: Back-off pulling image "missing"'):
        await container.start()
    await provider.close()
    assert not server.pods


async def test_a_container_that_has_ended_is_told_at_once(server: ApiServer) -> None:
    provider = made()
    await provider.prepare(ContainerSpec("ended"))
    with pytest.raises(InfraError, match="has ended: StartError: no sh"):
        await provider.container(ContainerSpec("ended")).start()
    await provider.close()


async def test_a_folder_is_read_once_and_not_by_the_event_loop(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch")
    threads, pack = list[threading.Thread](), images.pack

    def noted(folder: Path, file: IO[bytes]) -> str:
        threads.append(threading.current_thread())
        return pack(folder, file)

    monkeypatch.setattr(images, "pack", noted)
    provider = made(registry="here:5000")
    spec = ContainerSpec(build=tmp_path)
    await provider.prepare(spec)
    other = made(registry="here:5000")
    names = await asyncio.gather(*(other.image_name(spec) for _ in range(3)), provider.image_name(spec))
    assert all(name.startswith("here:5000/agentrl:") for name in names)
    thread, _ = threads
    assert thread is not threading.current_thread()
    await provider.close()


async def test_a_run_in_the_cluster_owns_its_pods(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "trainer")
    server.pods["trainer"] = {"metadata": {"name": "trainer", "uid": "1-2", "labels": {}}, "spec": {"containers": []}}
    provider = made(context="here")
    provider._inside = "default"
    await provider.prepare(ContainerSpec("huge"))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "trainer", "uid": "1-2"}
    assert provider.container(ContainerSpec("huge")).manifest("huge")["metadata"]["ownerReferences"] == [owner]
    await provider.close()


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (ContainerSpec("an/image", network="gateway"), "no network 'gateway'"),
        (ContainerSpec(build=Path("folder")), "builds no image: name one"),
    ],
)
async def test_refuses_what_it_cannot_run(spec: ContainerSpec, why: str) -> None:
    with pytest.raises(UserError, match=why):
        await made().prepare(spec)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean namespace"):
        made(namespaces="x")
