"""Runs one command in a container of Docker, by a connection that its output comes through. All here blocks."""

import struct
import time
from contextlib import suppress
from threading import Thread
from typing import IO, Any

from agentrl.containers.commands import CHUNK, Command

STDERR = 2
HEADER = struct.Struct(">BxxxL")
"""Before each part of the output: which stream, how many bytes."""


def run(client: Any, container: str, command: Command) -> int:
    """The exit code of a command, at its end."""
    options = {"workdir": command.cwd, "environment": dict(command.env), "stdin": command.stdin is not None}
    made = client.api.exec_create(container, command.words, user=command.user or "", **options)["Id"]
    raw = client.api.exec_start(made, socket=True)
    # The file above the socket: it has read on, and holds the first bytes of the output.
    stream = raw._response.raw._fp.fp
    with raw._response:
        if command.stdin is not None:
            Thread(target=_write, args=(raw._sock, command.stdin), daemon=True).start()
        _read(stream, command)
    return _code(client, made)


def _read(stream: IO[bytes], command: Command) -> None:
    while len(header := stream.read(HEADER.size)) == HEADER.size:
        source, size = HEADER.unpack(header)
        ends = command.stderr if source == STDERR else command.stdout
        while size and (data := stream.read(min(size, CHUNK))):
            ends.add(data)
            size -= len(data)


def _code(client: Any, made: str) -> int:
    """Waits for a command that has closed its output."""
    pause = 0.01
    while (about := client.api.exec_inspect(made))["Running"] or about["ExitCode"] is None:
        time.sleep(pause)
        pause = min(2 * pause, 1.0)
    return int(about["ExitCode"])


def _write(socket: Any, data: bytes) -> None:
    import socket as sockets

    with suppress(OSError):  # a command need not read it
        socket.sendall(data)
        socket.shutdown(sockets.SHUT_WR)
