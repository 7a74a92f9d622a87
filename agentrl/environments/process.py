"""The processes of an entry's environments: one that prepares it, and one for each trajectory.

Invariants: a trajectory's process ends with it, by force where it hangs; all end with this process, however that ends.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from agentrl.core.clocks import uncounted
from agentrl.core.errors import InfraError, UserError
from agentrl.environments.answers import MAX_ANSWER_BYTES, Observation, read_line
from agentrl.environments.entry import EnvironmentEntry
from agentrl.environments.worker import end_process

START_SECONDS = 120.0
"""Seconds for imports."""


class EnvironmentProcess:
    """Starts environments of one entry."""

    def __init__(self, entry: EnvironmentEntry) -> None:
        self.entry = entry
        self._control: socket.socket | None = None
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["RunningEnvironment"]:
        """An environment for one trajectory. Raises UserError and InfraError."""
        with uncounted():
            async with self._starting:
                self._control = self._control or await self._start()
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"o"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            self._control = None
            raise InfraError(f"environment {self.entry.name}: the process that starts it died ({error})") from error
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_ANSWER_BYTES)
        running = RunningEnvironment(self.entry, reader, writer)
        try:
            await running.greet()
            yield running
        finally:
            running.end()

    async def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        process = _spawn(self.entry, theirs)
        weakref.finalize(self, _end, ours, process)
        ours.setblocking(False)
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await _line_of(ours)
        except TimeoutError:
            raise InfraError(f"environment {self.entry.name}: not ready within {START_SECONDS:g} s") from None
        _checked(answer, self.entry)
        return ours


class RunningEnvironment:
    """The environment of one trajectory."""

    def __init__(self, entry: EnvironmentEntry, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.entry, self._reader, self._writer = entry, reader, writer
        self._pid: int | None = None
        self._busy = False

    async def greet(self) -> None:
        """Wait until the process runs. Raises InfraError."""
        self._pid = (await self._answer(START_SECONDS))["pid"]

    async def reset(self, seed: int) -> Observation:
        """Begin. Raises UserError and InfraError."""
        return await self._call("reset", seed)

    async def step(self, action: str) -> Observation:
        """Act. Raises UserError and InfraError."""
        return await self._call("step", action)

    def end(self) -> None:
        """End the process: by itself, or by force where a call is under way."""
        self._writer.close()
        if self._busy and self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    async def _call(self, method: str, value: Any) -> Observation:
        self._writer.write(json.dumps({method: value}).encode() + b"\n")
        answer = await self._answer(self.entry.step_timeout)
        if method == "step" and "refused" in answer:  # too late to end the run for it
            raise InfraError(f"environment {self.entry.name}: {answer['refused']}")
        return Observation.of_json(_checked(answer, self.entry), f"environment {self.entry.name}")

    async def _answer(self, timeout: float) -> dict[str, Any]:
        self._busy, who = True, f"environment {self.entry.name}"
        try:
            async with asyncio.timeout(timeout):
                answer = await read_line(self._reader, who)
        except TimeoutError:
            raise InfraError(f"{who}: no answer within {timeout:g} s") from None
        self._busy = False
        if answer is None:
            raise InfraError(f"{who}: its process died")
        return answer


def _spawn(entry: EnvironmentEntry, control: socket.socket) -> "subprocess.Popen[bytes]":
    handle = control.fileno()
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "agentrl.environments.server", str(handle), json.dumps(entry.to_json())]
    process = subprocess.Popen(
        words,
        pass_fds=[handle],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if _has_handle(sys.stderr) else subprocess.DEVNULL,
        env=os.environ | paths,
        start_new_session=True,  # Ctrl-C is for the run
    )
    control.close()
    return process


def _has_handle(stream: Any) -> bool:
    try:
        return bool(stream.fileno() >= 0)
    except (AttributeError, OSError, ValueError):  # a notebook's, or a test's
        return False


def _end(control: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    control.close()
    end_process(process, 5)


async def _line_of(control: socket.socket) -> dict[str, Any]:
    received = b""
    while not received.endswith(b"\n"):
        part = await asyncio.get_running_loop().sock_recv(control, 65536)
        if not part:
            return {"failed": "its process died"}
        received += part
    answer: dict[str, Any] = json.loads(received)
    return answer


def _checked(answer: dict[str, Any], entry: EnvironmentEntry) -> dict[str, Any]:
    """Raises UserError and InfraError where the answer says so."""
    if "refused" in answer:
        raise UserError(f"environment {entry.name}: {answer['refused']}")
    if "failed" in answer:
        raise InfraError(f"environment {entry.name}: {answer['failed']}")
    return answer
