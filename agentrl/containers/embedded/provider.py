"""Containers in agentrl's own code sandbox, for tasks that need no image: they start in milliseconds, without Docker.

A container has the programs of this machine, read-only, its own processes, a working folder and a /tmp of its own, and
no network. It lacks, compared with Docker: images, root, other users, paths outside these two folders, a limit of
cores. Background jobs run only while a command runs. A verification runs as the same user as the agent did.

Invariants: one cell runs at a time, and takes up all commands that were asked for meanwhile; a session that ended by
itself is the work of a command, so further commands exit with code 137.
"""

import asyncio
import json
from base64 import b64decode, b64encode
from contextlib import suppress
from functools import partial
from itertools import chain, count
from math import inf
from pathlib import Path
from typing import Any
from uuid import uuid4

from agentrl.containers.archive import packed, unpack
from agentrl.containers.commands import Command, CommandContainer
from agentrl.containers.contract import ContainerSpec
from agentrl.core.errors import InfraError, UserError, last_line
from agentrl.core.points import container_provider
from agentrl.core.sandbox import Sandbox, Session
from agentrl_sandbox.job import CommandResult, Limits

HERE = Path(__file__).parent
CODE = [file.read_text(encoding="utf-8") for file in (HERE.parent / "output.py", HERE / "driver.py")]
FIRST_CELL = "".join(CODE).replace("from agentrl.containers.output import OutputEnds\n", "")
DISK_MB, MEMORY_MB, PROCESSES = 512, 2048, 512
"""Where the spec has no limit: the sandbox has one."""
CELL_SECONDS = 60.0
"""Seconds that a cell may take. Far more than it needs: the driver ends it after WAIT_SECONDS."""
WAIT_SECONDS = 0.02, 0.25
"""Seconds that a cell waits for the end of a command: at first, and at most. New commands wait as long."""
PART_BYTES = 1 << 20
"""Bytes of an archive a cell."""
REPLY_BYTES = 64 << 20
KILLED = 137
FIX = "set rollout.containers.provider=docker"


