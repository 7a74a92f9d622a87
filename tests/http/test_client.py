"""Answers as servers, proxies and broken networks give them, byte by byte."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from agentrl.core.errors import UserError
from agentrl.http.client import Http, RequestRefused, ServerLost

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[Http]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    http = Http(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/prefix/")
    yield http
    await http.close()
    server.close()


async def request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """First line and body of what was asked."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next((int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length")), 0)
    return head.splitlines()[0], await reader.readexactly(length)


def saying(*answers: bytes) -> Serve:
    """Gives one answer a request, a few bytes at a time, then hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await request(reader)
            for at in range(0, len(answer), 7):
                writer.write(answer[at : at + 7])
                await writer.drain()
                await asyncio.sleep(0)

    return serve


CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=1\r\n{"a"\r\n5\r\n: [1]\r\n1\r\n}\r\n0\r\n'


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"a": [1]}',
        b'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\ncontent-length:10\r\n\r\n{"a": [1]}',
        CHUNKED + b"\r\n",
        CHUNKED + b"Trailer: x\r\n\r\n",
        b'HTTP/1.0 200 OK\r\n\r\n{"a": [1]}',
        b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"a": [1]}',
    ],
    ids=["length", "continue", "chunks", "trailer", "old", "until the end"],
)
async def test_an_answer_of_any_shape(answer: bytes) -> None:
    async with serving(saying(answer)) as http:
        assert await http.post("/x", {"b": 2}) == {"a": [1]}


def test_on_the_loop_that_ray_runs_us_on() -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

    async def twice() -> list[object]:
        async with serving(saying(*[b'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"a": [1]}'] * 2)) as http:
            return [await http.post("/x", {"b": i}) for i in range(2)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(twice()) == [{"a": [1]}] * 2


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"a": [1]}',
        CHUNKED,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"",
    ],
    ids=["short", "no last chunk", "no chunk size", "no number", "not HTTP", "nothing"],
)
async def test_half_an_answer_is_a_lost_one(answer: bytes) -> None:
    async with serving(saying(answer)) as http:
        with pytest.raises(ServerLost, match="/prefix/x"):
            await http.post("/x", {})


async def test_a_refusal_says_what_the_server_said() -> None:
    async with serving(saying(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nwait")) as http:
        with pytest.raises(RequestRefused, match="answered 503: wait") as refused:
            await http.get("/x")
        assert refused.value.status == 503


async def test_one_connection_serves_requests_in_turn_and_many_serve_them_at_once() -> None:
    opened, awaited = 0, 1
    busy: set[asyncio.StreamWriter] = set()
    together = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while True:
            line, body = await request(reader)
            busy.add(writer)
            if len(busy) == awaited:
                together.set()
            await together.wait()  # nobody is answered before all have asked
            busy.discard(writer)
            assert line == "POST /prefix/x HTTP/1.1"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async with serving(serve) as http:
        for i in range(3):
            assert await http.post("/x", {"i": i}) == {"i": i}
        assert opened == 1
        awaited = 20
        together.clear()
        answers = await asyncio.gather(*(http.post("/x", {"i": i}) for i in range(20)))
        assert answers == [{"i": i} for i in range(20)]
        assert opened == 20


async def test_an_answer_that_comes_too_late_meets_nobody() -> None:
    late = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await request(reader)
        if body == b'{"slow":true}':
            await late.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async with serving(serve) as http:
        with pytest.raises(ServerLost, match="no answer in 0.05 s"):
            await http.post("/x", {"slow": True}, timeout=0.05)
        task = asyncio.create_task(http.post("/x", {"slow": True}))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        late.set()
        assert await http.post("/x", {"slow": False}) == {"slow": False}


@pytest.mark.parametrize("url", ["localhost:30000", "http://", "ftp://x"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=r"is no address of a server.*http://HOST:PORT"):
        Http(url)
