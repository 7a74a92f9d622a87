"""A container of Docker, from its start to its removal."""

import asyncio
import secrets
import time
from asyncio import Future
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.containers.archive import unpack
from agentrl.containers.commands import KILL_SECONDS, Command, CommandContainer
from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker import reaper
from agentrl.containers.docker.commands import run
from agentrl.containers.docker.compose import Composer, Project, upload
from agentrl.containers.docker.images import Image
from agentrl.containers.docker.networks import DOCKER_NAMES, LOCAL_HOSTS, NO_NAMES, Networks
from agentrl.core.errors import InfraError
from agentrl.core.user_code import mark_as_seen

IDLE = ["sh", "-c", "while :; do sleep 3600; done"]
"""Its first process: one that no process of the container can end, and that reaps those without a parent. Also the
words of an entrypoint."""
MAX_PROCESSES = 16_384
"""Where the spec has no limit: half of the machine's on a small kernel."""
OOM_SCORE = 500
"""Added to how soon the kernel ends its processes where the machine's memory is used up: before the trainer."""
LOG = {"max-size": "4m", "max-file": "1"}
LOGGING = {"driver": "json-file", "options": LOG}
LIMITS = {"pids_limit": MAX_PROCESSES, "oom_score_adj": OOM_SCORE, "logging": LOGGING}
"""A service's, as Compose names them."""
DISK_PAUSE = 5.0
"""Seconds between two measurements of its disk."""
DISK_SHARE = 0.05
"""Largest share of the time spent on measuring, which walks through all files that the container has written."""


