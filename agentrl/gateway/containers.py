"""Docker containers for agent programs: the engine, its network, and the removal of what a run leaves.

Invariants:
- each container and network has the label of its run, and none outlives the process of that run: the rollout removes
  its container, a process beside the run the rest, after SIGKILL too; the next run removes what both left;
- a container reaches the gateway and nothing else, unless its entry names a network;
- the calls of the `docker` package run in threads: none blocks the event loop.
"""

import asyncio
import os
import platform
import secrets
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar

from agentrl.core.errors import InfraError, UserError
from agentrl.core.user_errors import one_line

T = TypeVar("T")

OWN_NETWORK = "gateway"
"""The network that only the gateway can be reached in."""
OWNER = "agentrl.owner"
"""Label with the process that made a container: host, id, start."""
MOST_THREADS = 1024
"""Each container has one that waits for its end."""


@dataclass(frozen=True)
class ContainerSettings:
    """A container as its YAML entry describes it."""

    image: str
    network: str = OWN_NETWORK
    """Its Docker network; `gateway`: one of this run's own, without a way out."""
    memory: str = "4g"
    cpus: float = 2.0
    processes: int = 512
    folder: str = "/agentrl"
    """The folder in it that is kept."""
    host: str | None = None
    """The address of this host in its network; None: the one that Docker tells."""


class Containers:
    """The containers of one entry. Belongs to one event loop."""

    def __init__(self, settings: ContainerSettings) -> None:
        self.settings = settings
        self.run = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.labels = {"agentrl.run": self.run, OWNER: owner(os.getpid())}
        self.network = settings.network
        self.client: Any = None
        self._address = ""
        self._lock = asyncio.Lock()
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="docker")
        self._reaper: subprocess.Popen[bytes] | None = None

    async def ready(self) -> str:
        """Connect, and have the image; gives this host's address in the containers' network. Raises UserError."""
        async with self._lock:
            if self.client is None:
                self._address = await self.call(self._begin)
        return self._address

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a blocking function in a thread. Raises InfraError where Docker fails."""
        from docker.errors import DockerException

        def checked() -> T:
            try:
                return function(*args, **kwargs)
            except (DockerException, OSError) as error:
                raise InfraError(f"Docker: {one_line(error)}") from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, checked)

    def _begin(self) -> str:
        import docker

        from agentrl.gateway import reaper

        try:
            client = docker.from_env(timeout=120, max_pool_size=64)
            client.ping()
        except docker.errors.DockerException as error:
            raise UserError(
                f"image: no Docker engine answers: {one_line(error)}; start one, or set DOCKER_HOST"
            ) from None
        _remove_orphans(client)
        _have_image(client, self.settings.image)
        self._reaper = subprocess.Popen(
            [sys.executable, "-P", reaper.__file__, self.run], stdin=subprocess.PIPE, start_new_session=True
        )
        if self.network == OWN_NETWORK:
            self.network = f"agentrl-{self.run}"
            client.networks.create(self.network, driver="bridge", internal=True, labels=self.labels)
        address = self.settings.host or _host_address(client, self.network)
        self.client = client
        return address


def require_docker() -> None:
    """Raises UserError where the `docker` package is not installed."""
    if find_spec("docker") is None:
        raise UserError("agents with an image need the docker package: run `pip install 'agentrl[docker]'`")


def owner(pid: int) -> str:
    """A process that no other one is taken for: host, id, start; without its start if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            started = file.read().rpartition(")")[2].split()[19]
    except OSError:
        started = ""
    return f"{platform.node()} {pid} {started}"


def _remove_orphans(client: Any) -> None:
    """Remove what ended processes of this host have left."""
    from agentrl.gateway import reaper

    found = [*client.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True)]
    found += client.networks.list(filters={"label": OWNER})
    for labels in (_labels(one) for one in found):
        host, pid, _ = labels[OWNER].split(" ")
        if host == platform.node() and owner(int(pid)) != labels[OWNER]:
            reaper.remove(client, labels[reaper.RUN])


def _labels(found: Any) -> dict[str, str]:
    labels: dict[str, str] = found.attrs.get("Labels") or found.labels
    return labels


def _have_image(client: Any, image: str) -> None:
    """Pull an image that is not there. Raises UserError."""
    from docker.errors import DockerException, ImageNotFound

    try:
        client.images.get(image)
    except ImageNotFound:
        try:
            client.images.pull(*_with_tag(image))
        except DockerException as error:
            raise UserError(f"image: {image} is not there and cannot be pulled: {one_line(error)}") from None


def _with_tag(image: str) -> tuple[str, str | None]:
    """Name and tag: without a tag all of them would be pulled."""
    name, colon, tag = image.rpartition(":")
    return (name, tag) if colon and "/" not in tag and "@" not in image else (image, None if "@" in image else "latest")


def _host_address(client: Any, name: str) -> str:
    """The address of this host in a network. Raises UserError where it has none."""
    from docker.errors import NotFound

    try:
        network = client.networks.get(name)
    except NotFound:
        raise UserError(f"network: {name} is not there; `docker network ls` lists those that are") from None
    configs = (network.attrs.get("IPAM") or {}).get("Config") or []
    found = [config["Gateway"] for config in configs if config.get("Gateway")]
    if not found:
        raise UserError(f"network: {name} has no address of this host: add `host`, one that containers reach")
    return str(found[0]).partition("/")[0]
