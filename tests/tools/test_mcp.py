"""MCP servers as tools: a real server as a process and over both HTTP transports; two public ones."""

import asyncio
import contextlib
import gc
import importlib.util
import json
import shutil
import socket
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from agentrl.core.errors import InfraError, UserError
from agentrl.tools.mcp.connection import Connection
from agentrl.tools.mcp.spec import read_specs
from agentrl.tools.options import ToolOptions
from agentrl.trajectory.trajectory import Outcome

pytestmark = pytest.mark.integration

pytest.importorskip("mcp", reason='pip install "agentrl[mcp]"')

SERVER = """
import os, sys, time
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("counter")
count = 0

@server.tool()
def add(n: int, note: str = "") -> str:
    "Add to the counter."
    global count
    count += n
    return f"{count} {note}{os.environ.get('GREETING', '')}".strip()

@server.tool()
def pid() -> int:
    "Which process this is."
    return os.getpid()

@server.tool()
def wrong() -> str:
    raise ToolError("out of beans")

@server.tool()
def die() -> str:
    os._exit(3)

@server.tool()
def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "awake"

@server.tool()
def picture():
    "A picture and a word."
    return [Image(data=b"png", format="png"), "a dot"]

if __name__ == "__main__":
    server.run()
"""


@pytest.fixture
def server(write):
    return write("server.py", SERVER)


@pytest.fixture
def yaml(write):
    """An entry for the given servers; `config` and `mcp` are YAML."""

    def yaml(servers, config="", extra=""):
        write("servers.json", json.dumps({"mcpServers": servers}))
        return write(
            "tools.yaml",
            f"tools:\n  - config: {{type: mcp, timeout: 20, {config}}}\n"
            f"    mcp: {{mcp_servers_config_path: servers.json, {extra}}}\n",
        )

    return yaml


@pytest.fixture
async def opened(load, yaml, server):
    """The tools of the server above as a process, closed at the end."""
    sets = []

    def opened(config="", extra="", **fields):
        sets.append(load(yaml({"counter": {"command": sys.executable, "args": [server], **fields}}, config, extra)))
        return sets[-1]

    yield opened
    for tools in sets:
        await tools.close()


async def test_a_process_of_our_own(opened):
    tools = opened(env={"GREETING": "hello"})
    add, *_ = tools.schemas()
    assert (add["function"]["name"], add["function"]["description"]) == ("add", "Add to the counter.")
    assert add["function"]["parameters"]["required"] == ["n"]
    first, second = (tools.open(f"1/row/{i}", {}, None) for i in (0, 1))
    results = [await s.call(*c) for s, c in ((first, ("add", {"n": 1})), (second, ("add", {"n": 2, "note": "now "})))]
    # One process for the run: the second trajectory meets the first one's counter.
    assert [(r.text, r.outcome) for r in results] == [("1 hello", Outcome.OK), ("3 now hello", Outcome.OK)]
    wrong = await first.call("wrong", {})
    assert (wrong.outcome, wrong.text) == (Outcome.MODEL_ERROR, "Error executing tool wrong: out of beans")
    misfit = await first.call("add", {"n": "many"})
    assert (misfit.outcome, "'n' must be integer" in misfit.text) == (Outcome.MODEL_ERROR, True)
    seen = await first.call("picture", {})
    assert seen.text == "[image: image/png]\na dot"
    assert seen.images == ["data:image/png;base64,cG5n"]
    await first.release()
    await second.release()


PROMISES = """
import asyncio, sys
import mcp.types as t
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

OUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
AWAY = {"type": "object", "properties": {"n": {"$ref": "http://127.0.0.1:9/n"}}}
TEXT = [t.TextContent(type="text", text="usable text")]
RESULTS = {
    "right": t.CallToolResult(content=TEXT, structured_content={"n": 1}),
    "wrong": t.CallToolResult(content=TEXT, structured_content={"n": "x"}),
    "missing": t.CallToolResult(content=TEXT),
    "away": t.CallToolResult(content=TEXT, structured_content={"n": 1}),
    "bare": t.CallToolResult(content=[], structured_content={"n": "x"}),
    "failed": t.CallToolResult(content=TEXT, is_error=True),
}

async def listed(ctx, page):
    if "silent" in sys.argv:
        await asyncio.sleep(10_000)
    if "endless" in sys.argv:
        await asyncio.sleep(0.01)
        return t.ListToolsResult(tools=[], next_cursor="on")
    schemas = {name: AWAY if name == "away" else OUT for name in RESULTS}
    free = {"type": "object"}
    tools = [t.Tool(name=n, description=n, input_schema=free, output_schema=s) for n, s in schemas.items()]
    return t.ListToolsResult(tools=tools)

async def called(ctx, params):
    return RESULTS[params.name]

async def main():
    server = Server("promises", on_list_tools=listed, on_call_tool=called)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

asyncio.run(main())
"""