class EmbeddedContainer(CommandContainer):
    """A session of the sandbox with a command runner in it. All commands run as one user: `user` changes nothing."""

    grace = inf

    def __init__(self, sandbox: Sandbox, spec: ContainerSpec) -> None:
        super().__init__(f"sandbox-{uuid4().hex[:12]}", spec)
        self._sandbox = sandbox
        self._session: Session | None = None
        self._pump: asyncio.Task[None] | None = None
        self._numbers = count()
        self._requests: list[dict[str, Any]] = []
        self._waiting: dict[int | str, asyncio.Future[dict[str, Any]]] = {}

    async def start(self) -> None:
        """Open the session, start the runner. Raises InfraError."""
        spec = self.spec
        memory_mb = spec.memory_mb or MEMORY_MB
        limits = Limits(
            wall=CELL_SECONDS,
            cpu=1e6,
            memory_mb=memory_mb,
            output_bytes=REPLY_BYTES,
            processes=spec.processes or PROCESSES,
            disk_mb=min(spec.storage_mb or DISK_MB, memory_mb // 2),
            inodes=1 << 16,
            open_files=1024,
        )
        self._session = await self._sandbox.session(limits, client=self.name)
        done = await self._session.run(FIRST_CELL)
        if done.return_code != 0:
            raise InfraError(f"container {self.name} did not start: {_why(done)}")
        no_folder = f"container {self.name} has no folder {spec.workdir}"
        await self._done(no_folder, "prepare", workdir=spec.workdir)

    async def run(self, command: Command) -> int | None:
        """Have the driver run it."""
        given = {"argv": list(command.words), "cwd": command.cwd, "env": dict(command.env)}
        stdin = _text(command.stdin or b"")
        answer = await self._ask("run", command.mark, **given, timeout=command.timeout, stdin=stdin)
        command.stdout.head += answer.get("stdout", "").encode()  # the driver has kept both ends
        command.stderr.head += answer.get("stderr", f"{answer.get('error')}\n").encode()
        return KILLED if "error" in answer else answer["code"]

    async def kill(self, command: Command, ends: asyncio.Future[int | None]) -> None:
        """Have the driver end it, which counts the time of a command itself: while a cell runs."""
        with suppress(InfraError):
            await self._ask("kill", command=command.mark)

    async def upload(self, source: Path, to: str) -> None:
        """Copy in by an archive; the sandbox must be able to write to the folder of `to`. Raises InfraError."""
        archive = next(self._numbers)
        with packed(source, to) as file:
            for data in chain(iter(partial(file.read, PART_BYTES), b""), [b""]):
                what = f"upload of {source} to {self.name}:{to}"
                await self._done(what, "put", archive=archive, data=_text(data), last=not data)

    async def download(self, path: str, to: Path) -> None:
        """Copy out by an archive. Raises InfraError."""
        what, asked = f"download of {self.name}:{path}", {"archive": next(self._numbers), "path": path}
        chunks = []
        while data := (await self._done(what, "get", **asked, size=PART_BYTES))["data"]:
            chunks.append(b64decode(data))
        try:
            await asyncio.to_thread(unpack, chunks, to)
        except InfraError as error:
            raise InfraError(f"{what}: {error}") from error

    async def host(self) -> str:
        """Raises InfraError: it has no network."""
        raise InfraError(f"the embedded provider has no network: {FIX}")

    async def stop(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if self._pump is not None:
            self._pump.cancel()
            with suppress(asyncio.CancelledError):
                await self._pump
        self._fail(InfraError(f"container {self.name} was stopped"))
        if session is not None:
            await session.close()

    async def _done(self, what: str, do: str, **fields: Any) -> dict[str, Any]:
        """Have the driver do something. Raises InfraError, `what` before its reason, where it fails."""
        answer = await self._ask(do, **fields)
        if "error" in answer:
            raise InfraError(f"{what}: {answer['error']}")
        return answer

    async def _ask(self, do: str, number: int | str | None = None, **fields: Any) -> dict[str, Any]:
        """Have the driver do something. Raises InfraError."""
        if self._session is None:
            raise InfraError(f"container {self.name} does not run")
        number = next(self._numbers) if number is None else number
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._requests.append({"do": do, "number": number, **fields})
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._serve(self._session))
        return await future

    async def _serve(self, session: Session) -> None:
        """Run cells while a request waits for its answer."""
        patience, longest = WAIT_SECONDS
        while self._waiting:
            requests, self._requests = self._requests, []
            try:
                done = await session.run(f"serve({requests!r}, {patience})", wall=CELL_SECONDS)
            except InfraError as error:
                return self._fail(error)
            if done.return_code != 0 or session.over:
                ended = f"the container has ended: {session.over or _why(done)}"
                for number in list(self._waiting):
                    self._answer({"number": number, "error": ended})
                return None
            answers = json.loads(done.stdout)
            for answer in answers:
                self._answer(answer)
            patience = WAIT_SECONDS[0] if answers or self._requests else min(2 * patience, longest)
        return None

    def _answer(self, answer: dict[str, Any]) -> None:
        future = self._waiting.pop(answer["number"], None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _fail(self, error: InfraError) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _why(done: CommandResult) -> str:
    return last_line(done.stderr.decode(errors="replace")) or done.status


@container_provider("embedded")
class EmbeddedProvider:
    """One sandbox for the containers of a run. Nothing starts before the first container."""

    def __init__(self, settings: Any = None) -> None:
        self._sandbox = Sandbox()

    async def prepare(self, spec: ContainerSpec) -> None:
        """Raises UserError for what the sandbox has not."""
        if wanted := spec.image or spec.build:
            raise UserError(f"the embedded provider has no images, and the task wants {wanted}: {FIX}")
        if spec.network != "none":
            raise UserError(f"the embedded provider has no network, and the task wants {spec.network!r}: {FIX}")

    def container(self, spec: ContainerSpec) -> EmbeddedContainer:
        """Describe a container of the shared sandbox."""
        return EmbeddedContainer(self._sandbox, spec)

    async def close(self) -> None:
        """End the sandbox with all its processes."""
        await self._sandbox.close()