class DockerContainer(CommandContainer):
    """A container that the Docker engine runs, or podman."""

    def __init__(self, composer: Composer, networks: Networks, spec: ContainerSpec) -> None:
        super().__init__(f"agentrl-{composer.engine.run}-{secrets.token_hex(4)}", spec)
        self._engine, self._images, self._composer = composer.engine, composer.images, composer
        self._networks = networks
        self._project: Project | None = None
        self._made: Future[Any] | None = None
        self._started: Future[Any] | None = None
        self._raw: Any = None
        self._stopped = False
        self._steady = asyncio.Event()
        """Set unless it is being started, or started again."""
        self._first: Sequence[str] = ()
        self._overruns = 0
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Make it and have it run commands. Raises InfraError."""
        await self._engine.ready()
        image = await self._images.have(self.spec)
        seconds = self.spec.start_timeout
        try:
            async with asyncio.timeout(seconds):
                await self._networks.prepare(self.spec)
                await self._start(image)
        except TimeoutError:
            raise InfraError(f"{self.name}: no start of {image.name} within {seconds:g} s") from None
        except InfraError as error:
            if _lacks_image(error):  # it was removed: a retry builds it again
                self._images.forget(self.spec)
            raise
        if self.spec.storage_mb is not None:
            self._watch = asyncio.create_task(self._watch_disk(self.spec.storage_mb))

    async def run(self, command: Command) -> int:
        """Run a command by the engine, once the container is steady. Raises InfraError."""
        await self._steady.wait()
        overruns = self._overruns
        code = await self._engine.call(run, self._engine.client, self.name, command)
        if self._stopped:
            raise InfraError(f"{self.name} was removed while a command ran")
        if self._overruns > overruns:
            written = f"the container has written more than {self.spec.storage_mb} MiB"
            command.stderr.add(f"\n[{written}: all commands were ended]\n".encode())
        return code

    async def upload(self, source: Path, to: str) -> None:
        """Copy in by an archive. Raises InfraError."""
        await self._engine.call(upload, self._raw, source, to)

    async def download(self, path: str, to: Path) -> None:
        """Copy out, without links. Raises InfraError."""
        try:
            await self._engine.call(_download, self._raw, path, to)
        except InfraError as error:
            raise InfraError(f"{self.name}: {path}: {error}") from error

    async def host(self) -> str:
        """Look up this machine's address. Raises InfraError."""
        return await self._networks.address(self.spec)

    async def address(self, host: str) -> str | None:
        """Look up a host in the container's networks. Raises InfraError."""
        return await self._engine.call(_address, self._engine.client, self.name, host)

    def attached(self, command: Sequence[str]) -> list[str]:
        """The words of `docker exec`."""
        env = [f"{name}={value}" for name, value in self._engine.env.items() if name.startswith("DOCKER_")]
        user = ["--user", self.spec.user] if self.spec.user else []
        return ["env", *env, "docker", "exec", "--interactive", *user, self.name, *command]

    def sibling(self, spec: ContainerSpec) -> "DockerContainer":
        """A further container of the same run, still to be started; its image is made by then."""
        return DockerContainer(self._composer, self._networks, spec)

    async def stop(self) -> None:
        """Remove it with all its processes and its disk. Safe to call twice. Never raises."""
        if self._made is None and self.spec.services is None:
            return
        self._stopped = True
        self._steady.set()
        if self._watch is not None:
            self._watch.cancel()
        if self._made is not None:
            await asyncio.wait([one for one in (self._made, self._started) if one is not None])
        with suppress(InfraError):  # else the reaper removes it
            if self._made is not None and self._made.exception() is None:
                await asyncio.shield(self._remove(self._made.result()))
            if self.spec.services is not None:
                await asyncio.shield(self._engine.call(reaper.remove, self._engine.client, self.name, reaper.PROJECT))

    async def _start(self, image: Image) -> None:
        """With the spec's command, or the image's entrypoint, as the first command."""
        if self.spec.services is not None:
            self._project = await self._composer.up(self.name, self.spec, LIMITS)
        await self._make(image)
        self._steady.set()
        entrypoint = image.entrypoint if self.spec.entrypoint else ()
        self._first = (*entrypoint, *(self.spec.command or (IDLE if entrypoint else ())))
        await self.begin(self._first)

    async def _make(self, image: Image) -> None:
        """Cancelled, it leaves `stop` the container that is being made or started: one that is removed while it starts
        may stay connected to its network."""
        env = {**await self._networks.env(self.spec), **self.spec.env}
        self._made = asyncio.ensure_future(self._engine.call(self._create, image.name, env))
        self._raw = await asyncio.shield(self._made)
        self._started = asyncio.ensure_future(self._engine.call(self._raw.start))
        self._started.add_done_callback(mark_as_seen)
        await asyncio.shield(self._started)
        await self._networks.allow(self.spec, self._raw, self.spec.allowed)

    def _create(self, image: str, env: Mapping[str, str]) -> Any:
        from docker.types import LogConfig

        spec, project, client = self.spec, self._project, self._engine.client
        memory = f"{spec.memory_mb}m" if spec.memory_mb else None
        options, volumes = self._networks.options(spec), project.volumes if project else {}
        networks = [f"{self.name}_{name}" for name in project.networks] if project else []
        if networks and spec.network in DOCKER_NAMES:
            options = {"network": networks[0]} | ({} if spec.network == "full" else {"dns": NO_NAMES})
        raw = client.containers.create(
            image,
            entrypoint=IDLE,
            **options,
            volumes={f"{self.name}_{name}": {"bind": to, "mode": "rw"} for name, to in volumes.items()},
            name=self.name,
            environment=dict(env),
            working_dir=spec.workdir,
            labels=self._engine.labels,
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=int(spec.cpus * 1e9) if spec.cpus else None,
            pids_limit=spec.processes or MAX_PROCESSES,
            oom_score_adj=OOM_SCORE,
            log_config=LogConfig(type=LogConfig.types.JSON, config=LOG),
        )
        for network in map(client.networks.get, networks):
            if network.name == options["network"]:
                network.disconnect(raw)
            network.connect(raw, aliases=[spec.services.main if spec.services else ""])
        return raw

    async def _remove(self, raw: Any) -> None:
        with suppress(InfraError):
            await self._networks.allow(self.spec, raw, None)
        await self._engine.call(_remove, raw)

    async def kill(self, command: Command, ends: Future[int | None]) -> None:
        """Where that fails, for example at its limit of processes, end all that runs in the container."""
        with suppress(InfraError, TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await super().kill(command, ends)
                return
        await self._end_all()
        if not (await asyncio.wait([ends], timeout=KILL_SECONDS))[0]:
            raise InfraError(f"{self.name}: a command does not end with its container")

    async def _watch_disk(self, most_mb: int) -> None:
        """Limit the disk by measuring, as long as the container lives: only few file systems have a limit to set.

        One that has written more loses its processes, and keeps its files. Until the next measurement it may write
        more.
        """
        pause = DISK_PAUSE
        while True:
            await asyncio.sleep(pause)
            begin = time.monotonic()
            with suppress(InfraError):
                if await self._engine.call(_written, self._engine.client, self.name) > most_mb << 20:
                    self._overruns += 1
                    await self._end_all()
            pause = max(DISK_PAUSE, (time.monotonic() - begin) / DISK_SHARE)

    async def _end_all(self) -> None:
        """End all its processes; its files stay."""
        self._steady.clear()
        try:
            await self._engine.call(self._raw.restart, timeout=0)
            await self._networks.allow(self.spec, self._raw, self.spec.allowed)
        finally:
            self._steady.set()
        await self.begin(self._first)


def _download(raw: Any, path: str, to: Path) -> None:
    chunks, _ = raw.get_archive(path)
    unpack(chunks, to)


def _lacks_image(error: InfraError) -> bool:
    from docker.errors import ImageNotFound

    return isinstance(error.__cause__, ImageNotFound)


def _remove(raw: Any) -> None:
    """A container that is gone or is being removed is fine."""
    from docker.errors import APIError

    try:
        raw.remove(force=True, v=True)
    except APIError as error:
        if error.status_code not in (404, 409):
            raise


def _address(client: Any, name: str, host: str) -> str | None:
    """The address of the container itself, by its own names, or of a service with it; None of another host."""
    others = client.containers.list(filters={"label": f"{reaper.PROJECT}={name}"})
    for raw in (client.containers.get(name), *others):
        for network in raw.attrs["NetworkSettings"]["Networks"].values():
            names = [*(network["Aliases"] or ()), *(LOCAL_HOSTS.split(",") if raw.name == name else ())]
            if host in names and network["IPAddress"]:
                return str(network["IPAddress"])
    return None


def _written(client: Any, name: str) -> int:
    """Bytes on a container's disk."""
    found = client.api.containers(size=True, filters={"name": name})
    return int(found[0].get("SizeRw") or 0) if found else 0
