"""The gateway passes bytes on in both directions, and the end of each."""

import asyncio
import runpy
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.sandbox.docker.engine import REPO

GATEWAY = runpy.run_path(str(REPO / "sandbox" / "gateway.py"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@asynccontextmanager
async def gateway_to(target: int) -> AsyncIterator[int]:
    port = free_port()
    task = asyncio.create_task(GATEWAY["serve"](port, "127.0.0.1", target))
    async with asyncio.timeout(60):
        while not await listens(port):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    yield port
    task.cancel()


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers once the question has ended."""
    question = await reader.read()
    writer.write(question.upper())
    await writer.drain()
    writer.close()


async def ask(port: int, question: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(question)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_many_at_once_and_much() -> None:
    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with server, gateway_to(server.sockets[0].getsockname()[1]) as port:
        questions = [bytes([97 + number]) * (1 << 20) for number in range(8)]
        answers = await asyncio.gather(*(ask(port, question) for question in questions))
    assert answers == [question.upper() for question in questions]


async def test_a_target_that_does_not_answer() -> None:
    async with gateway_to(free_port()) as port:
        assert await ask(port, b"anyone?") == b""
