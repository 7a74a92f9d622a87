# ruff: noqa: E501 - programs
"""An ordinary user of the host gets the same pool: here root becomes one, in a process of its own."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SCRIPT = """
import asyncio, os
from agentrl_sandbox.job import Job, Limits
from agentrl_sandbox.pool import Pool
from tests.sandbox import kernel_memory

LONG = Limits(wall=60, memory_mb=300, processes=20)
PROGRAMS = {
    "who": "import os, pwd, getpass; print(os.getuid(), pwd.getpwuid(os.getuid()).pw_name, os.path.expanduser('~'))",
    "count": "import os, time\\nn = 0\\ntry:\\n    while True:\\n        if os.fork() == 0: time.sleep(60)\\n        n += 1\\n"
             "except BlockingIOError: print(n)",
    "memory": "x = bytearray(b'x') * (400 << 20)\\nimport time; time.sleep(9)",
    "input": "print(input()[::-1])",
}

async def main():
    pool = Pool(slots=2)
    await pool.start()
    print(os.getuid() != 0, pool.isolation)
    for _ in range(2):
        runs = await asyncio.gather(*(pool.run(Job("python", p, [b"abc\\n"], run_limits=LONG)) for p in PROGRAMS.values()))
        print([(r.runs[0].stdout, r.runs[0].limit_hit) for r in runs])
    small = Limits(wall=60, memory_mb=64)
    print({(await pool.run(Job("python", p, run_limits=small))).runs[0].limit_hit for p in kernel_memory.PROGRAMS.values()})
    session = await pool.session(LONG)
    await session.run("x = 1")
    print((await session.run("x + 1")).stdout)
    await pool.close()

asyncio.run(main())
"""


@pytest.mark.skipif(os.getuid() != 0 or not Path("/usr/bin/python3").exists(), reason="takes root and a system Python")
def test_an_ordinary_user_has_the_same_pool() -> None:
    answer = subprocess.run(
        ["/usr/bin/python3", "-c", SCRIPT],
        user=12345,
        group=12345,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.defpath, "PYTHONPATH": f"{ROOT}:{ROOT / 'sandbox'}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    lines = answer.stdout.splitlines()
    assert not answer.stderr
    assert lines[0] == "True namespace"
    assert (
        lines[1]
        == lines[2]
        == ("[(b'1000 sandbox /box\\n', None), (b'19\\n', None), (b'', 'memory'), (b'cba\\n', None)]")
    )
    assert lines[3] == "{'memory'}"
    assert lines[4] == "b'2\\n'"


def test_the_slots_of_two_pools_have_different_users() -> None:
    if os.getuid() != 0:
        pytest.skip("takes root")
    from agentrl_sandbox.user_ids import own_ids

    (first, one), (second, two), (large, most) = own_ids(10), own_ids(10), own_ids(900)
    for lock in first:
        lock.close()
    third, three = own_ids(10)
    for lock in [*second, *third, *large]:
        lock.close()
    assert abs(one - two) >= 10
    assert not {one, two} & set(range(most, most + 900))
    assert three == one


def test_more_pools_than_a_host_has_cores_for_find_users() -> None:
    """A grid of runs on one machine, each with a pool of its own."""
    if os.getuid() != 0:
        pytest.skip("takes root")
    from agentrl_sandbox.pool import SESSIONS
    from agentrl_sandbox.user_ids import own_ids

    held, firsts = [], set()
    for _ in range(10):
        locks, first = own_ids(3 * 32 + SESSIONS)  # 16 cores
        held += locks
        firsts.add(first)
    with pytest.raises(OSError, match="no 2000000 unused user ids"):
        own_ids(2_000_000)
    for lock in held:
        lock.close()
    assert len(firsts) == 10


@pytest.mark.skipif(os.getuid() != 0, reason="only root hands out users")
async def test_where_users_are_few_a_pool_has_fewer_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrl_sandbox import user_ids

    monkeypatch.setattr(user_ids, "_maps", lambda uid: False)
    held = [user_ids.enough_ids(12, 1024) for _ in range(7)]
    assert held[0].sessions == 1024
    assert 0 < held[-1].sessions < 1024
    for ids in held:
        for lock in ids.locks:
            lock.close()
