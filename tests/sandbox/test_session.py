"""Sessions: state from cell to cell, as in a notebook, and an end that says why."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentrl.config.schema import Config
from agentrl.rollout.building import sandbox_for
from agentrl_sandbox.job import Busy, Limits
from agentrl_sandbox.pool import Pool, Session

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]


@pytest_asyncio.fixture(loop_scope="module")
async def session(pool: Pool) -> AsyncIterator[Session]:
    session = await pool.session(Limits(wall=60))
    yield session
    await session.close()


CELLS = [
    ("x = 20\nx + 1", b"21\n", 0),
    ("x * 2", b"40\n", 0),
    ("None", b"", 0),
    ("_", b"40\n", 0),
    ("def f(n):\n    return n and 1 + f(n - 1)\nf(3);", b"3\n", 0),
    ("import json, os; print(os.getcwd()); json.dumps([1])", b"/box\n'[1]'\n", 0),
    ("for i in range(2): print(i)", b"0\n1\n", 0),
    ("__name__", b"'__main__'\n", 0),
    ("raise SystemExit(3)", b"", 3),
    ("x", b"20\n", 0),
    ("import sys; sys.stdout = None", b"", 0),
    ("import sys; sys.stdout = sys.__stdout__; 'back'", b"'back'\n", 0),
    ("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A", b"True\n", 0),
    ("", b"", 0),
]


async def test_cells_share_their_state(session: Session) -> None:
    for code, stdout, return_code in CELLS:
        answer = await session.run(code)
        assert (answer.stdout, answer.return_code, answer.status) == (stdout, return_code, "Finished"), code


async def test_errors_show_the_cells_lines_and_keep_the_state(session: Session) -> None:
    await session.run("x = 5\ndef f():\n    return 1 / 0")
    answer = await session.run("f()")
    assert answer.return_code == 1
    assert answer.stderr.decode().splitlines()[:4] == [
        "Traceback (most recent call last):",
        '  File "<cell 2>", line 1, in <module>',
        "    f()",
        '  File "<cell 1>", line 3, in f',
    ]
    assert b"SyntaxError" in (await session.run("1 +")).stderr
    assert (await session.run("x")).stdout == b"5\n"


async def test_files_and_threads_stay(session: Session) -> None:
    await session.run("import threading, queue; q = queue.Queue(); open('f', 'w').write('kept')")
    await session.run("t = threading.Thread(target=lambda: q.put(open('f').read()), daemon=True); t.start()")
    assert (await session.run("q.get()")).stdout == b"'kept'\n"


async def test_it_lives_on_after_many_threads_and_processes(pool: Pool) -> None:
    session = await pool.session(Limits(wall=60, processes=20))
    code = "import os, threading\nfor _ in range(3):\n    t = threading.Thread(target=int); t.start(); t.join()\n"
    code += "if os.fork() == 0:\n    os.fork(); os._exit(0)\nos.wait()[0] > 0"
    for _ in range(120):
        assert (await session.run(code)).stdout == b"True\n"
    await session.close()


async def test_a_time_limit_ends_it(pool: Pool) -> None:
    session = await pool.session(Limits(wall=60))
    answer = await session.run("import time; print('so far', flush=True); time.sleep(60)", wall=1.0)
    assert (answer.status, answer.stdout, answer.return_code) == ("TimeLimitExceeded", b"so far\n", None)
    after = await session.run("1")
    assert after.status == "Error"
    assert b"limit of time" in after.stderr
    assert pool.stats()["sessions"] == 0


@pytest.mark.parametrize(
    ("code", "hit"),
    [
        ("x = bytearray(b'x') * (400 << 20)\nimport time; time.sleep(30)", "memory"),
        ("while True: print('x' * 1000)", "output"),
        ("import os; os._exit(7)", None),
        ("import os; os.closerange(3, 9); import time; time.sleep(30)", None),
    ],
)
async def test_other_ends(pool: Pool, code: str, hit: str | None) -> None:
    session = await pool.session(Limits(wall=60, memory_mb=300))
    answer = await session.run(code)
    assert answer.limit_hit == hit
    assert answer.return_code in (7, 1, -9)
    assert (await session.run("1")).status == "Error"


async def test_each_cell_has_its_own_cpu_time(pool: Pool) -> None:
    session = await pool.session(Limits(wall=60, cpu=1.0))
    burn = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
    for _ in range(3):
        answer = await session.run(burn)
        assert (answer.return_code, answer.limit_hit) == (0, None)
        assert answer.cpu_time > 0.3
    assert (await session.run("while True: pass")).limit_hit == "cpu"


async def test_a_session_holds_a_slot_only_while_a_cell_runs(pool: Pool) -> None:
    sessions = [await pool.session(Limits(wall=60)) for _ in range(5)]
    for number, session in enumerate(sessions):
        await session.run(f"x = {number}")
    answers = await asyncio.gather(*(session.run("x") for session in sessions))
    assert [answer.stdout for answer in answers] == [b"0\n", b"1\n", b"2\n", b"3\n", b"4\n"]
    for session in sessions:
        await session.close()
    assert pool.stats()["sessions"] == 0
    assert (await sessions[0].run("x")).status == "Error"


async def test_large_cells_and_results(session: Session) -> None:
    answer = await session.run(f"s = {'x' * 300_000!r}\nprint(s)\nlen(s)")
    assert answer.stdout == b"x" * 300_000 + b"\n300000\n"


async def test_between_cells_nothing_runs(session: Session) -> None:
    code = "import threading, time\nn = 0\ndef count():\n    global n\n    while True: n += 1; time.sleep(0.001)\n"
    await session.run(code + "threading.Thread(target=count, daemon=True).start()")
    before = int((await session.run("n")).stdout)
    await asyncio.sleep(1.0)
    after = int((await session.run("n")).stdout)
    assert after - before < 500
    await session.run("time.sleep(0.3)")
    assert int((await session.run("n")).stdout) > after


async def test_as_many_as_the_trajectories_of_a_trainer_and_the_next_one_waits() -> None:
    places = Config().rollout.max_concurrent_trajectories
    pool = Pool(slots=1)
    await pool.start()
    try:
        sessions = [await pool.session(Limits(wall=60), queue_timeout=5) for _ in range(places)]
        with pytest.raises(Busy, match=rf"{places} sessions are open.*max_concurrent_trajectories.*--sessions"):
            await pool.session(Limits(wall=60), queue_timeout=0.05)
        waiting = asyncio.ensure_future(pool.session(Limits(wall=60), queue_timeout=60))
        await asyncio.sleep(0)
        assert pool.stats()["sessions_queued"] == 1
        await sessions[0].close()
        assert (await (await waiting).run("6 * 7")).stdout == b"42\n"
        assert pool.supervisor is not None
        assert pool.supervisor.count == 2, "one job supervisor for the canaries, one for the session that was used"
    finally:
        await pool.close()


async def test_a_run_tells_its_sandbox_how_many_trajectories_there_are() -> None:
    config = Config()
    config.rollout.max_concurrent_trajectories = 3000
    assert sandbox_for(config).sessions == 3000


async def test_many_sessions_live_at_once() -> None:
    """150 interpreters at once: more than there were places for."""
    pool = Pool(slots=2)
    await pool.start()
    try:
        sessions = [await pool.session(Limits(wall=60)) for _ in range(150)]
        await asyncio.gather(*(session.run(f"x = {number}") for number, session in enumerate(sessions)))
        answers = await asyncio.gather(*(session.run("x") for session in sessions))
        assert [answer.stdout for answer in answers] == [b"%d\n" % number for number in range(150)]
    finally:
        await pool.close()
