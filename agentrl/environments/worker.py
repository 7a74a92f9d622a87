"""Programs that run environments in a separate interpreter, so that their packages never meet those of training.

Invariants: a program, with all that it started, ends with this process, however that ends, and with the run that uses
it; a request is cancelled with its connection; a program that died is started again for the next request.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.core.clocks import uncounted
from agentrl.core.errors import InfraError, UserError, last_line
from agentrl.core.foreign import read_object
from agentrl.core.outputs import tail
from agentrl.engines.servers.process import watched
from agentrl.environments.answers import MAX_ANSWER_BYTES, SHOWN_CHARACTERS, read_line
from agentrl.environments.entry import EnvironmentEntry
from agentrl.environments.own import interpreter

START_SECONDS = 300.0
"""Seconds for imports and for reading tasks."""
POLL_SECONDS = 0.02
"""Seconds between two checks of a program that is not ready."""
OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
"""Variables that would send another interpreter to this one's packages."""

NEEDED = "jsonschema numpy omegaconf orjson pyyaml regex"
"""Packages that modules of agentrl's need in another interpreter."""

SERVED = Path(__file__).with_name("served")
"""Modules that programs import in their interpreters."""


@dataclass(frozen=True)
class EnvironmentProgram:
    """A program, the interpreter that runs it, and its settings."""

    python: str
    file: Path | str
    """A Python file, or the name of a module."""
    settings: Mapping[str, Any]
    path: str
    """The folder that it runs in."""
    what: str = "environment"
    """Its name in messages."""
    modules: str | None = None
    """Folders whose modules it finds, too; None: `path`."""
    shown: bool = False
    """Whether its output goes to standard error, and not into a file for messages."""

    def words(self, folder: Path) -> list[str]:
        """The command; its settings are in a file of `folder`."""
        settings = folder / "settings.json"
        settings.write_text(json.dumps(self.settings))
        if isinstance(self.file, Path):
            return [self.python, "-u", str(self.file), str(settings)]
        (folder / "agentrl").symlink_to(Path(__file__).parents[1])
        return [self.python, "-u", "-m", self.file, str(settings)]

    def environment(self, folder: Path) -> dict[str, str]:
        """Its environment variables: ours, without those that name our packages. `folder`: that of `words`."""
        kept = {name: value for name, value in os.environ.items() if name not in OURS}
        near = ",".join(filter(None, (kept.get("NO_PROXY"), "127.0.0.1,localhost")))
        modules = os.pathsep.join((self.modules or self.path, str(SERVED), str(folder)))
        return {**kept, "PYTHONPATH": modules, "NO_PROXY": near, "no_proxy": near}


def own_program(module: str, entry: EnvironmentEntry) -> EnvironmentProgram:
    """A module of agentrl's as a program: in this interpreter, with the modules which this process finds, or in the one
    that the entry names, which finds agentrl and none of our packages. Raises UserError."""
    python, written = sys.executable, entry.options.get("python")
    modules = None if written else os.pathsep.join(filter(None, sys.path))
    if written:
        python = interpreter(written, entry.folder, entry.kind, f"with {NEEDED}")
    what = f"environment {entry.name}"
    return EnvironmentProgram(python, module, entry.to_json(), os.getcwd(), what, modules, shown=not written)


def run_once(program: EnvironmentProgram) -> dict[str, Any]:
    """The answer of a program that ends by itself, with all that it started. Raises UserError."""
    folder = Path(tempfile.mkdtemp(prefix="agentrl-environment-"))
    files = folder / "output", folder / "errors"  # no pipes: a process that the program leaves would hold them open
    with files[0].open("wb") as output, files[1].open("wb") as errors:
        options = {"env": program.environment(folder), "cwd": program.path}
        process = watched(folder, program.words(folder), stdout=output, stderr=errors, **options)
    try:
        code = process.wait(START_SECONDS)
        last, why = (last_line(file.read_text(errors="replace")) for file in files)
    except subprocess.TimeoutExpired:
        raise UserError(f"{program.what}: it was not loaded within {START_SECONDS:g} s") from None
    finally:
        _end(process, folder)
    if code or not last:
        if why.startswith("ModuleNotFoundError") and not isinstance(program.file, Path):
            why += f": run `{program.python} -m pip install {NEEDED}`"
        raise UserError(f"{program.what}: {why or 'its process died'}")
    if (answer := read_object(last)) is None:
        raise UserError(f"{program.what}: its last line is no JSON object: {last[:SHOWN_CHARACTERS]}")
    if "refused" in answer:
        raise UserError(f"{program.what}: {answer['refused']}")
    return answer


