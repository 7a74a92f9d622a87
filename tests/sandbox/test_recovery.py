"""Processes of the sandbox's own are killed, and it goes on; it is closed, and nothing is left."""

# ruff: noqa: E501, ASYNC240 - programs; /proc does not block

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from agentrl_sandbox.errors import SandboxError
from agentrl_sandbox.isolation import descendants
from agentrl_sandbox.job import Job, Limits
from agentrl_sandbox.pool import Pool
from tests.waiting import until

pytestmark = pytest.mark.integration

LONG = Limits(wall=60)
HELLO = Job("python", "print(1)", run_limits=LONG)
NAP = Job("python", "import time; time.sleep(0.8); print(1)", run_limits=LONG)
SLEEP = Job("python", "import time; time.sleep(2); print(1)", run_limits=LONG)


def kill_zygotes(pool: Pool) -> None:
    assert pool.supervisor is not None
    task = Path(f"/proc/{pool.supervisor.process.pid}/task/{pool.supervisor.process.pid}/children")
    for pid in task.read_text().split():
        os.kill(int(pid), signal.SIGKILL)


def kill_supervisor(pool: Pool) -> None:
    assert pool.supervisor is not None
    pool.supervisor.process.kill()


@pytest.mark.prevents("the sandbox times out under load, hangs, or dies")
@pytest.mark.parametrize("kill", [kill_zygotes, kill_supervisor])
async def test_jobs_survive_the_kill_of_a_sandbox_process(kill: object) -> None:
    assert callable(kill)
    pool = Pool(slots=2)
    await pool.start()
    await pool.run(HELLO)
    for _ in range(2):
        flying = asyncio.ensure_future(pool.run(NAP))
        await asyncio.sleep(0.4)
        kill(pool)
        assert (await flying).runs[0].stdout == b"1\n"
        assert (await pool.run(HELLO)).runs[0].stdout == b"1\n"
    await pool.close()


async def test_a_killed_job_supervisor_costs_one_retry() -> None:
    pool = Pool(slots=1)
    await pool.start()
    flying = asyncio.ensure_future(pool.run(SLEEP))
    await asyncio.sleep(0.7)
    assert pool.supervisor is not None
    job_supervisors = [pid for pid in descendants(pool.supervisor.process.pid) if len(descendants(pid)) == 1]
    for pid in job_supervisors[-1:]:
        os.kill(pid, signal.SIGKILL)
    assert (await flying).runs[0].stdout == b"1\n"
    await pool.close()


async def test_a_session_is_lost_with_its_server() -> None:
    pool = Pool(slots=1)
    await pool.start()
    session = await pool.session(LONG)
    await session.run("x = 1")
    kill_zygotes(pool)
    connection = session.connection
    assert connection is not None
    assert await until(lambda: connection.lost)
    with pytest.raises(SandboxError):
        await session.run("x")
    assert (await session.run("x")).status == "Error"
    assert pool.stats()["sessions"] == 0
    await pool.close()


async def test_close_leaves_nothing() -> None:
    pool = Pool(slots=2)
    await pool.start()
    session = await pool.session(LONG)
    await session.run("import os\nif os.fork() == 0:\n    import time; time.sleep(600)")
    flying = asyncio.ensure_future(pool.run(SLEEP))
    await asyncio.sleep(0.5)
    assert pool.supervisor is not None
    supervisor = pool.supervisor.process.pid
    before = {supervisor, *descendants(supervisor)}
    assert len(before) >= 6
    await pool.close()
    with pytest.raises(SandboxError):
        await flying
    assert not [pid for pid in before if Path(f"/proc/{pid}").exists()]
    assert not Path(pool.config["folder"]).exists()
    with pytest.raises(SandboxError, match="closed"):
        await pool.run(HELLO)


async def test_nothing_outlives_a_killed_caller() -> None:
    code = (
        "import asyncio\nfrom agentrl_sandbox.job import Job, Limits\nfrom agentrl_sandbox.pool import Pool\n"
        "async def main():\n    pool = Pool(slots=1)\n    await pool.start()\n    print(pool.supervisor.process.pid, flush=True)\n"
        "    await pool.run(Job('python', 'import time; time.sleep(60)', run_limits=Limits(wall=60)))\nasyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    supervisor = int(await process.stdout.readline())
    assert await until(lambda: len(descendants(supervisor)) >= 3)
    before = {supervisor, *descendants(supervisor)}
    process.kill()
    await process.wait()
    for _ in range(100):
        if not (left := [pid for pid in before if Path(f"/proc/{pid}").exists()]):
            break
        await asyncio.sleep(0.1)
    assert not left


async def test_nothing_leaks() -> None:
    pool = Pool(slots=2)
    await pool.start()
    jobs = [
        *[HELLO] * 5,
        Job("python", "1 / 0", run_limits=LONG),
        Job("python", "import os; os.fork(); os.fork()", run_limits=LONG),
        Job("python", "while True: print('x' * 999)", run_limits=LONG),
        Job("bash", "echo a; sleep 100 & exit 3", run_limits=LONG),
        Job("python", "print(1)", files={"a/b": b"x"}, fetch=["a/b"], run_limits=LONG),
    ]

    async def rounds(count: int) -> tuple[int, ...]:
        for _ in range(count):
            await asyncio.gather(*map(pool.run, jobs))
        await asyncio.sleep(0.3)
        return _state(pool)

    before = await rounds(5)
    after = await rounds(25)
    for _ in range(100):  # what is still on its way to the end is no leak
        if all(a <= b for a, b in zip(after[:4], before, strict=False)):
            break
        await asyncio.sleep(0.1)
        after = _state(pool)
    await pool.close()
    assert all(a <= b for a, b in zip(after[:4], before, strict=False)), (before, after)
    assert after[4] - before[4] < 4 << 20


def _state(pool: Pool) -> tuple[int, ...]:
    """Open files here and in the supervisor, its processes, their mounts, the memory of the supervisor."""
    assert pool.supervisor is not None
    pid = pool.supervisor.process.pid
    files = [len(os.listdir(f"/proc/{process}/fd")) for process in (os.getpid(), pid)]
    mounts = sum(len(_lines(Path(f"/proc/{process}/mounts"))) for process in descendants(pid))
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return (*files, len(descendants(pid)), mounts, resident)


def _lines(file: Path) -> list[str]:
    """None where the process has just gone."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
