"""The gateway behind nginx with TLS, in the configuration of docs/gateway.md, and agents that ssh starts."""

import asyncio
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai

from agentrl.engines.engine import Sampling
from agentrl.gateway import app
from agentrl.gateway.standalone import OpenGateway
from agentrl.rollout.loops import loop_class
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.docs.pages import section
from tests.gateway.test_programs import ASK
from tests.rollout.scripted import environment, row, says
from tests.sandbox.docker.test_gateway import free_port
from tests.waiting import until

pytestmark = [pytest.mark.agents, pytest.mark.timeout(120)]
PAGE = "gateway.md#agents-on-other-machines"
SIGNED = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"


def called(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The address of nginx, and the port that it forwards to."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    called("openssl", *SIGNED.split(), "-keyout", f"{tmp_path}/agents.key", "-out", f"{tmp_path}/agents.pem")
    (config,) = [block.text for block in section(PAGE) if block.kind == "text"]
    port, behind = free_port(), free_port()
    for old, new in {"/etc/ssl/": f"{tmp_path}/", "443 ssl": f"127.0.0.1:{port} ssl", ":8000": f":{behind}"}.items():
        config = config.replace(old, new)
    # Ports of a test are any; those of a run are named.
    config = config.replace("81[0-9][0-9]", "[0-9]+").replace("events {}", f"pid {tmp_path}/pid;\nevents {{}}")
    (tmp_path / "nginx.conf").write_text(config)
    words = ["nginx", "-p", str(tmp_path), "-c", "nginx.conf", "-g", "daemon off; error_log stderr;"]
    with subprocess.Popen(words) as server:
        yield f"https://localhost:{port}", behind
        server.terminate()


async def test_all_clients_reach_the_gateway_over_tls(
    tmp_path: Path, proxy: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "QUIET_SECONDS", 0.05)
    url, port = proxy
    env, engine = environment(says(*["The answer is 5 ."] * 3), model_length=2048)
    gateway = OpenGateway(env, Sampling(64, seed=1), tmp_path / "sessions", port=port, token="secret")
    await gateway.start()
    trusted = ssl.create_default_context(cafile=str(tmp_path / "agents.pem"))
    asked = {"model": "m", "messages": [{"role": "user", "content": "What is 2 + 3 ?"}]}
    async with httpx.AsyncClient(verify=trusted, base_url=url, timeout=60) as http:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="secret.a", http_client=http)
        made = await client.chat.completions.create(**asked)
        secure = httpx2.AsyncClient(verify=trusted)
        other = anthropic.AsyncAnthropic(base_url=url, api_key="secret.a", http_client=secure)
        assert (await other.messages.create(**asked, max_tokens=99)).content[0].text == made.choices[0].message.content
        google = genai.Client(api_key="secret.a", http_options={"base_url": url, "async_client_args": {"ssl": trusted}})
        answer = await google.aio.models.generate_content(model="m", contents="What is 2 + 3 ?")
        assert answer.text == made.choices[0].message.content
        forged = {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "localhost", "Authorization": "Bearer a"}
        assert (await http.post("/v1/chat/completions", json=asked, headers=forged)).status_code == 401
        large = {**asked, "messages": [{"role": "user", "content": "x" * 20_000_000}]}
        refused = await http.post("/v1/chat/completions", json=large, headers={"x-api-key": "secret.a"})
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        waits = asyncio.Event()

        async def waiting(*args: object, **given: object) -> None:
            await waits.wait()

        engine.generate = waiting  # type: ignore[method-assign, assignment]
        headers = {"Authorization": "Bearer secret.b"}
        request = http.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}, headers=headers)
        async with request as stream:
            async for line in stream.aiter_lines():  # before the engine answers
                assert line == app.chat.KEEP_ALIVE.decode().strip()
                break
        session = gateway.sessions["b"]
        assert await until(lambda: not session.waiting, 30)  # the client went away
    await gateway.close()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A machine that ssh reaches: this one; the variables of a launcher."""
    if shutil.which("sshd") is None:
        pytest.skip("sshd is not installed: apt-get install openssh-server")
    for name in ("host", "own"):
        called("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{tmp_path}/{name}")
    port, programs = free_port(), tmp_path / "programs"
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {"HostKey": f"{tmp_path}/host", "AuthorizedKeysFile": f"{tmp_path}/own.pub", "StrictModes": "no"}
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    programs.mkdir()
    choices = (
        f"-p {port} -i {tmp_path}/own -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    )
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {choices} "$@"\n')
    (programs / "ssh").chmod(0o755)
    words = [str(shutil.which("sshd")), "-D", "-e", "-f", "/dev/null", "-p", str(port), *given]
    with subprocess.Popen(words) as server:
        yield {"PATH": f"{programs}:{os.environ['PATH']}", "BOX": "127.0.0.1"}
        server.terminate()


AGENT = """
import ssl, time
ssl._create_default_https_context = ssl._create_unverified_context
print(ask(sys.argv[1]))
open(FOLDER + "/pid", "w").write(str(os.getpid()))
time.sleep(WAIT)
"""


@pytest.mark.parametrize("wait", [0, 300])
async def test_an_agent_that_ssh_starts_ends_with_its_rollout(
    tmp_path: Path, proxy: tuple[str, int], box: dict[str, str], wait: int
) -> None:
    files = {block.file: block.text for block in section(PAGE) if block.file}
    agent = AGENT.replace("FOLDER", repr(str(tmp_path))).replace("WAIT", str(wait))
    (tmp_path / "agent.py").write_text(ASK + agent)
    (tmp_path / "remote.sh").write_text(files["remote.sh"].replace("agent.py", f"{tmp_path}/agent.py"))
    entry = files["agents.yaml"].replace("https://agents.example.org", proxy[0]).replace("agents@box", box["BOX"])
    entry = entry.replace("port: 8100", f"port: {free_port()}").replace("env: {", f'env: {{PATH: "{box["PATH"]}", ')
    limit = "  timeout: 10\n  exit_codes: {timeout: model_error}\n" if wait else ""
    (tmp_path / "agents.yaml").write_text(entry + limit)
    env, _ = environment(says("The answer is 5 ."), model_length=2048)
    asked = 'What\'s 2 + 3; "$HOME" ?'
    trajectory = Trajectory(row(text=asked), "k", 0)
    await loop_class("remote", str(tmp_path / "agents.yaml"))(env).run(trajectory, Sampling(64, seed=1))
    assert trajectory.outcome is (Outcome.MODEL_ERROR if wait else Outcome.OK)
    assert trajectory.extra["program"]["output"].strip() == "The answer is 5 ."
    (ledger,) = trajectory.ledgers
    ledger.check()
    assert trajectory.messages[0]["content"] == asked
    process = Path("/proc", (tmp_path / "pid").read_text())
    assert await until(lambda: not process.exists(), 30)
