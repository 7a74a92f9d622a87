"""The pool's end of the supervisor's control socket."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl_sandbox.job_connection import JobConnection, Lost

_ROOT = Path(__file__).parents[1]
_START = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from agentrl_sandbox.supervisor import main; main()"
_PAUSE = 0.002
_EXIT_SECONDS = 10.0


class SupervisorClient:
    """A running supervisor, and the connections to job supervisors that wait for another job."""

    def __init__(self, config: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.socket = ours
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, str(theirs.fileno()), json.dumps(config)],
            stdin=subprocess.DEVNULL,
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            cwd="/",
        )
        theirs.close()
        self.count = 0
        self.idle: dict[str, list[JobConnection]] = {}
        self.closed = False

    async def receive(self) -> dict[str, Any]:
        """The supervisor's next message: a zygote is ready, or failed. Raises Lost."""
        text = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)
        if not text:
            raise Lost("the sandbox's supervisor ended")
        message: dict[str, Any] = json.loads(text)
        return message

    async def open(self, flavour: str) -> JobConnection:
        """A connection to a new job supervisor. Raises Lost."""
        self.count += 1
        number = self.count
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            await self.send({"op": "run", "id": number, "flavour": flavour}, [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return JobConnection(flavour, ours, lambda: self.send({"op": "kill", "id": number}))

    def reuse(self, flavour: str) -> JobConnection | None:
        """A connection to a job supervisor that has done a job and waits for another."""
        return self.idle[flavour].pop() if self.idle.get(flavour) else None

    def release(self, connection: JobConnection) -> None:
        """Keep the connection for another job, or close it."""
        if connection.reusable and not self.closed:
            self.idle.setdefault(connection.flavour, []).append(connection)
        else:
            connection.close()

    def close_idle(self) -> None:
        """Close the connections that wait for another job."""
        for connection in (connection for idle in self.idle.values() for connection in idle):
            connection.close()
        self.idle.clear()

    async def send(self, message: dict[str, Any], handles: Sequence[int] = ()) -> None:
        """Send the supervisor a message. Raises Lost."""
        text = json.dumps(message).encode()
        while True:
            try:
                socket.send_fds(self.socket, [text], handles)
                return
            except BlockingIOError:
                await asyncio.sleep(_PAUSE)
            except OSError as error:
                raise Lost("the sandbox's supervisor ended") from error

    async def close(self) -> None:
        """Close the control socket, and wait until the supervisor and all its processes have ended."""
        self.closed = True
        self.close_idle()
        self.socket.close()
        await asyncio.get_running_loop().run_in_executor(None, self._wait)

    def _wait(self) -> None:
        try:
            self.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
