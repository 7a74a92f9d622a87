"""Containers of Apptainer or Singularity, for clusters without Docker: no daemon, no root.

A container is an instance over an image file, with a folder for all that it writes. A shell process starts it, and
removes both when this process closes its input or dies, by SIGKILL too. It lacks, compared with Docker: networks other
than `none` and `full`, which is this machine's own; a limit of `storage_mb`; the image's entrypoint.
"""

import asyncio
import hashlib
import json
import os
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os.path import exists
from pathlib import Path
from uuid import uuid4

from agentrl.config.schema.rollout import Containers
from agentrl.containers.cluster import ClusterProvider
from agentrl.containers.commands import Command, CommandContainer, piped
from agentrl.containers.contract import ContainerSpec
from agentrl.core.errors import InfraError, UserError, last_line
from agentrl.core.paths import expanded
from agentrl.core.points import container_provider

KEEPER = Path(__file__).with_name("apptainer.sh").read_text(encoding="utf-8")
OPTIONS = ("--containall", "--no-home")
NETWORKS = {"none": ("--net", "--network", "none"), "full": ()}
CONFIG = "2"
"""Number of the image's configuration in an image file."""
FAILED = 255
"""Exit code of the program itself, and of commands that choose it."""
CALL_SECONDS = 60.0


class ApptainerInstance(CommandContainer):
    """An instance."""

    sets_users = False

    def __init__(self, provider: "Apptainer", spec: ContainerSpec) -> None:
        super().__init__(f"agentrl-{uuid4().hex[:12]}", spec)
        self._provider = provider
        self._keeper: Process | None = None
        self._workdir = spec.workdir or "/"

    async def start(self) -> None:
        """Start the instance. Raises InfraError."""
        spec, provider = self.spec, self._provider
        image = await provider.image(spec)
        options = [*OPTIONS, *NETWORKS[spec.network], *provider.settings.start, *provider.limits(spec)]
        words = ["sh", "-c", KEEPER, "sh", provider.program, self.name, image, *options]
        self._keeper = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, start_new_session=True)
        assert self._keeper.stdout is not None
        said = (await self._keeper.stdout.readline()).decode(errors="replace").strip()
        if said != "ready":
            raise InfraError(f"container {self.name}: {said}")
        if spec.workdir is None:
            self._workdir = await provider.workdir(image)
        await self.run(Command(["mkdir", "-p", self._workdir], CALL_SECONDS, cwd="/"))
        await self.begin(self.spec.command)

    async def host(self) -> str:
        """This machine, whose network it shares. Raises InfraError without one."""
        self.require_network()
        return "127.0.0.1"

    async def stop(self) -> None:
        """Have it removed."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper.stdin is not None:
            keeper.stdin.close()
            await asyncio.shield(keeper.wait())

    async def run(self, command: Command) -> int:
        """Run a command in the instance. Raises InfraError where that has ended."""
        program, alone = self._provider.program, replace(command, cwd=command.cwd or self._workdir).alone()
        code = await piped([program, "-s", "exec", "--cleanenv", f"instance://{self.name}", *alone], command)
        if self._keeper is None:
            raise InfraError(f"container {self.name} does not run")
        if code == FAILED and self.name not in await self._provider.call("instance", "list", self.name):
            raise InfraError(f"container {self.name} has ended: {last_line(command.stderr.text())}")
        return code


@dataclass(frozen=True)
class Settings:
    """`rollout.containers.options`."""

    start: Sequence[str] = ("--fakeroot",)
    """Options of every `apptainer instance start`. Without `--fakeroot` commands run as the user, not as root."""
    limits: bool = True
    """Limit cores, memory and processes of containers: needs cgroups of version 2 that systemd delegates to the user.
    False: no limit."""
    images: str = "~/.cache/agentrl/apptainer"
    """Folder of the image files that are made of images in registries; machines may share it."""


@container_provider("apptainer")
class Apptainer(ClusterProvider[Settings]):
    """Makes instances. Image files are made once, and stay."""

    def __init__(self, containers: Containers) -> None:
        super().__init__(containers, Settings)
        self.program = shutil.which("apptainer") or shutil.which("singularity") or ""

    async def ready(self) -> None:
        """Raises UserError without the program."""
        if not self.program:
            raise UserError(
                "provider=apptainer needs `apptainer` or `singularity` in PATH: install it, or load its module"
            )

    async def prepare(self, spec: ContainerSpec) -> None:
        """Have the image file. Raises UserError."""
        await self.ready()
        expanded(self.settings.images).mkdir(parents=True, exist_ok=True)
        self.check_network(spec)
        await self.image(spec)

    def container(self, spec: ContainerSpec) -> ApptainerInstance:
        """A container that is still to be started."""
        return ApptainerInstance(self, spec)

    async def close(self) -> None:
        """Nothing is left to remove: each container has its own end."""

    async def image(self, spec: ContainerSpec) -> str:
        """The path of a spec's image: a file or folder of the user's, or the file made of one in a registry."""
        name = await self.image_name(spec)
        source = name if "://" in name else f"docker://{name}"
        folder, digest = expanded(self.settings.images), hashlib.sha256(source.encode()).hexdigest()
        file = f"{folder}/{digest[:32]}.sif"
        for there in filter(exists, (name, file)):
            return there
        draft = f"{file}.{uuid4().hex[:8]}"  # others may make the same
        await self.call("build", draft, source, seconds=spec.build_timeout)
        await asyncio.to_thread(os.replace, draft, file)
        return file

    async def workdir(self, image: str) -> str:
        """The working folder that an image file names."""
        with suppress(UserError, ValueError, AttributeError):
            config = json.loads(await self.call("sif", "dump", CONFIG, image))
            return str(config.get("config", {}).get("WorkingDir") or "/")
        return "/"

    def limits(self, spec: ContainerSpec) -> list[str]:
        """Options that limit a container."""
        memory = f"{spec.memory_mb}M" if spec.memory_mb else None
        values = {"--cpus": spec.cpus, "--memory": memory, "--memory-swap": memory, "--pids-limit": spec.processes}
        given = [word for name, value in values.items() if value for word in (name, str(value))]
        return given if self.settings.limits else []

    async def call(self, *words: str, seconds: float = CALL_SECONDS) -> str:
        """Standard output of the program. Raises UserError where it fails."""
        command = Command([], seconds)
        try:
            async with asyncio.timeout(seconds):
                code = await piped([self.program, "-s", *words], command)
        except TimeoutError:
            raise InfraError(f"{self.program} {words[0]} took longer than {seconds:g} s") from None
        if code != 0:
            raise UserError(f"{self.program} {' '.join(words)}: {last_line(command.stderr.text())}")
        return command.stdout.text()
