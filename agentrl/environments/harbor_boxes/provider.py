"""The provider `harbor`: containers elsewhere, by the environment classes of Harbor."""

import asyncio
import math
import os
import re
import shlex
import tempfile
from asyncio import Future
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from agentrl.config.schema.rollout import Containers
from agentrl.containers import KILL, ContainerSpec, unpack
from agentrl.containers.archive import MAX_BYTES
from agentrl.containers.commands import Command, CommandContainer
from agentrl.containers.output import MAX_OUTPUT_BYTES
from agentrl.core.errors import InfraError, UserError, last_line
from agentrl.core.points import container_provider
from agentrl.environments.worker import EnvironmentProgram, Worker

KEY = "rollout.containers.harbor"
GRACE = 60
"""Seconds that a vendor may take for a command beyond those of the command."""
SHOWN_BYTES = MAX_OUTPUT_BYTES - 100
"""With the line that tells how much is left out, no more than is kept here."""
MODES = {"none": "no-network", "full": "public", "allow": "allowlist"}
"""Harbor's names of networks."""
RUN = Path(__file__).with_name("run.sh").read_text(encoding="utf-8")
SHELL = 'shell=$(command -v bash || echo sh); exec "$shell" -c {run} "$shell" {words}'


class HarborContainer(CommandContainer):
    """A container that the worker runs."""

    grace = 2 * GRACE

    def __init__(self, worker: Worker, spec: ContainerSpec) -> None:
        super().__init__(f"agentrl-{uuid4().hex[:12]}", spec)
        self._worker = worker

    async def start(self) -> None:
        """Have it made, and find a shell in it. Raises InfraError."""
        spec = self.spec
        limits = {"cpus": spec.cpus, "memory_mb": spec.memory_mb, "storage_mb": spec.storage_mb}
        more = {"docker_image": spec.image, "workdir": spec.workdir, "build_timeout_sec": spec.build_timeout}
        network = {"network_mode": MODES[spec.network], "allowed_hosts": list(spec.allowed)}
        folder = None if spec.build is None else str(spec.build)
        await self._ask("start", spec={**limits, **more, "env": dict(spec.env)}, folder=folder, network=network)
        await self.begin(spec.command or ["true"])

    async def run(self, command: Command) -> int | None:
        """Have the vendor run it, with its input in a file. Raises InfraError."""
        limit, stdin = math.ceil(command.timeout), command.stdin
        file = await self._put(stdin) if stdin else "/dev/null"
        words = shlex.join([command.mark, str(limit), shlex.join(command.words), file, str(SHOWN_BYTES)])
        given = {"command": SHELL.format(run=shlex.quote(RUN), words=words), "timeout_sec": limit + GRACE}
        given |= {"cwd": command.cwd, "env": dict(command.env), "user": "root" if command.by_root else command.user}
        answer = await self._ask("exec", **given)
        if (ended := re.search(r"(?:^|\n)(\d+|late) (\S*) (\S*)\s*$", answer["output"])) is None:
            why = last_line(answer["error"]) or last_line(answer["output"]) or "it has ended"
            raise InfraError(f"container {self.name} ran no command: {why}")
        command.stdout.add(b64decode(ended[2]))
        command.stderr.add(b64decode(ended[3]))
        return None if ended[1] == "late" else int(ended[1])

    async def download(self, path: str, to: Path) -> None:
        """Copy out by an archive, without links. Raises InfraError."""
        archive, (folder, _, name) = f"/tmp/.{uuid4().hex}", path.rstrip("/").rpartition("/")
        words = shlex.join(["tar", "-cf", archive, "-C", folder or "/", "--", name])
        small = f'{{ [ "$(wc -c <{archive})" -le {MAX_BYTES} ] || {{ echo "too large" >&2; false; }}; }}'
        await self._shell(f"{words} && {small}", f"download of {path}")
        with tempfile.NamedTemporaryFile() as file:
            await self._ask("download_file", source_path=archive, target_path=file.name)
            content = await asyncio.to_thread(Path(file.name).read_bytes)
            await asyncio.to_thread(unpack, [content], to)
        await self._shell(f"rm -f {archive}", f"download of {path}")

    async def host(self) -> str:
        """Raises InfraError: it may be anywhere."""
        raise InfraError("a container of harbor knows no address of this machine: give the agent's entry a `host`")

    async def stop(self) -> None:
        """Have it removed."""
        with suppress(InfraError):
            await self._ask("stop")

    async def kill(self, command: Command, ends: Future[int | None]) -> None:
        """The vendor may lack either user, and ends the rest with the container."""
        for user in {"root", command.user or "root"}:
            with suppress(InfraError):
                await self._ask("exec", command=shlex.join(["sh", "-c", KILL, "kill", command.mark]), user=user)

    async def _put(self, content: bytes) -> str:
        """The path of a new file there."""
        path = f"/tmp/.{uuid4().hex}"
        with tempfile.NamedTemporaryFile() as copy:
            await asyncio.to_thread(copy.write, content)
            copy.flush()
            await self._ask("upload_file", source_path=copy.name, target_path=path)
        return path

    async def _shell(self, command: str, what: str) -> None:
        done = await self.exec(command, timeout=600, user="root")
        if done.code != 0:
            raise InfraError(f"{self.name}: {what}: {last_line(done.stderr) or done.code}")

    async def _ask(self, do: str, **given: Any) -> dict[str, Any]:
        answer = await self._worker.ask({"do": do, "name": self.name, **given})
        if "failed" in answer:
            raise InfraError(f"container {self.name}: {answer['failed']}")
        return answer


@container_provider("harbor")
class HarborProvider:
    """One worker for the containers of a run."""

    def __init__(self, containers: Containers) -> None:
        given = dict(containers.harbor)
        python = given.pop("python", None)
        if not python or not given.keys() & {"type", "import_path"}:
            raise UserError(f"{KEY}: give `python`, an interpreter that has harbor, and `type`, such as modal or e2b")
        file = Path(__file__).with_name("worker.py")
        program = EnvironmentProgram(os.path.expanduser(python), file, given, os.getcwd(), "harbor")
        self._worker = Worker(program)

    async def prepare(self, spec: ContainerSpec) -> None:
        """Raises UserError for what it cannot run; images are made at the start."""
        if spec.network not in MODES:
            raise UserError(f"containers of harbor have no network {spec.network!r}: give `network: allow` and hosts")
        if not (spec.image or spec.build):
            raise UserError("containers of harbor need an image or a Dockerfile")

    def container(self, spec: ContainerSpec) -> HarborContainer:
        """A container that is still to be started."""
        return HarborContainer(self._worker, spec)

    async def close(self) -> None:
        """End the worker, which removes all containers."""
        self._worker.close()
