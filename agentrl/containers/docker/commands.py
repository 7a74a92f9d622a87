"""Runs one command in a container, and ends it with its children.

Docker can start a command in a container but not end it. A second command does that: it finds the processes of the
first by a mark in their environment, by their parents and by their session. A process that has left all three ends with
its container.
"""

import secrets
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import IO, Any

from agentrl.containers.output import OutputEnds
from agentrl.containers.shell_scripts import KILL, MARK

RUN_TEXT = 'if command -v bash >/dev/null 2>&1; then bash -c "$1"; else sh -c "$1"; fi; exit $?'
RUN_WORDS = '"$@"; exit $?'
"""Without `exit`, a shell may give its process to the command: its own words have the mark, too, for all to read."""
STDERR = 2
HEADER = struct.Struct(">BxxxL")
"""Before each part of the output: which stream, how many bytes."""
CHUNK = 2**16


class ContainerCommand:
    """A command in a container. Its methods block."""

    def __init__(self, client: Any, container: str, command: str | Sequence[str]) -> None:
        self.mark = secrets.token_hex(12)
        self._api, self._container = client.api, container
        is_text = isinstance(command, str)
        self._words = ["sh", "-c", RUN_TEXT if is_text else RUN_WORDS, self.mark, *([command] if is_text else command)]
        self._id = ""
        self._stdout, self._stderr = OutputEnds(), OutputEnds()

    def run(self, cwd: str | None, env: Mapping[str, str], user: str | None, stdin: bytes | None) -> int:
        """Its exit code, at its end."""
        marked = {**env, MARK: self.mark}
        self._id = self._create(self._words, user, stdin=stdin is not None, workdir=cwd, environment=marked)
        raw = self._api.exec_start(self._id, socket=True)
        # The file above the socket: it has read on, and holds the first bytes of the output.
        stream = raw._response.raw._fp.fp
        with raw._response:
            if stdin is not None:
                Thread(target=_write, args=(raw._sock, stdin), daemon=True).start()
            self._read(stream)
        return self._code()

    def output(self) -> tuple[str, str]:
        """Text that it has written until now to stdout and stderr."""
        return self._stdout.text(), self._stderr.text()

    def kill(self, user: str | None) -> bool:
        """End it with its children; whether all have ended."""
        done = [self._kill_as("0")]
        if user not in (None, "0", "root"):  # root may not read other users' environments
            done.append(self._kill_as(user))
        return all(done)

    def _kill_as(self, user: str | None) -> bool:
        command = self._create(["sh", "-c", KILL, "kill", self.mark], user)
        self._api.exec_start(command)
        return bool(self._api.exec_inspect(command)["ExitCode"] == 0)

    def _create(self, words: Sequence[str], user: str | None, **options: Any) -> str:
        return str(self._api.exec_create(self._container, words, user=user or "", **options)["Id"])

    def _read(self, stream: IO[bytes]) -> None:
        while len(header := stream.read(HEADER.size)) == HEADER.size:
            source, size = HEADER.unpack(header)
            ends = self._stderr if source == STDERR else self._stdout
            while size and (data := stream.read(min(size, CHUNK))):
                ends.add(data)
                size -= len(data)

    def _code(self) -> int:
        """Waits for a command that has closed its output."""
        pause = 0.01
        while (about := self._api.exec_inspect(self._id))["Running"] or about["ExitCode"] is None:
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        return int(about["ExitCode"])


def _write(socket: Any, data: bytes) -> None:
    import socket as sockets

    with suppress(OSError):  # a command need not read it
        socket.sendall(data)
        socket.shutdown(sockets.SHUT_WR)