class RestartedProgram:
    """A program that is started when it is first needed, and again after it died."""

    died = ""
    """Stands before the last words of one that died."""

    def __init__(self, program: EnvironmentProgram) -> None:
        self.program = program
        self._running: ProgramProcess | None = None

    def close(self) -> None:
        """End the program."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def _current(self) -> "ProgramProcess":
        """The process, which may not be ready yet."""
        if self._running is None or self._running.process.poll() is not None:
            self.close()
            self._running = ProgramProcess(self.program)
        return self._running

    def _is_ready(self, running: "ProgramProcess") -> bool:
        """Whether it takes requests. Raises InfraError where it died, or is late."""
        if os.path.exists(running.address):
            return True
        dead = running.process.poll() is not None
        if dead or time.monotonic() > running.deadline:
            late = f"{self.program.what}: not ready within {START_SECONDS:g} s"
            why = self.died + running.last_words() if dead else late
            self.close()
            raise InfraError(why)
        return False


class Worker(RestartedProgram):
    """A program that serves requests. Belongs to one event loop."""

    def __init__(self, program: EnvironmentProgram) -> None:
        super().__init__(program)
        self.died = f"{program.what}: its worker died: "
        self._starting = asyncio.Lock()

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request; a cancellation cancels it there, too. Raises InfraError."""
        running, connection = await self.connected()
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_ANSWER_BYTES)
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            answer = await read_line(reader, self.program.what)
        finally:
            writer.close()
        if answer is None:
            raise InfraError(self.died + running.last_words())
        return answer

    async def connected(self) -> "tuple[ProgramProcess, socket.socket]":
        """The program and a connection to it; one with many requests that wait takes no more for a moment. Raises
        InfraError."""
        with uncounted():
            while True:
                running = await self._ready()
                connection = running.connect()
                if connection is not None:
                    return running, connection
                await asyncio.sleep(POLL_SECONDS)

    async def _ready(self) -> "ProgramProcess":
        async with self._starting:
            running = self._current()
            try:
                while not self._is_ready(running):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS)
            except asyncio.CancelledError:
                self.close()
                raise
            return running


class ProgramProcess:
    """A process of a program, under a watchdog, with a folder for its socket, its log and its temporary files."""

    def __init__(self, program: EnvironmentProgram) -> None:
        folder = Path(tempfile.mkdtemp(prefix="agentrl-environment-"))
        self.deadline = time.monotonic() + START_SECONDS
        self.address, self.log = str(folder / "socket"), folder / "log"
        words = [*program.words(folder), self.address]
        with self.log.open("wb") as log:
            output = sys.stderr if program.shown and _has_handle(sys.stderr) else log
            self.process = watched(folder, words, stdout=output, env=program.environment(folder), cwd=program.path)
        self.end = weakref.finalize(self, _end, self.process, folder)

    def connect(self) -> socket.socket | None:
        """A connection, if it takes one now. Not by asyncio, which takes a full queue for a connection."""
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            connection.connect(self.address)
        except OSError:
            connection.close()
            return None
        return connection

    def last_words(self) -> str:
        """The last line of its output."""
        with suppress(OSError):
            return last_line(tail(self.log, 10_000)) or "it wrote nothing"
        return "it wrote nothing"


def _has_handle(stream: Any) -> bool:
    with suppress(AttributeError, OSError, ValueError):  # a notebook's, or a test's
        return bool(stream.fileno() >= 0)
    return False


def _end(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """End the program and its children, and remove its folder."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
