"""The environments of an entry's trajectories: a process each, forked from one that has prepared the entry.

Invariants: a trajectory's process ends with it, by force where it hangs; all end with this process, however that ends.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from agentrl.core.errors import InfraError, UserError
from agentrl.environments.answers import MAX_ANSWER_BYTES, Observation, read_line
from agentrl.environments.entry import EnvironmentEntry
from agentrl.environments.worker import START_SECONDS, Worker, own_program


class EnvironmentProcess(Worker):
    """Starts environments of one entry."""

    def __init__(self, entry: EnvironmentEntry) -> None:
        super().__init__(own_program("agentrl.environments.server", entry))
        self.entry = entry

    @asynccontextmanager
    async def open(self) -> AsyncIterator["RunningEnvironment"]:
        """An environment for one trajectory. Raises InfraError."""
        _, connection = await self.connected()
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_ANSWER_BYTES)
        running = RunningEnvironment(self.entry, reader, writer)
        try:
            await running.greet()
            yield running
        finally:
            running.end()


class RunningEnvironment:
    """The environment of one trajectory."""

    def __init__(self, entry: EnvironmentEntry, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.entry, self._reader, self._writer = entry, reader, writer
        self._pid: int | None = None
        self._busy = False

    async def greet(self) -> None:
        """Wait until the process runs. Raises InfraError."""
        self._pid = (await self._answer(START_SECONDS))["pid"]

    def end(self) -> None:
        """End the process: by itself, or by force where a call is under way."""
        self._writer.close()
        if self._busy and self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    async def call(self, method: str, value: Any) -> Observation:
        """Begin with a seed (`reset`) or act (`step`). Raises UserError and InfraError."""
        self._writer.write(json.dumps({method: value}).encode() + b"\n")
        answer, who = await self._answer(self.entry.step_timeout), f"environment {self.entry.name}"
        if "refused" in answer and method == "reset":
            raise UserError(f"{who}: {answer['refused']}")
        if trouble := answer.get("refused") or answer.get("failed"):  # in a step it is too late to end the run
            raise InfraError(f"{who}: {trouble}")
        return Observation.of_json(answer, who)

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
