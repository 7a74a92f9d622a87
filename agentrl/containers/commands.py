"""The base of containers whose provider can start a command and follow it, and do nothing else with it.

A command is ended by a second one, which finds its processes by a mark in their environment, by their parents and by
their session. A process that has left all three ends with its container. Files travel as tar archives through commands.
"""

import asyncio
import os
import secrets
import shlex
import signal
import time
from abc import ABC, abstractmethod
from asyncio import Future
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrl.containers.archive import MAX_BYTES, packed, unpack
from agentrl.containers.contract import ContainerSpec, Done
from agentrl.containers.output import OutputEnds
from agentrl.containers.shell_scripts import AS_USER, KILL, MARK
from agentrl.core.errors import InfraError, last_line
from agentrl.core.user_code import mark_as_seen

RUN_TEXT = 'if command -v bash >/dev/null 2>&1; then bash -c "$1"; else sh -c "$1"; fi; exit $?'
RUN_WORDS = '"$@"; exit $?'
"""Without `exit`, a shell may give its process to the command: its own words have the mark, too, for all to read."""
IN_FOLDER = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh"]
BACKGROUND = ["sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh"]
"""The words that follow as a concurrent command."""
KILL_SECONDS = 30.0
"""For a command to end with its children."""
TRANSFER_SECONDS = 600.0
CHUNK = 2**16


@dataclass(frozen=True)
class Command:
    """A command, and the ends of its output so far."""

    words: Sequence[str]
    timeout: float
    """Seconds."""
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    """None: the image's."""
    stdin: bytes | None = None
    mark: str = ""
    """Is in its words, and in the environment of all its processes."""
    stdout: OutputEnds = field(default_factory=OutputEnds)
    stderr: OutputEnds = field(default_factory=OutputEnds)

    @property
    def by_root(self) -> bool:
        """Whether its user is root, by name or number."""
        return (self.user or "").partition(":")[0] in ("root", "0")

    def alone(self) -> list[str]:
        """Its words, with folder, user and environment in them: for a provider that starts words alone."""
        words = ["env", *(f"{name}={value}" for name, value in self.env.items()), *self.words]
        if self.user is not None and not self.by_root:
            words = ["sh", "-c", AS_USER, "sh", self.user, shlex.join(words)]
        return [*IN_FOLDER, self.cwd, *words] if self.cwd else words


class CommandContainer(ABC):
    """A container over `run`. A provider adds `start`, `stop` and `host`."""

    grace = 0.0
    """Seconds that `run` may take beyond a command's timeout, which it then keeps itself."""
    sets_users = True
    """Whether `run` starts a command as its user. False: words of root do that, and root finds them by the mark."""

    def __init__(self, name: str, spec: ContainerSpec) -> None:
        self.name, self.spec = name, spec

    @abstractmethod
    async def run(self, command: Command) -> int | None:
        """Run a command to its end; its exit code, None where it was late. Raises InfraError."""

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
        """Run a command for at most `timeout` seconds. Raises InfraError. Cancelling it ends the command, too."""
        mark, begin = secrets.token_hex(12), time.monotonic()
        first = [RUN_TEXT, mark, command] if isinstance(command, str) else [RUN_WORDS, mark, *command]
        user, env = self.spec.user if user is None else user, {**self.spec.env, **(env or {}), MARK: mark}
        running = Command(["sh", "-c", *first], timeout, cwd, env, user or None, stdin, mark)
        code = await self._ended(running)
        return Done(code, running.stdout.text(), running.stderr.text(), time.monotonic() - begin)

    async def upload(self, source: Path, to: str) -> None:
        """Copy in by an archive. Raises InfraError."""
        archive, words = await asyncio.to_thread(_archive, source, to), ["tar", "-xf", "-", "-C", "/"]
        done = await self.exec(words, timeout=TRANSFER_SECONDS, cwd="/", user="0", stdin=archive)
        if done.code != 0:
            raise InfraError(f"{self.name}: upload to {to}: {last_line(done.stderr) or done.code}")

    async def download(self, path: str, to: Path) -> None:
        """Copy out by an archive, without links. Raises InfraError."""
        folder, _, name = path.rstrip("/").rpartition("/")
        words, mark = ["tar", "-cf", "-", "-C", folder or "/", "--", name], secrets.token_hex(12)
        archive = OutputEnds(2 * MAX_BYTES)
        command = Command(words, TRANSFER_SECONDS, "/", {MARK: mark}, "0", mark=mark, stdout=archive)
        await self._ended(command)
        try:
            await asyncio.to_thread(unpack, (archive.head, archive.tail), to)
        except InfraError as error:
            why = last_line(command.stderr.text())
            raise InfraError(f"{self.name}: download of {path}: {why or error}") from error

    async def begin(self, first: Sequence[str]) -> None:
        """Run a concurrent command from the start on. Raises InfraError where none runs."""
        if first:
            done = await self.exec([*BACKGROUND, *first], timeout=self.spec.start_timeout, user="")
            if done.code != 0:
                raise InfraError(f"container {self.name} runs no command: {last_line(done.stderr) or done.code}")

    def require_network(self) -> None:
        """Raises InfraError unless the container has the network `full`."""
        if self.spec.network != "full":
            raise InfraError(f"container {self.name} has no network: give its row `network: full`")

    async def _ended(self, command: Command) -> int | None:
        """The exit code of a command; None: it was late, and was ended."""
        ends = asyncio.ensure_future(self.run(command))
        ends.add_done_callback(mark_as_seen)
        try:
            done, _ = await asyncio.wait([ends], timeout=command.timeout + self.grace)
        except asyncio.CancelledError:
            with suppress(InfraError):
                await asyncio.shield(self.kill(command, ends))
            raise
        late = not done or (ends.exception() is None and ends.result() is None)
        if late:
            await asyncio.shield(self.kill(command, ends))
        code = ends.result()
        return None if late else code

    async def kill(self, command: Command, ends: Future[int | None]) -> None:
        """End a command with its children. Raises InfraError."""
        killer = Command(["sh", "-c", KILL, "kill", command.mark], KILL_SECONDS, user="0")
        done: list[int | None] = [1]
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                done = [await self.run(killer)]
                if self.sets_users and command.user and not command.by_root:  # root may not read others' environments
                    done.append(await self.run(replace(killer, user=command.user)))
        if any(done) or not (await asyncio.wait([ends], timeout=KILL_SECONDS))[0]:
            raise InfraError(f"{self.name}: a command does not end")


def _archive(source: Path, to: str) -> bytes:
    with packed(source, to) as file:
        return file.read()


async def piped(words: Sequence[str], command: Command, **options: Any) -> int:
    """Follow a command through a process of this machine; its exit code."""
    streams = {"stdin": DEVNULL if command.stdin is None else PIPE, "stdout": PIPE, "stderr": PIPE}
    process = await asyncio.create_subprocess_exec(*words, **{**streams, **options}, start_new_session=True)
    parts = ((process.stdout, command.stdout), (process.stderr, command.stderr))
    try:
        await asyncio.gather(*(_read(stream, ends.add) for stream, ends in parts), _write(process.stdin, command.stdin))
        code = await process.wait()
        return code if code >= 0 else 128 - code
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _read(stream: asyncio.StreamReader | None, add: Callable[[bytes], None]) -> None:
    while stream is not None and (data := await stream.read(CHUNK)):
        add(data)


async def _write(stream: asyncio.StreamWriter | None, data: bytes | None) -> None:
    if stream is not None:
        with suppress(OSError):  # a command need not read it
            stream.write(data or b"")
            await stream.drain()
            stream.close()
