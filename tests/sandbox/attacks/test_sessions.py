"""Hostile cells: a session holds what a run holds, and leaves as little."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentrl_sandbox.job import Job, Limits
from agentrl_sandbox.pool import Pool
from agentrl_sandbox.session import Session
from tests.sandbox.attacks import scene
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]

LIMITS = Limits(wall=20.0, memory_mb=256, processes=64, disk_mb=16)


@pytest_asyncio.fixture(loop_scope="module")
async def session(pool: Pool) -> AsyncIterator[Session]:
    session = await pool.session(LIMITS)
    yield session
    await session.close()


async def test_what_a_cell_started_ends_with_the_session(pool: Pool) -> None:
    linger = scene.linger()
    session = await pool.session(LIMITS)
    daemon = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.execvp('sleep', ['sleep', '{}'])\n"
        "time.sleep(2)\nprint('left')"
    )
    assert b"left" in (await session.run(daemon.format(linger))).stdout
    assert scene.lingering(linger)
    await session.close()
    result = await pool.run(Job("python", "print(6 * 7)"))
    assert result.runs[0].stdout == b"42\n"
    assert await until(lambda: scene.lingering(linger) == [])  # its job supervisor ends them when it hears of it


@pytest.mark.parametrize(
    "cell",
    [
        "import os, signal\nfor n in (2, 9, 15, 19):\n    try: os.kill(os.getppid(), n)\n    except OSError: pass",
        "import os\nfor handle in range(3, 64):\n    try: os.close(handle)\n    except OSError: pass",
        "import os\nfor handle in range(3, 64):\n    try: os.write(handle, b'{}' * 99)\n    except OSError: pass",
        "import os; os.kill(-1, 9)",
        "import os; os._exit(0)",
        "x = bytearray(1 << 30)",
    ],
)
async def test_a_cell_ends_only_itself(pool: Pool, session: Session, cell: str) -> None:
    """Whatever it does, the answer is one about the cell; the next one runs, or says why the state is gone."""
    await session.run(cell)
    after = await session.run("print(6 * 7)")
    assert after.stdout == b"42\n" or (after.status == "Error" and b"ended" in after.stderr)
    assert (await pool.run(Job("python", "print(1)"))).runs[0].stdout == b"1\n"


async def test_sessions_do_not_see_each_other(pool: Pool, session: Session) -> None:
    await session.run("open('mine', 'w').write('secret'); import os; os.environ['MINE'] = 'secret'; x = 'secret'")
    other = await pool.session(LIMITS)
    try:
        seen = await other.run(
            "import os; print(os.listdir(), os.listdir('/tmp'), 'MINE' in os.environ, 'x' in globals())"
        )
        assert b"mine" not in seen.stdout
        assert seen.stdout.endswith(b"False False\n")
    finally:
        await other.close()
