"""MCP servers that a task brings: its tools, its errors, and what it may not do."""

import asyncio
import io
import json
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from agentrl.core.errors import InfraError
from agentrl.tools import ToolSession, ToolSet
from agentrl.tools.mcp import connection, task_servers
from agentrl.tools.mcp.spec import ServerSpec
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory

pytestmark = pytest.mark.integration

pytest.importorskip("mcp", reason='pip install "agentrl[mcp]"')

SERVER = """
import os, sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("bag")
words = []

@server.tool(description=sys.argv[2] if sys.argv[1:2] == ["long"] else "Put a word into the bag.")
def put(word: str) -> str:
    words.append(word)
    return " ".join(words)

@server.tool()
def flood(size: int) -> str:
    return "x" * size

@server.tool()
def die() -> str:
    os._exit(1)

if sys.argv[1:2] == ["noisy"]:
    sys.exit("no " * 10_000)
server.run()
"""
ADD = """
from agentrl.tools import function_tool

@function_tool
def put(word: str) -> str:
    \"\"\"Put.

    Args:
        word: It.
    \"\"\"
    return word
"""


class Inside:
    """A container of this machine."""

    name = "here"

    def attached(self, command: Sequence[str]) -> list[str]:
        return [*command]

    async def address(self, host: str) -> str | None:
        return "127.0.0.1" if host == "bag" else None


def trajectory(container: Any = None, **servers: Any) -> Trajectory:
    made = Trajectory(Row("tasks:t", []), "1/tasks:t/0", 0, container=container or Inside())
    made.extra["task"] = {"mcp_servers": servers}
    return made


@pytest.fixture
def command(write: Callable[..., str]) -> dict[str, Any]:
    return {"command": sys.executable, "args": [write("bag.py", SERVER)]}


@pytest.fixture
async def tools(load: Callable[..., ToolSet]) -> AsyncIterator[ToolSet]:
    made = load(None)
    yield made
    await made.close()


def opened(tools: ToolSet) -> ToolSession:
    return tools.open("1/tasks:t/0", {}, None)


async def test_each_trajectory_has_its_own_session(tools: ToolSet, command: dict[str, Any]) -> None:
    first, second = opened(tools), opened(tools)
    schemas = await asyncio.gather(*(each.add_task_servers(trajectory(bag=command)) for each in (first, second)))
    assert [schema["function"]["name"] for schema in schemas[0]] == ["put", "flood", "die"]
    said = [(await each.call("put", {"word": word})).text for each, word in ((first, "a"), (second, "b"), (first, "c"))]
    assert said == ["a", "b", "a c"]
    wrong = await first.call("put", {"words": "a"})
    assert (wrong.outcome, "'word' is missing" in wrong.text) == (Outcome.MODEL_ERROR, True)
    lives = [pool._own[id(each.agent_data)]._life for each in (first, second) for pool in each.pools]
    await first.release()
    await second.release()
    assert all(life.done() for life in lives)
    assert len(lives) == 2
    assert not tools.runners


async def test_a_server_that_dies_is_infrastructure(tools: ToolSet, command: dict[str, Any]) -> None:
    session = opened(tools)
    await session.add_task_servers(trajectory(bag=command))
    dead = await session.call("die", {})
    assert (dead.outcome, "MCP server 'bag of tasks:t' is gone" in str(dead.error)) == (Outcome.INFRA_ERROR, True)
    await session.release()


async def test_its_answers_are_bounded(
    tools: ToolSet, command: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_servers, "BOUNDED", task_servers.BOUNDED.replace(str(connection.MAX_TASK_BYTES), "50000"))
    session = opened(tools)
    await session.add_task_servers(trajectory(bag=command))
    assert len((await session.call("flood", {"size": 9_000})).text) == tools.shorten.limit
    assert (await session.call("flood", {"size": 60_000})).outcome is Outcome.INFRA_ERROR
    await session.release()


async def test_its_errors_are_one_bounded_line(tools: ToolSet, command: dict[str, Any]) -> None:
    noisy = {**command, "args": [*command["args"], "noisy"]}
    session = opened(tools)
    with pytest.raises(InfraError, match="MCP server 'bag of tasks:t' did not start: no no") as caught:
        await session.add_task_servers(trajectory(bag=noisy))
    assert len(str(caught.value)) < 1000
    await session.release()


