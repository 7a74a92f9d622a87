"""Our own client: what it makes of a server's answers, and of a server that is not there."""

import asyncio
import base64
import json

import pytest
from starlette.exceptions import HTTPException

from agentrl.tools import load_tools
from agentrl_sandbox.client import Client
from agentrl_sandbox.errors import SandboxError, UsageError
from agentrl_sandbox.job import Busy, Job, Limits, Unavailable
from agentrl_sandbox.sandbox import Sandbox
from agentrl_sandbox.server.sessions import Sessions

pytestmark = pytest.mark.integration


@pytest.fixture
async def client(server):
    client = Client(server.url + "/run_code")
    await client.start()
    yield client
    await client.close()


async def test_a_job_of_several_runs(client, server):
    job = Job("python", "print(input()); open('n', 'a').write('1')", stdins=[b"1", b"2\n", "é".encode()], fetch=["n"])
    result = await client.run(job)
    assert [run.stdout for run in result.runs] == [b"1\n", b"2\n", "é\n".encode()]
    assert result.isolation == client.isolation == server.get("/health")[1]["isolation"]
    assert result.files == {"n": b"1"}
    assert result.runs[0].execution_time > 0


async def test_limits_and_files_travel(client):
    code = "import os; print(open('a/b').read()); print('x' * 100_000)"
    limits = Limits(output_bytes=1000, memory_mb=256)
    result = await client.run(Job("python", code, files={"a/b": b"hello"}, run_limits=limits))
    run = result.runs[0]
    assert run.stdout.startswith(b"hello\n")
    assert (len(run.stdout), run.truncated) == (1000, True)


async def test_a_program_that_fails_is_a_result(client):
    result = await client.run(Job("python", "1/0", stdins=[b"", b""], stop_on_failure=True))
    assert [run.return_code for run in result.runs] == [1]
    result = await client.run(Job("cpp", "int main( {", compile_limits=Limits(wall=60)))
    assert (result.compiled.return_code, list(result.runs)) == (1, [])


async def test_a_missing_language(client):
    with pytest.raises(Unavailable, match="lean"):
        await client.run(Job("lean", "x"))


async def test_what_the_server_does_not_take_is_a_value_error(client):
    with pytest.raises(ValueError, match="leaves the work folder"):
        await client.run(Job("python", "1", files={"../x": b""}))
    with pytest.raises(ValueError, match="utf-8"):
        await client.run(Job("python", "1", stdins=[b"\xff"]))


async def test_many_at_once_over_few_connections(server):
    client = Client(server.url, connections=4)
    await client.start()
    try:
        jobs = [client.run(Job("python", f"print({number})")) for number in range(40)]
        results = await asyncio.gather(*jobs)
    finally:
        await client.close()
    assert [result.runs[0].stdout for result in results] == [b"%d\n" % number for number in range(40)]


async def test_a_wrong_token(start):
    client = Client(start("--token", "sesame").url, token="other")
    await client.start()
    with pytest.raises(UsageError, match="token"):
        await client.run(Job("python", "1"))


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x", "", "http://"])
def test_a_wrong_address_is_a_usage_error(url):
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        Client(url)


async def test_an_unreachable_server_is_a_sandbox_error():
    with pytest.raises(SandboxError, match="cannot be reached"):
        await Client("http://127.0.0.1:9").run(Job("python", "1"), queue_timeout=0.2)


