"""All servers of the project refuse foreign pages, hosts without a key, and clients that are too slow, in one way."""

import asyncio
import json
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentrl.core.errors import UserError
from agentrl.engines.engine import Sampling
from agentrl.gateway.standalone import OpenGateway
from agentrl.http import serving as serving_of_http
from agentrl.view.api import Api
from agentrl.view.server import ViewServer
from agentrl_sandbox.errors import UsageError
from agentrl_sandbox.job import Unavailable
from agentrl_sandbox.server import protocol
from agentrl_sandbox.server.serve import bind, check_bind
from agentrl_sandbox.server.settings import Settings
from agentrl_sandbox.server.web import make_server
from tests.gateway.serving import KEY, serving
from tests.rollout.scripted import environment, says

pytestmark = pytest.mark.integration

CHAT = {"messages": [{"role": "user", "content": "What is 2 + 3 ?"}]}
CODE = {"language": "python", "code": "print(1)"}


@dataclass
class Target:
    """A running server: where, what a page reads and sends, what a client sends, and what it has done."""

    port: int
    get: str
    post: str
    body: dict[str, Any]
    key: dict[str, str] = field(default_factory=dict)
    done: Callable[[], int] = lambda: 0


class Jobs:
    """A pool that counts."""

    isolation, report = "none", ()

    def __init__(self) -> None:
        self.jobs = 0

    async def run(self, *_: Any, **__: Any) -> Any:
        self.jobs += 1
        raise Unavailable("no language")

    def stats(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        pass


@asynccontextmanager
async def view() -> AsyncIterator[Target]:
    server = ViewServer(Api([]))
    await server.start()
    yield Target(int(server.url.rpartition(":")[2]), "/api/runs", "/api/runs", {})
    await server.stop()


@asynccontextmanager
async def sandbox() -> AsyncIterator[Target]:
    pool, settings = Jobs(), Settings(port=0, body_seconds=0.3)
    server = make_server(pool, settings)  # type: ignore[arg-type]
    listener = bind(settings)
    task = asyncio.ensure_future(server.serve([listener]))
    yield Target(listener.getsockname()[1], "/v1/ping", "/run_code", CODE, done=lambda: pool.jobs)
    server.should_exit = server.force_exit = True
    await task


@asynccontextmanager
async def run_gateway() -> AsyncIterator[Target]:
    async with serving(says("5", "5", "5")) as served:
        port, key = int(served.gateway.url.rpartition(":")[2]), {"Authorization": f"Bearer {KEY}"}
        yield Target(port, "/v1/models", "/v1/messages", CHAT, key, lambda: served.session.requests)


@asynccontextmanager
async def open_gateway(token: str = "") -> AsyncIterator[Target]:
    env, engine = environment(says("5", "5", "5"), model_length=2048)
    folder = Path(tempfile.mkdtemp())
    gateway = OpenGateway(env, Sampling(64, seed=1), folder, token=token)
    await gateway.start()
    key = {"x-api-key": f"{token}.mine"} if token else {}
    path = "/v1/chat/completions" if token else "/s/mine/v1/chat/completions"
    get = "/v1/models" if token else "/s/mine/v1/models"
    yield Target(int(gateway.url.rpartition(":")[2]), get, path, CHAT, key, lambda: len(engine.prompts))
    await gateway.close()
    shutil.rmtree(folder)


@asynccontextmanager
async def guarded_gateway() -> AsyncIterator[Target]:
    async with open_gateway("secret") as target:
        yield target


SERVERS = [view, sandbox, run_gateway, open_gateway, guarded_gateway]
Server = Callable[[], Any]
each = pytest.mark.parametrize("server", SERVERS)


def asked(target: Target, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """Status and answer of a request with these headers and no others."""
    fields = {"Host": f"127.0.0.1:{target.port}"} | {name.replace("_", "-"): text for name, text in headers.items()}
    fields |= {"Content-Length": str(len(body))} if body else {}
    head = "".join(f"{name}: {text}\r\n" for name, text in fields.items() if text)
    with closing(socket.create_connection(("127.0.0.1", target.port), 20)) as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode() + body)
        answer = connection.makefile("rb").read()
    return int(answer.split(b" ", 2)[1]), answer


@each
async def test_clients_are_served(server: Server) -> None:
    async with server() as target:
        for host in ("127.0.0.1", f"localhost:{target.port}", "[::1]:80", "sandbox", "box.internal"):
            got = await asyncio.to_thread(asked, target, "GET", target.get, Host=host, **target.key)
            assert got[0] == 200, (host, got)
        if target.body:
            headers = {"Content_Type": "application/json", **target.key}
            body = json.dumps(target.body).encode()
            assert (await asyncio.to_thread(asked, target, "POST", target.post, body, **headers))[0] == 200
            assert target.done() == 1


@each
async def test_a_name_that_leads_here_reads_nothing(server: Server) -> None:
    async with server() as target:
        for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example:80", "[", ""):
            status, _ = await asyncio.to_thread(asked, target, "GET", target.get, Host=host)
            assert status in (400, 401, 403), host


FOREIGN: list[dict[str, str]] = [
    {"Content_Type": "text/plain"},
    {"Content_Type": "application/x-www-form-urlencoded"},
    {},
    {"Content_Type": "application/json", "Origin": "http://evil.example"},
    {"Content_Type": "application/json", "Origin": "null"},
    {"Content_Type": "application/json", "Host": "evil.example", "Origin": "http://evil.example"},
]


@pytest.mark.prevents(
    "a web page of another site uses a server here, or made-up keys and silent connections keep clients out"
)
@each
async def test_a_page_has_nothing_carried_out(server: Server) -> None:
    async with server() as target:
        body = json.dumps(target.body).encode()
        for headers in FOREIGN:
            status, _ = await asyncio.to_thread(asked, target, "POST", target.post, body, **headers)
            assert status in (401, 403, 415), headers
        assert target.done() == 0


BEGUN = "POST {} HTTP/1.1\r\nHost: x"


@each
@pytest.mark.parametrize("begun", ["", BEGUN, BEGUN + "\r\n{}Content-Length: 9\r\n\r\n{{"])
async def test_a_client_that_is_too_slow_is_cut_off(
    server: Server, begun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (protocol, "HEAD_SECONDS"),
        (protocol, "BODY_SECONDS"),
        (serving_of_http, "BODY_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.4)
    async with server() as target:
        key = "".join(f"{name}: {text}\r\n" for name, text in ({"Content-Type": "a/json"} | target.key).items())
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        writer.write(begun.format(target.post, key).encode())
        answer = await asyncio.wait_for(reader.read(), 20)
        assert b" 200 " not in answer
        writer.close()


@each
async def test_many_silent_connections_keep_nobody_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MOST", 8)
    async with server() as target, AsyncExitStack() as opened:
        for _ in range(30):
            connection = socket.create_connection(("127.0.0.1", target.port), 20)
            opened.callback(connection.close)
            await asyncio.sleep(0.01)
        assert (await asyncio.to_thread(asked, target, "GET", target.get, **target.key))[0] == 200


def test_other_machines_need_a_token() -> None:
    for host in ("0.0.0.0", "::", "", "192.0.2.1"):
        with pytest.raises(UsageError, match="token"):
            check_bind(Settings(host=host))
        with pytest.raises(UserError, match="this machine alone"):
            ViewServer(Api([]), host=host)


async def test_a_gateways_token_begins_each_key() -> None:
    async with guarded_gateway() as target:
        for key, status in (
            ("secret.a", 200),
            ("secret", 200),
            ("secre.a", 401),
            ("a", 401),
            ("secretx", 401),
            ("ü", 401),
        ):
            got = await asyncio.to_thread(asked, target, "GET", "/v1/models", x_api_key=key)
            assert got[0] == status, key


async def test_made_up_keys_take_no_room_and_keep_nobody_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from agentrl.gateway import standalone

    monkeypatch.setattr(standalone, "MAX_SESSIONS", 3)
    kept: list[Any] = []
    env, _ = environment(says("5", "5"), model_length=2048)
    gateway = OpenGateway(env, Sampling(64, seed=1), tmp_path, ended=kept.append)
    await gateway.start()
    target = Target(int(gateway.url.rpartition(":")[2]), "", "", {})
    body, json_type = json.dumps(CHAT).encode(), {"Content_Type": "application/json"}

    async def send(path: str, body: bytes, key: str) -> int:
        method = "POST" if body else "GET"
        return (await asyncio.to_thread(asked, target, method, path, body, x_api_key=key, **json_type))[0]

    assert [await send("/v1/models", b"", f"spam{i}") for i in range(20)] == [200] * 20
    assert not gateway.sessions
    assert await send("/v1/chat/completions", body, "real") == 200
    assert [await send("/v1/chat/completions", b"[]", f"spam{i}") for i in range(20)] == [400] * 20
    assert len(gateway.sessions) == 3
    assert [group.name for group in gateway.groups()] == ["real"]
    assert [await send("/v1/chat/completions", body, f"other{i}") for i in range(3)] == [200] * 3
    gateway.end_idle(0)
    assert sorted(trajectory.key for trajectory in kept) == [
        f"gateway/{key}" for key in ("other0", "other1", "other2", "real")
    ]
    await gateway.close()
