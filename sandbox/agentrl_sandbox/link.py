"""The pool's side of the processes: the supervisor's control socket, and a socket per job."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl_sandbox import wire
from agentrl_sandbox.errors import SandboxError

_ROOT = Path(__file__).parents[1]
_BOOT = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from agentrl_sandbox.supervisor import main; main()"
_CHUNK = 1 << 18
_PAUSE = 0.002
_FAREWELL = 10.0


class Lost(SandboxError):
    """A process of the sandbox's own went away in the midst of a job."""


class Caller:
    """A job's socket, as seen by the pool. It is read as soon as something comes."""

    def __init__(self, link: "Link", number: int, flavour: str, ours: socket.socket) -> None:
        self.link, self.number, self.flavour, self.socket = link, number, flavour, ours
        self.buffer = bytearray()
        self.again = False
        """Its warden waits for another job."""
        self.lost = ""
        self.loop = asyncio.get_running_loop()
        self.news: asyncio.Future[None] | None = None
        self.loop.add_reader(ours, self._read)

    async def send(self, content: bytes) -> None:
        """Raises Lost."""
        try:
            sent = self.socket.send(content)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise Lost(f"a run of the sandbox was cut off: {error.strerror}") from error
        if sent < len(content):
            await self._send_rest(memoryview(content)[sent:])

    async def _send_rest(self, content: memoryview) -> None:
        try:
            await self.loop.sock_sendall(self.socket, content)
        except OSError as error:
            raise Lost(f"a run of the sandbox was cut off: {error.strerror}") from error

    async def receive(self, patience: float) -> wire.Message:
        """The next reply. One that does not come within `patience` seconds means that the warden hangs. Raises Lost."""
        try:
            async with asyncio.timeout(patience):
                while (message := wire.split(self.buffer)) is None:
                    await self._more()
        except TimeoutError:
            await self.link.order({"op": "kill", "id": self.number})
            raise Lost(f"a run of the sandbox gave no answer within {patience:g} s") from None
        if message[0].get("kind") == "broken":
            raise SandboxError(f"the sandbox failed: {message[0]['why']}")
        return message

    async def _more(self) -> None:
        if self.lost:
            raise Lost(self.lost)
        self.news = self.loop.create_future()
        await self.news

    def _read(self) -> None:
        try:
            part = self.socket.recv(_CHUNK)
            why = "" if part else "a run of the sandbox was cut off"
        except BlockingIOError:
            return
        except OSError as error:
            part, why = b"", f"a run of the sandbox was cut off: {error.strerror}"
        self.buffer += part
        if why:
            self.lost = why
            self.loop.remove_reader(self.socket)
        if self.news is not None and not self.news.done():
            self.news.set_result(None)

    def close(self) -> None:
        """The warden notices, ends what still runs, and goes."""
        self.loop.remove_reader(self.socket)
        self.socket.close()


class Link:
    """A running supervisor."""

    def __init__(self, told: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.socket = ours
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _BOOT, str(theirs.fileno()), json.dumps(told)],
            stdin=subprocess.DEVNULL,
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            cwd="/",
        )
        theirs.close()
        self.count = 0
        self.idle: dict[str, list[Caller]] = {}
        self.closed = False

    async def hear(self) -> dict[str, Any]:
        """The supervisor's next word: that a server is ready, or failed. Raises Lost."""
        text = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)
        if not text:
            raise Lost("the sandbox's supervisor ended")
        message: dict[str, Any] = json.loads(text)
        return message

    async def open(self, flavour: str) -> Caller:
        """A socket to a new warden. Raises Lost."""
        self.count += 1
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            await self.order({"op": "run", "id": self.count, "flavour": flavour}, [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return Caller(self, self.count, flavour, ours)

    def reuse(self, flavour: str) -> Caller | None:
        """A warden that has done a job and waits for another."""
        return self.idle[flavour].pop() if self.idle.get(flavour) else None

    def release(self, caller: Caller) -> None:
        """A job is over: its warden waits, or goes."""
        if caller.again and not self.closed:
            self.idle.setdefault(caller.flavour, []).append(caller)
        else:
            caller.close()

    def forget(self) -> None:
        """Let all go that wait."""
        for caller in (caller for idle in self.idle.values() for caller in idle):
            caller.close()
        self.idle.clear()

    async def order(self, message: dict[str, Any], handles: Sequence[int] = ()) -> None:
        """Tell the supervisor. Raises Lost."""
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
        """Hang up, and wait until it is gone with all it started."""
        self.closed = True
        self.forget()
        self.socket.close()
        await asyncio.get_running_loop().run_in_executor(None, self._end)

    def _end(self) -> None:
        try:
            self.process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
