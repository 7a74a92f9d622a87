"""The provider `harbor`: containers elsewhere, by the environment classes of Harbor."""

import asyncio
import math
import os
import re
import shlex
import shutil
import tempfile
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from agentrl.config.schema.rollout import Containers
from agentrl.containers import KILL, ContainerSpec, Done, packed, unpack
from agentrl.containers.archive import MAX_BYTES
from agentrl.containers.output import MAX_OUTPUT_BYTES
from agentrl.core.errors import InfraError, UserError, last_line
from agentrl.core.points import container_provider
from agentrl.environments.worker import EnvironmentProgram, Worker

KEY = "rollout.containers.harbor"
GRACE = 60
"""Seconds that a vendor may take for a command beyond those of the command."""
MODES = {"none": "no-network", "full": "public", "allow": "allowlist"}
"""Harbor's names of networks."""
RUN = Path(__file__).with_name("run.sh").read_text(encoding="utf-8")
SHELL = 'shell=$(command -v bash || echo sh); exec "$shell" -c {run} "$shell" {words}'


class HarborContainer:
    """A container that the worker runs."""

    def __init__(self, worker: Worker, spec: ContainerSpec) -> None:
        self._worker, self._spec = worker, spec
        self.name = f"agentrl-{uuid4().hex[:12]}"

    async def start(self) -> None:
        """Have it made, and find a shell in it. Raises InfraError."""
        spec = self._spec
        limits = {"cpus": spec.cpus, "memory_mb": spec.memory_mb, "storage_mb": spec.storage_mb}
        more = {"docker_image": spec.image, "workdir": spec.workdir, "build_timeout_sec": spec.build_timeout}
        network = {"network_mode": MODES[spec.network], "allowed_hosts": list(spec.allowed)}
        folder = None if spec.build is None else str(spec.build)
        await self._ask("start", spec={**limits, **more, "env": dict(spec.env)}, folder=folder, network=network)
        if (done := await self.exec("true", timeout=GRACE)).code != 0:
            raise InfraError(f"container {self.name} runs no command: {last_line(done.stderr) or done.code}")

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
    ) -> Done:
        """Run a command. Raises InfraError."""
        text = command if isinstance(command, str) else f"exec {shlex.join(command)}"
        mark, limit = uuid4().hex, math.ceil(timeout)
        file = await self._put(lambda copy: copy.write(stdin)) if stdin else "/dev/null"
        words = shlex.join([mark, str(limit), text, file, str(MAX_OUTPUT_BYTES)])
        given = {"command": SHELL.format(run=shlex.quote(RUN), words=words), "timeout_sec": limit + GRACE}
        user = (self._spec.user if user is None else user) or None
        given |= {"cwd": cwd, "env": dict(env or {}), "user": user}
        begin, late = time.monotonic(), True
        try:
            answer = await self._ask("exec", **given)
            if (ended := re.search(r"(?:^|\n)(\d+|late) (\S*) (\S*)\s*$", answer["output"])) is None:
                why = last_line(answer["error"]) or last_line(answer["output"]) or "it has ended"
                raise InfraError(f"container {self.name} ran no command: {why}")
            late = ended[1] == "late"
        finally:
            if late:  # or cancelled
                await asyncio.shield(self._kill(mark, user))
        output = [b64decode(ended[part]).decode(errors="replace") for part in (2, 3)]
        return Done(None if late else int(ended[1]), output[0], output[1], time.monotonic() - begin)

    async def upload(self, source: Path, to: str) -> None:
        """Copy in by an archive. Raises InfraError."""
        archive = await self._put(lambda copy: _pack(source, to, copy))
        await self._shell(f"tar -xf {archive} -C / && rm {archive}", f"upload of {source} to {to}")

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

    async def _kill(self, mark: str, user: str | None) -> None:
        """End a command with its children; root may not read the environments of others."""
        for who in {"root", user or "root"}:
            with suppress(InfraError):
                await self._ask("exec", command=shlex.join(["sh", "-c", KILL, "kill", mark]), user=who)

    async def _put(self, write: Callable[[IO[bytes]], object]) -> str:
        """The path of a new file there, with what `write` writes."""
        path = f"/tmp/.{uuid4().hex}"
        with tempfile.NamedTemporaryFile() as copy:
            await asyncio.to_thread(write, copy)
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


def _pack(source: Path, to: str, copy: IO[bytes]) -> None:
    with packed(source, to) as file:
        shutil.copyfileobj(file, copy)


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
        if not (spec.image or spec.build) or spec.command:
            raise UserError("containers of harbor need an image or a Dockerfile, and run no command of their own")

    def container(self, spec: ContainerSpec) -> HarborContainer:
        """A container that is still to be started."""
        return HarborContainer(self._worker, spec)

    async def close(self) -> None:
        """End the worker, which removes all containers."""
        self._worker.close()
