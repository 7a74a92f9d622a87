"""Starting, load, tokens, stopping."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentrl_sandbox.errors import UsageError
from agentrl_sandbox.server.serve import check_bind, is_loopback
from agentrl_sandbox.server.settings import Settings

from .conftest import CLI, alive

pytestmark = pytest.mark.integration

SLEEP = {"language": "python", "code": "import time; time.sleep(2)", "run_timeout": 20, "compile_timeout": 0.1}


def test_it_says_where_it_serves_and_which_isolation_it_chose(server):
    isolation = server.get("/health")[1]["isolation"]
    text = server.log.read_text()
    assert f"isolation: {isolation}" in text
    assert "curl " + server.url in text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_other_machines_need_a_token_or_a_word(host):
    with pytest.raises(UsageError, match="token"):
        check_bind(Settings(host=host))
    check_bind(Settings(host=host, token="t"))
    check_bind(Settings(host=host, public=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_this_machine_needs_none(host):
    assert is_loopback(host)
    check_bind(Settings(host=host))


def test_a_public_address_without_a_token_is_one_line(tmp_path):
    done = subprocess.run([*CLI, "serve", "--host", "0.0.0.0"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --host 0.0.0.0 lets other machines run code here")


def test_a_taken_port_is_one_line(server):
    port = server.url.rpartition(":")[2]
    done = subprocess.run([*CLI, "serve", "--port", port], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "address already in use" in done.stderr


def test_the_token(start):
    server = start("--token", "sesame")
    body = {"language": "python", "code": "print(1)"}
    assert server.get("/v1/ping") == (200, "pong")
    assert server.get("/health")[0] == 200
    for given in ({}, {"authorization": "Bearer nonsense"}, {"authorization": "sesame"}):
        server.headers = given
        status, reply = server.post("/run_code", body)
        assert (status, reply["detail"].split(";")[0]) == (401, "token missing or wrong")
        assert server.get("/metrics")[0] == 401
    server.headers = {"authorization": "Bearer sesame"}
    assert server.post("/run_code", body)[1]["status"] == "Success"


def test_the_token_from_the_environment_is_not_on_the_command_line(start):
    server = start(AGENTRL_SANDBOX_TOKEN="sesame")
    assert server.post("/run_code", {"language": "python", "code": "1"})[0] == 401


def test_a_queue_that_outlasts_the_client_is_a_504(start):
    server = start("--slots", "1", "--patience", "1")
    body = SLEEP | {"code": "import time; time.sleep(60)", "run_timeout": 2}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: server.post("/run_code", body), range(4)))
    assert [status for status, _ in answers].count(504) >= 2
    refusals = [reply for status, reply in answers if status == 504]
    assert all(isinstance(reply["detail"], str) for reply in refusals)
    assert server.python("print(1)")["status"] == "Success"
    assert 'requests_total{path="/run_code",status="504"}' in server.get("/metrics")[1]


def test_a_request_may_have_a_shorter_queue_timeout_than_the_server(start):
    server = start("--slots", "1")
    blocker = threading.Thread(target=server.post, args=("/run_code", SLEEP))
    blocker.start()
    server.wait_for(running=1)
    assert server.post("/run_code", SLEEP | {"queue_timeout": 0.2})[0] == 504
    blocker.join()


def test_a_full_queue_is_a_504_at_once(start):
    server = start("--slots", "1", "--queue", "1", "--patience", "60")
    with ThreadPoolExecutor(5) as pool:
        answers = [status for status, _ in pool.map(lambda _: server.post("/run_code", SLEEP), range(5))]
    assert sorted(answers) == [200, 200, 504, 504, 504]


def test_one_client_does_not_starve_another(start):
    server = start("--slots", "1", "--patience", "60")
    order = []

    def ask(client):
        body = {"language": "python", "code": "import time; time.sleep(0.3)"}
        other = type(server)(server.process, server.url, server.log, {"x-client-id": client})
        assert other.post("/run_code", body)[0] == 200
        order.append(client)

    with ThreadPoolExecutor(10) as pool:
        greedy = [pool.submit(ask, "greedy") for _ in range(8)]
        time.sleep(0.5)
        modest = pool.submit(ask, "modest")
        modest.result()
        assert len([job for job in greedy if job.done()]) < 7
    assert order.index("modest") < 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_what_runs_end_and_leaves_no_process(start, number):
    server = start()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.post, "/run_code", SLEEP | {"code": "import time; time.sleep(2); print('done')"})
        server.wait_for(running=1)
        time.sleep(0.8)
        children = server.children()
        assert children
        assert server.stop(number) == 0
        status, reply = running.result()
    assert (status, reply["run_result"]["stdout"]) == (200, "done\n")
    assert alive(children) == []


def test_a_killed_server_leaves_no_process(start):
    server = start()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.post, "/run_code", SLEEP | {"code": "while True: pass"})
        time.sleep(0.8)
        children = server.children()
        server.stop(signal.SIGKILL)
        with pytest.raises(Exception, match=r"."):
            running.result()
    deadline = time.monotonic() + 20
    while alive(children):
        assert time.monotonic() < deadline, alive(children)
        time.sleep(0.1)


def test_the_server_survives_the_kill_of_its_workers(start):
    """What was in flight is run again or says SandboxError; it is never a verdict."""
    server = start()
    with ThreadPoolExecutor(8) as pool:
        body = SLEEP | {"code": "import time; time.sleep(1.5); print('done')"}
        jobs = [pool.submit(server.post, "/run_code", body) for _ in range(8)]
        time.sleep(0.7)
        for pid in server.children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        answers = [job.result() for job in jobs]
    for status, reply in answers:
        assert status in (200, 504)
        if status == 200 and reply["status"] != "SandboxError":
            assert reply["run_result"]["stdout"] == "done\n", reply
    deadline = time.monotonic() + 30
    while server.python("print(6 * 7)")["status"] != "Success":
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_the_server_loads_nothing_of_the_trainer():
    heavy = {"torch", "transformers", "numpy", "yaml", "omegaconf", "hydra", "pyarrow", "IPython"}
    modules = "agentrl.cli.main, agentrl.cli.sandbox, agentrl_sandbox.pool, agentrl_sandbox.server.web"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert heavy.isdisjoint(done.stdout.split())
