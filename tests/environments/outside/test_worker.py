"""Programs that environments run in: what they answer, and when they do not."""

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.core.errors import InfraError
from agentrl.environments.worker import EnvironmentProgram, Worker, run_once

pytestmark = pytest.mark.integration

SCRIPT = """
import asyncio, json, os, sys, time

settings = json.load(open(sys.argv[1]))

async def connected(reader, writer):
    asked = json.loads(await reader.readline())
    if asked == settings.get("dies_at"):
        os._exit(1)
    writer.write(json.dumps({"twice": 2 * asked["n"]}).encode() + b"\\n")
    await writer.drain()
    writer.close()

async def main():
    server = await asyncio.start_unix_server(connected, sys.argv[2] + ".new", backlog=1)
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    time.sleep(0.2)  # nothing is accepted in this time
    await server.serve_forever()

asyncio.run(main())
"""


@pytest.fixture
def program(tmp_path: Path) -> EnvironmentProgram:
    (tmp_path / "program.py").write_text(SCRIPT)
    return EnvironmentProgram(sys.executable, tmp_path / "program.py", {"dies_at": {"n": -1}}, str(tmp_path))


@pytest.fixture
def worker(program: EnvironmentProgram) -> Iterator[Worker]:
    worker = Worker(program)
    yield worker
    worker.close()


async def test_more_requests_than_wait_at_a_socket_are_all_answered(worker: Worker) -> None:
    answers = await asyncio.gather(*(worker.ask({"n": n}) for n in range(100)))
    assert answers == [{"twice": 2 * n} for n in range(100)]


async def test_a_dead_program_is_reported_and_started_again(worker: Worker) -> None:
    with pytest.raises(InfraError, match="environment: its worker died: it wrote nothing"):
        await worker.ask({"n": -1})
    assert worker._running is not None
    await asyncio.to_thread(worker._running.process.wait)
    assert await worker.ask({"n": 1}) == {"twice": 2}


LEAVING = """
import json, subprocess
helper = subprocess.Popen(["sleep", "600"])
print(json.dumps({"helper": helper.pid}))
"""


def test_what_a_program_leaves_running_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LEAVING)
    begin = time.monotonic()
    answer = run_once(EnvironmentProgram(sys.executable, tmp_path / "program.py", {}, str(tmp_path)))
    assert time.monotonic() - begin < 60
    assert not Path(f"/proc/{answer['helper']}").exists()
