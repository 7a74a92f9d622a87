"""The pool's end of the socket to a job supervisor."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from agentrl_sandbox import wire
from agentrl_sandbox.errors import SandboxError

_CHUNK = 1 << 18
_CUT_OFF = "a run of the sandbox was cut off"


class Lost(SandboxError):
    """A process of the sandbox itself ended during a job."""


class JobConnection:
    """Carries one job, or several of the same flavour one after another."""

    def __init__(self, flavour: str, ours: socket.socket, kill: Callable[[], Awaitable[None]]) -> None:
        """`kill`: ends the job supervisor, if it hangs."""
        self.flavour, self.socket, self.kill = flavour, ours, kill
        self.buffer = bytearray()
        self.reusable = False
        """The job supervisor waits for another job."""
        self.lost = ""
        self.loop = asyncio.get_running_loop()
        self.arrival: asyncio.Future[None] | None = None
        self.loop.add_reader(ours, self._read)

    async def send(self, content: bytes) -> None:
        """Send all bytes. Raises Lost."""
        try:
            sent = self.socket.send(content)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise Lost(f"{_CUT_OFF}: {error.strerror}") from error
        if sent < len(content):
            await self._send_rest(memoryview(content)[sent:])

    async def _send_rest(self, content: memoryview) -> None:
        try:
            await self.loop.sock_sendall(self.socket, content)
        except OSError as error:
            raise Lost(f"{_CUT_OFF}: {error.strerror}") from error

    async def receive(self, timeout: float) -> wire.Message:
        """The next reply. After `timeout` seconds without one the job supervisor is killed. Raises Lost."""
        try:
            async with asyncio.timeout(timeout):
                while (message := wire.split(self.buffer)) is None:
                    await self._more()
        except TimeoutError:
            await self.kill()
            raise Lost(f"a run of the sandbox gave no answer within {timeout:g} s") from None
        if message[0].get("kind") == "broken":
            raise SandboxError(f"the sandbox failed: {message[0]['why']}")
        return message

    async def _more(self) -> None:
        if self.lost:
            raise Lost(self.lost)
        self.arrival = self.loop.create_future()
        await self.arrival

    def _read(self) -> None:
        try:
            part = self.socket.recv(_CHUNK)
            why = "" if part else _CUT_OFF
        except BlockingIOError:
            return
        except OSError as error:
            part, why = b"", f"{_CUT_OFF}: {error.strerror}"
        self.buffer += part
        if why:
            self.lost = why
            self.loop.remove_reader(self.socket)
        if self.arrival is not None and not self.arrival.done():
            self.arrival.set_result(None)

    def close(self) -> None:
        """Close the socket: the job supervisor then ends its processes and itself."""
        self.loop.remove_reader(self.socket)
        self.socket.close()