async def test_schemas_that_fill_the_prompt_are_refused(tools: ToolSet, command: dict[str, Any]) -> None:
    long = {**command, "args": [*command["args"], "long", "word " * 20_000]}
    session = opened(tools)
    with pytest.raises(InfraError, match="'bag of tasks:t': its schemas have over 65536 characters"):
        await session.add_task_servers(trajectory(bag=long))
    await session.release()


async def test_a_tool_that_the_run_has_is_one_line(
    load: Callable[..., ToolSet], write: Callable[..., str], command: dict[str, Any]
) -> None:
    tools = load(None, write("put.py", ADD))
    session = opened(tools)
    with pytest.raises(InfraError, match="'bag of tasks:t': a tool 'put' is there already: rename the run's tool, or"):
        await session.add_task_servers(trajectory(bag=command))
    await session.release()
    await tools.close()


async def test_a_command_needs_containers_that_run_it(tools: ToolSet, command: dict[str, Any]) -> None:
    with pytest.raises(
        InfraError, match="tasks:t: its MCP server 'bag' is a command, which these containers do not run"
    ):
        await opened(tools).add_task_servers(trajectory(object(), bag=command))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "169.254.169.254", "10.0.0.1", "[::1]", "no.such.invalid"])
@pytest.mark.prevents("a task reads this machine's private servers by way of an MCP server's url")
async def test_a_url_leads_to_the_task_or_to_a_public_host(tools: ToolSet, host: str) -> None:
    with pytest.raises(InfraError, match=r"url of its MCP server 'bag': .* is neither a host of the task nor a public"):
        await opened(tools).add_task_servers(trajectory(bag={"url": f"http://{host}:9/mcp"}))


@pytest.mark.prevents("a name that was public when it was checked leads a task to a private server afterwards")
async def test_a_public_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["93.184.216.34", "127.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(2, 1, 6, "", (next(answers), 0))])
    server = {"url": "https://me:secret@moving.example:9/mcp", "headers": {"X": "y"}}
    spec = await task_servers.reached("bag", server, trajectory())
    assert (spec.url, spec.headers) == (server["url"], server["headers"])
    assert spec.addresses == ("93.184.216.34",)


async def test_requests_go_by_name_to_the_addresses_in_turn() -> None:
    addresses = ("127.0.0.2", "127.0.0.1")  # nothing listens at the first one
    with answering(b"{}") as (port, asked):
        spec = ServerSpec("bag", url=f"http://b\u00fccher.example:{port}/mcp", addresses=addresses)
        async with connection._http_client(spec, io.StringIO(), {}) as client:
            answer = await client.post(spec.url, content=b"{}")
    assert asked == [f"xn--bcher-kva.example:{port}"]
    assert answer.url.host == "b\u00fccher.example"  # redirects and endpoints are compared with the name


async def test_tls_asks_for_the_host_by_its_name(tools: ToolSet, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, context = list[Any](), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _, name, __: asked.append(name)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    port, session = server.sockets[0].getsockname()[1], opened(tools)
    with pytest.raises(InfraError, match="MCP server 'bag of tasks:t' did not"):
        await session.add_task_servers(trajectory(bag={"url": f"https://bag:{port}/mcp", "type": "http"}))
    await session.release()
    server.close()
    assert set(asked) == {"bag"}


@contextmanager
def answering(body: bytes, **headers: str) -> Iterator[tuple[int, list[str | None]]]:
    """A server that answers all requests so; its port, and the hosts that were asked for."""
    asked: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.headers["Host"])
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            for name, value in {"content_type": "application/json", **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port, asked
    server.shutdown()


@pytest.mark.parametrize("headers", [{}, {"content_encoding": "gzip"}])
async def test_an_endless_answer_over_http_ends(
    tools: ToolSet, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    import gzip

    monkeypatch.setattr(connection, "MAX_TASK_BYTES", 10_000)
    monkeypatch.setattr(connection, "START_SECONDS", 8)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    body = json.dumps({"jsonrpc": "2.0", "id": 0, "result": {"x": "x" * 20_000}}).encode()
    session = opened(tools)
    with answering(gzip.compress(body) if headers else body, **headers) as (port, asked):
        with pytest.raises(InfraError, match="MCP server 'bag of tasks:t' did not"):
            await session.add_task_servers(trajectory(bag={"url": f"http://bag:{port}/${{HOME}}", "type": "http"}))
        await session.release()
    assert set(asked) == {f"bag:{port}"}