async def test_a_result_that_is_not_as_promised_is_used(load, yaml, write):
    tools = load(yaml({"s": {"command": sys.executable, "args": [write("promises.py", PROMISES)]}}))
    session = tools.open("1/row/0", {}, None)
    for name in ("right", "wrong", "wrong", "missing", "away"):
        answer = await session.call(name, {})
        assert (answer.text, answer.outcome, answer.error) == ("usable text", Outcome.OK, None)
    bare, failed = await session.call("bare", {}), await session.call("failed", {})
    assert (bare.outcome, bare.text) == (Outcome.OK, '{"n": "x"}')
    assert (failed.outcome, failed.text) == (Outcome.MODEL_ERROR, "usable text")
    await session.release()
    await tools.close()


@pytest.mark.parametrize("how", ["silent", "endless"])
def test_a_server_that_never_lists_its_tools_is_told_in_one_line(load, yaml, write, monkeypatch, how):
    monkeypatch.setattr("agentrl.tools.mcp.connection.START_SECONDS", 4)
    servers = {"slow": {"command": sys.executable, "args": [write("promises.py", PROMISES), how]}}
    with pytest.raises(UserError, match=r"'slow' did not (list its tools within|answer for) 4 s; run the command"):
        load(yaml(servers))


async def test_a_server_that_is_given_up_leaves_no_error_that_nobody_took(monkeypatch, caplog):
    @contextlib.asynccontextmanager
    async def silent(spec, output):
        await asyncio.sleep(60)
        yield

    monkeypatch.setattr("agentrl.tools.mcp.connection.START_SECONDS", 0.1)
    monkeypatch.setattr("agentrl.tools.mcp.connection._client", silent)
    with pytest.raises(InfraError, match="'slow' did not answer"):
        await Connection(SimpleNamespace(name="slow"))._open()
    await asyncio.sleep(0.1)
    gc.collect()
    assert not caplog.messages


async def test_a_server_that_dies_is_infrastructure_and_is_started_again(opened):
    session = opened().open("1/row/0", {}, None)
    before = (await session.call("pid", {})).text
    dead = await session.call("die", {})
    assert (dead.outcome, dead.text) == (Outcome.INFRA_ERROR, "")
    assert "MCP server 'counter' is gone" in dead.error
    after = await session.call("pid", {})
    assert (after.outcome, after.text != before) == (Outcome.OK, True)


async def test_a_call_that_takes_too_long_costs_itself_only(opened):
    tools = opened(extra="tool_selected_list: [sleep, add]")
    tools.runners["sleep"].options = ToolOptions(timeout=0.2)
    session = tools.open("1/row/0", {}, None)
    late = await session.call("sleep", {"seconds": 1})
    assert (late.outcome, "TimeoutError" in late.error) == (Outcome.INFRA_ERROR, True)
    assert (await session.call("add", {"n": 5})).text == "5"


async def test_a_session_for_each_trajectory(opened, caplog):
    tools = opened(config="sessions: per_trajectory", extra="tool_selected_list: [add, pid]")
    first, second = (tools.open(f"1/row/{i}", {}, None) for i in (0, 1))
    assert [(await s.call("add", {"n": 1})).text for s in (first, second, first)] == ["1", "1", "2"]
    pids = {(await s.call("pid", {})).text for s in (first, second)}
    assert len(pids) == 2
    pool = next(iter(tools.servers.pools))
    assert len(pool._own) == 2
    await asyncio.gather(first.release(), second.release())
    assert not pool._own
    assert not caplog.messages


async def test_several_shared_sessions(opened):
    tools = opened(config="sessions: 2", extra="tool_selected_list: [pid, sleep]")
    session = tools.open("1/row/0", {}, None)
    long = asyncio.create_task(session.call("sleep", {"seconds": 2}))
    shared = tools.servers.pools[0]._shared
    while not shared[0].busy:  # noqa: ASYNC110  (the call begins within a few turns of the loop)
        await asyncio.sleep(0)
    assert (await session.call("pid", {})).outcome is Outcome.OK
    assert len(shared) == 2
    assert (await long).text == "awake"