class Scripted:
    """A server that answers from a list: statuses and bodies that a real one gives under load, in a known order."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/prefix"
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def serve(self, reader, writer):
        while self.answers:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
            except asyncio.IncompleteReadError:
                break
            length = int(head.lower().partition("content-length: ")[2].split("\r\n")[0] or 0)
            self.requests.append((head.split(" ")[1], await reader.readexactly(length)))
            answer = self.answers.pop(0)
            if answer is None:
                break
            writer.write(answer)
        writer.close()


def answer(status, body, *, headers="", chunks=False):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    if chunks:
        content = b"".join(b"%x;x=y\r\n%s\r\n" % (1, content[i : i + 1]) for i in range(len(content))) + b"0\r\n\r\n"
        headers += "transfer-encoding: chunked\r\n"
    else:
        headers += f"content-length: {len(content)}\r\n"
    return f"HTTP/1.1 {status} X\r\n{headers}\r\n".encode() + content


def ran(text):
    run = {"status": "Finished", "execution_time": 0.1, "return_code": 0, "stdout": text, "stderr": ""}
    files = {"f": base64.b64encode(b"x").decode()}
    return {"status": "Success", "message": "", "compile_result": None, "run_result": run, "files": files}


async def ask(server, job=None, **options):
    client = Client(server.url)
    try:
        return await client.run(job or Job("python", "1"), **options)
    finally:
        await client.close()


async def test_a_504_is_retried():
    async with Scripted(answer(504, {"detail": "busy"}), answer(200, ran("1"))) as server:
        result = await ask(server)
    assert result.runs[0].stdout == b"1"
    assert [path for path, _ in server.requests] == ["/prefix/run_code"] * 2


async def test_a_server_that_stays_full_is_busy():
    async with Scripted(*[answer(504, {})] * 20) as server:
        with pytest.raises(Busy):
            await ask(server, queue_timeout=1)


@pytest.mark.parametrize(
    "bad",
    [
        answer(500, {"detail": "x"}),
        answer(503, b"<html>"),
        answer(200, b"not json"),
        answer(200, []),
        answer(200, {"status": "Success", "run_result": {"status": "Finished", "stdout": 5}}),
        answer(200, {"status": "SandboxError", "message": "broken", "run_result": None}),
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 X\r\ncontent-length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nabc",
        None,
    ],
)
async def test_other_failures_are_not_retried(bad):
    async with Scripted(bad) as server:
        with pytest.raises(SandboxError) as caught:
            await ask(server)
    assert not isinstance(caught.value, Busy)
    assert len(server.requests) == 1


async def test_a_timeout_is_a_sandbox_error(monkeypatch):
    async with Scripted(b"", b"") as server:
        monkeypatch.setattr("agentrl_sandbox.client.MARGIN", 0.0)
        limits = Limits(wall=0.2)
        with pytest.raises(SandboxError, match="no answer within"):
            await ask(server, Job("python", "1", compile_limits=limits, run_limits=limits), queue_timeout=0.1)


async def test_chunks_are_read():
    async with Scripted(answer(200, ran("chunked"), chunks=True)) as server:
        assert (await ask(server)).runs[0].stdout == b"chunked"


async def test_another_server_than_ours_gets_one_request_a_run():
    job = Job("python", "1", stdins=[b"a", b"b"])
    async with Scripted(answer(404, {}), answer(200, "pong"), answer(200, ran("1")), answer(200, ran("2"))) as server:
        client = Client(server.url)
        await client.start()
        result = await client.run(job)
        await client.close()
    assert [run.stdout for run in result.runs] == [b"1", b"2"]
    assert [json.loads(body)["stdin"] for _, body in server.requests[2:]] == ["a", "b"]
    assert "tests" not in json.loads(server.requests[2][1])


async def test_a_connection_that_the_server_closed_while_idle_is_replaced():
    async with Scripted(answer(200, ran("1")), None, answer(200, ran("2"))) as server:
        client = Client(server.url)
        await client.run(Job("python", "1"))
        result = await client.run(Job("python", "2"))
        await client.close()
    assert result.runs[0].stdout == b"2"


async def test_a_session_keeps_its_state(client):
    session = await client.session(Limits(wall=20), client="me")
    other = await client.session(Limits(wall=20))
    assert (await session.run("a = 20")).stdout == b""
    assert (await session.run("a + 1")).stdout == b"21\n"
    assert (await other.run("a")).return_code == 1
    assert (await session.run("1/0")).stderr.endswith(b"ZeroDivisionError: division by zero\n")
    assert (await session.run("print(a)")).stdout == b"20\n"
    assert session.over == ""
    await other.close()
    await session.close()
    assert (await session.run("a")).status == "Error"


async def test_the_session_tool_over_a_server(server):
    sandbox = Sandbox(server.url + "/run_code")
    cut = {"max_response": 2000, "unit": "characters", "side": "middle"}
    tools = load_tools("tools/python_session.yaml", None, sandbox=sandbox, **cut)
    try:
        session = tools.open("one", {}, None)
        said = [await session.call("python", {"code": code}) for code in ("x = 20", "x + 1", "1/0", "x")]
        await session.release()
        assert [said[1].text, said[3].text] == ["21\n", "20\n"]
        assert "ZeroDivisionError" in said[2].text
    finally:
        await tools.close()
        await sandbox.close()
    assert server.get("/health")[1]["load"]["sessions"] == 0


async def test_a_cell_over_its_time_limit_ends_its_session(client, server):
    session = await client.session(Limits(wall=20))
    result = await session.run("print('part', flush=True)\nwhile True: pass", wall=0.5)
    assert (result.status, result.stdout) == ("TimeLimitExceeded", b"part\n")
    assert "limit" in session.over
    assert (await session.run("1")).status == "Error"
    assert server.post("/sessions/run", {"id": session.key, "code": "1"})[0] == 404


async def test_a_session_that_the_server_lost_is_a_sandbox_error(client, server):
    session = await client.session(Limits())
    server.post("/sessions/close", {"id": session.key})
    with pytest.raises(SandboxError, match="no such session"):
        await session.run("1")
    await session.close()
    assert server.get("/health")[1]["load"]["sessions"] == 0


async def test_a_cell_is_never_sent_twice():
    opened = answer(200, {"id": "x"})
    async with Scripted(answer(200, {"server": "agentrl"}), opened, None, answer(200, {})) as server:
        client = Client(server.url)
        await client.start()
        session = await client.session(Limits())
        with pytest.raises(SandboxError):
            await session.run("n += 1")
        await client.close()
    assert [path for path, _ in server.requests] == ["/prefix/health", "/prefix/sessions", "/prefix/sessions/run"]


async def test_other_servers_have_no_sessions():
    with pytest.raises(UsageError, match="agentrl's own server"):
        await Client("http://127.0.0.1:9").session(Limits())


async def test_idle_sessions_are_closed():
    class Fake:
        over, closed = "", False

        async def close(self):
            self.closed = True

    sessions, session = Sessions(idle=0.05), Fake()
    key = sessions.add(session)
    assert sessions.use(key) is session
    await asyncio.sleep(0.2)
    assert not session.closed  # a cell runs
    sessions.rest(key)
    await asyncio.sleep(0.2)
    assert session.closed
    with pytest.raises(HTTPException):
        sessions.use(key)