@pytest.fixture(params=["http", "sse"])
def url(request, server):
    """The same server over HTTP, in a thread, behind a token."""
    import uvicorn

    spec = importlib.util.spec_from_file_location("mcp_http_server", server)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app = module.server.streamable_http_app() if request.param == "http" else module.server.sse_app()

    async def guarded(scope, receive, send):
        headers = dict(scope.get("headers", []))
        if scope["type"] == "http" and headers.get(b"authorization") != b"Bearer secret":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(guarded, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/{'mcp' if request.param == 'http' else 'sse'}"
    running.should_exit = True
    thread.join(5)


async def test_over_http(load, yaml, url, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret")
    tools = load(yaml({"counter": {"url": url, "auth_token": "${MY_TOKEN}"}}, extra="tool_selected_list: [add]"))
    session = tools.open("1/row/0", {}, None)
    answers = await asyncio.gather(*(session.call("add", {"n": 1}) for _ in range(20)))
    assert {a.outcome for a in answers} == {Outcome.OK}
    assert {a.text for a in answers} == {str(i) for i in range(1, 21)}
    await session.release()
    await tools.close()


def test_a_token_that_is_refused(load, yaml, url):
    with pytest.raises(UserError, match=r"MCP server 'counter' did not start: .*401"):
        load(yaml({"counter": {"url": url, "auth_token": "wrong"}}))


@pytest.mark.parametrize(
    ("servers", "config", "extra", "words"),
    [
        ({}, "", "", "has no servers"),
        ({"a": {}}, "", "", "MCP server 'a': write either a command"),
        ({"a": {"command": "x", "url": "y"}}, "", "", "write either a command"),
        ({"a": {"command": "x", "arg": []}}, "", "", "'a': arg is none of"),
        ({"a": {"url": "http://x", "type": "carrier pigeon"}}, "", "", "write http or sse"),
        ({"a": {"url": "http://x", "auth_token": "${NO_SUCH_TOKEN}"}}, "", "", "NO_SUCH_TOKEN is not set"),
        ({"a": {"command": "no-such-program"}}, "", "", "'a' did not start: .*no-such-program"),
        ({"a": {"command": sys.executable, "args": ["-c", "raise SystemExit('no key')"]}}, "", "", "not start: no key"),
        ({"a": {"command": "x"}}, "sessions: 0", "", "config.sessions is 0: write a number"),
        ({"a": {"command": "x"}}, "sessions: many", "", "config.sessions is 'many'"),
    ],
)
def test_mistakes(load, yaml, servers, config, extra, words):
    with pytest.raises(UserError, match=words):
        load(yaml(servers, config, extra))


def test_a_selection_of_what_is_not_there(load, yaml, server):
    with pytest.raises(UserError, match=r"tool_selected_list names 'subtract'; the servers have add, pid, wrong"):
        load(yaml({"c": {"command": sys.executable, "args": [server]}}, extra="tool_selected_list: [subtract]"))


def test_servers_written_in_place_and_transports_told_apart(tmp_path):
    specs = read_specs(
        {
            "mcpServers": {
                "a": {"url": "http://h/sse"},
                "b": {"url": "http://h/mcp", "headers": {"X": "1"}},
                "c": {"url": "http://h/mcp", "type": "sse"},
                "d": {"command": "run", "args": [1], "env": {"N": 2}},
            }
        },
        tmp_path,
        "here",
    )
    assert [spec.sse for spec in specs] == [True, False, True, False]
    assert (specs[1].headers, specs[3].args, specs[3].env) == ({"X": "1"}, ("1",), {"N": "2"})


async def test_a_public_server_and_verls_own_entry(load, write):
    command = shutil.which("mcp-server-time") or shutil.which("mcp-server-time", path=str(sys.prefix) + "/bin")
    if command is None:
        pytest.skip("mcp-server-time is not installed: pip install mcp-server-time")
    write(
        "servers.json", json.dumps({"mcpServers": {"time": {"command": command, "args": ["--local-timezone", "UTC"]}}})
    )
    tools = load(
        write(
            "tools.yaml",
            """
            tools:
              - class_name: verl.tools.mcp_base_tool.MCPBaseTool
                config: {type: mcp, rate_limit: 12, timeout: 30}
                mcp:
                  mcp_servers_config_path: ./servers.json
                  tool_selected_list: [convert_time]
            """,
        )
    )
    assert [schema["function"]["name"] for schema in tools.schemas()] == ["convert_time"]
    assert tools.runners["convert_time"].options.max_concurrency == 12
    session = tools.open("1/row/0", {}, None)
    asked = {"source_timezone": "Asia/Tokyo", "time": "12:30", "target_timezone": "UTC"}
    answer = await session.call("convert_time", asked)
    assert (answer.outcome, "T03:30:00+00:00" in answer.text) == (Outcome.OK, True)
    nowhere = await session.call("convert_time", asked | {"target_timezone": "Mars/Olympus"})
    assert (nowhere.outcome, "Mars/Olympus" in nowhere.text) == (Outcome.MODEL_ERROR, True)
    await session.release()
    await tools.close()
