"""The pool: order, fairness, queue_timeout, compilation, batches, cancellation; and what one run can find of another."""

# ruff: noqa: E501 - a program stands on a line of its own

import asyncio
import os

import pytest

from agentrl_sandbox.errors import UsageError
from agentrl_sandbox.job import Busy, Job, Limits, Unavailable
from agentrl_sandbox.pool import ALLOW, Pool
from agentrl_sandbox.slot_allocator import SlotAllocator

from .programs import run

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
LONG = Limits(wall=60)
DOUBLE = Job("python", "print(2 * int(input()))", run_limits=LONG)


async def test_many_at_once_never_mix(pool: Pool) -> None:
    async def double(number: int) -> bytes:
        job = Job("python", DOUBLE.code, [f"{number}\n".encode()], run_limits=LONG)
        return (await pool.run(job, client=str(number % 7))).runs[0].stdout

    assert await asyncio.gather(*map(double, range(200))) == [f"{2 * n}\n".encode() for n in range(200)]


async def test_a_batch_answers_in_order(pool: Pool) -> None:
    stdins = [f"{n}\n".encode() for n in range(100)]
    result = await pool.run(Job("python", DOUBLE.code, stdins, run_limits=LONG))
    assert [answer.stdout for answer in result.runs] == [f"{2 * n}\n".encode() for n in range(100)]


async def test_stop_on_failure_ends_a_batch_at_the_first_failure(pool: Pool) -> None:
    job = Job("python", "print(1 // int(input()))", [b"1\n", b"0\n", b"1\n"], run_limits=LONG, stop_on_failure=True)
    assert [answer.return_code for answer in (await pool.run(job)).runs] == [0, 1]
    assert (await run(pool, "print(input())", b"next\n")).stdout == b"next\n"


async def test_compiled_once_even_when_asked_at_once(pool: Pool) -> None:
    code = f"#include <iostream>\nint main() {{ int a; std::cin >> a; std::cout << a + {os.getpid()}; }}"
    jobs = [Job("cpp", code, [b"1"], compile_limits=LONG, run_limits=LONG) for _ in range(6)]
    results = await asyncio.gather(*(pool.run(job) for job in jobs))
    assert {result.runs[0].stdout for result in results} == {str(1 + os.getpid()).encode()}
    assert len({id(result.compiled) for result in results}) == 1


async def test_a_queue_timeout_ends_while_another_job_compiles(pool: Pool) -> None:
    code = f"// {os.getpid()}\n#include <iostream>\nint main() {{}}"
    job = Job("cpp", code, compile_limits=LONG, run_limits=LONG)
    first = asyncio.ensure_future(pool.run(job))
    await asyncio.sleep(0.05)
    with pytest.raises(Busy, match="compiled"):
        await pool.run(job, queue_timeout=0.05)
    assert (await first).runs[0].return_code == 0


async def test_a_failed_compilation_is_an_answer(pool: Pool) -> None:
    result = await pool.run(Job("cpp", "int main() { return x; }", compile_limits=LONG))
    assert result.compiled is not None
    assert (result.compiled.status, result.compiled.return_code, list(result.runs)) == ("Finished", 1, [])
    assert b"not declared" in result.compiled.stderr


async def test_a_compiler_has_limits_of_its_own(pool: Pool) -> None:
    result = await pool.run(
        Job("cpp", '#include "/dev/zero"\nint main() {}', compile_limits=Limits(wall=60, memory_mb=200))
    )
    assert result.compiled is not None
    assert result.compiled.limit_hit == "memory" or result.compiled.return_code != 0
    assert not result.runs


async def test_unknown_languages(pool: Pool) -> None:
    with pytest.raises(Unavailable, match="unknown"):
        await pool.run(Job("brainfuck", "+"))


async def test_a_program_that_cannot_start_is_an_error_of_its_own(pool: Pool) -> None:
    job = Job("bash", "exec ./none", run_limits=LONG)
    assert (await pool.run(job)).runs[0].return_code == 127


async def test_a_full_queue_and_a_queue_timeout_raise_busy() -> None:
    pool = Pool(slots=1, queue=1)
    await pool.start()
    first = asyncio.ensure_future(pool.run(Job("python", "import time; time.sleep(1)", run_limits=LONG)))
    await asyncio.sleep(0.2)
    with pytest.raises(Busy, match=r"0\.1 s"):
        await pool.run(DOUBLE, queue_timeout=0.1)
    second = asyncio.ensure_future(pool.run(DOUBLE))
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="full"):
        await pool.run(DOUBLE)
    await asyncio.gather(first, second)
    await pool.close()


async def test_clients_get_slots_in_turn() -> None:
    allocator, order = SlotAllocator(1, 100), list[str]()

    async def use(client: str) -> None:
        await allocator.acquire(client, None)
        order.append(client)
        await asyncio.sleep(0)
        allocator.release()

    await asyncio.gather(*map(use, ["a", "a", "a", "a", "b", "b", "c"]))
    assert order == ["a", "a", "b", "c", "a", "b", "a"]
    assert (allocator.used, allocator.waiting, len(allocator.lines)) == (0, 0, 0)


async def test_a_cancelled_caller_leaves_the_queue() -> None:
    allocator = SlotAllocator(1, 100)
    await allocator.acquire("a", None)
    waiting = [asyncio.ensure_future(allocator.acquire(client, None)) for client in "aab"]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[2].cancel()
    await asyncio.gather(*waiting[::2], return_exceptions=True)
    allocator.release()
    await waiting[1]
    allocator.release()
    assert (allocator.used, allocator.waiting, len(allocator.lines)) == (0, 0, 0)


async def test_a_slot_for_a_cancelled_caller_goes_to_the_next() -> None:
    allocator = SlotAllocator(1, 100)
    await allocator.acquire("a", None)
    lost, next_ = (asyncio.ensure_future(allocator.acquire("a", None)) for _ in range(2))
    await asyncio.sleep(0)
    allocator.release()
    lost.cancel()
    await asyncio.wait_for(next_, 5)
    allocator.release()
    assert allocator.used == 0


async def test_earlier_slow_jobs_do_not_make_a_caller_busy() -> None:
    """Slow jobs in the past say nothing of the jobs ahead: a caller waits for its whole timeout."""
    allocator = SlotAllocator(1)
    await allocator.acquire("slow", None)
    await asyncio.sleep(0.3)
    allocator.release()
    await allocator.acquire("a", None)
    waiting = asyncio.ensure_future(allocator.acquire("a", 0.2))
    await asyncio.sleep(0)
    allocator.release()
    await waiting


async def test_a_cancelled_job_ends_and_frees_its_slot(pool: Pool) -> None:
    jobs = [
        asyncio.ensure_future(pool.run(Job("python", "import time; time.sleep(60)", run_limits=LONG))) for _ in range(2)
    ]
    await asyncio.sleep(0.3)
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    assert (await run(pool, "print(1)")).stdout == b"1\n"
    assert pool.stats()["running"] == 0


async def test_nothing_of_a_run_is_in_the_memory_of_the_next() -> None:
    pool = Pool(slots=1)
    await pool.start()
    secret = "x".join(["tiger"] * 10_000)
    code = f"# {secret}\nimport sys; print(sys.stdin.read(), '{secret}')"
    await pool.run(Job("python", code, [secret.encode()] * 2, run_limits=LONG))
    look = (
        "import re\nfound = 0\n"
        "with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:\n"
        "    for line in maps:\n"
        "        start, end = (int(x, 16) for x in re.match('(.*?)-(.*?) ', line).groups())\n"
        "        if 'r' in line.split()[1] and '[v' not in line:\n"
        "            memory.seek(start)\n"
        "            found += len(re.findall(b'tige[r]xtige[r]', memory.read(end - start)))\n"
        "print(found)"
    )
    answer = await run(pool, look)
    assert pool.supervisor is not None
    assert pool.supervisor.count == 1, "another job supervisor says nothing"
    await pool.close()
    assert (answer.stdout, answer.stderr) == (b"0\n", b"")


async def test_runs_do_not_see_each_other(pool: Pool) -> None:
    hide = "import os; open('/tmp/left', 'w'); open('/dev/shm/left', 'w'); os.fork() or os.execvp('sleep', ['sleep', '60'])"
    await run(pool, hide)
    look = "import os; print('left' in os.listdir('/tmp'), os.listdir('/dev/shm'), [p for p in os.listdir('/proc') if p.isdigit()])"
    assert (await run(pool, look)).stdout == b"False [] ['1', '2']\n"


async def test_no_traffic_of_a_run_is_counted_in_the_next() -> None:
    pool = Pool(slots=1)
    await pool.start()
    look = "print([open('/proc/net/' + n).read() for n in ('dev', 'snmp', 'netstat', 'tcp', 'unix')])"
    talk = (
        "import socket\nserver = socket.create_server(('127.0.0.1', 4711))\n"
        "with socket.create_connection(('127.0.0.1', 4711)) as c: c.send(b'x' * 999); print(server.accept()[0].recv(9))"
    )
    before = await run(pool, look)
    assert [(await run(pool, talk)).stdout for _ in range(2)] == [b"b'xxxxxxxxx'\n"] * 2
    after = await run(pool, look)
    assert pool.supervisor is not None
    assert pool.supervisor.count == 1, "another job supervisor says nothing"
    await pool.close()
    assert before.stdout == after.stdout


@pytest.mark.parametrize("language", ["python", "bash"])
async def test_a_run_knows_nothing_of_the_server(pool: Pool, language: str) -> None:
    files = ["environ", "cmdline", "comm"]
    codes = {
        "python": f"print([open('/proc/self/' + n).read() for n in {files}])",
        "bash": f"cat {' '.join('/proc/self/' + name for name in files)}",
    }
    answer = await run(pool, codes[language], language=language)
    assert b"HOME=/box" in answer.stdout
    for word in (b"agentrl_sandbox", b"AGENTRL", b"PYTHONPATH", pool.config["folder"].encode()):
        assert word not in answer.stdout


async def test_no_isolation_takes_two_to_agree(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(ALLOW, raising=False)
    with pytest.raises(UsageError, match=ALLOW):
        await Pool(isolation="none").start()
    monkeypatch.setenv(ALLOW, "1")
    pool = Pool(isolation="none", slots=1)
    await pool.start()
    assert "no isolation" in caplog.text
    result = await pool.run(DOUBLE_OF_FOUR)
    await pool.close()
    assert (result.isolation, result.runs[0].stdout) == ("none", b"8\n")


async def test_unknown_tiers_are_named() -> None:
    with pytest.raises(UsageError, match="isolation='magic'"):
        await Pool(isolation="magic").start()


DOUBLE_OF_FOUR = Job("python", DOUBLE.code, [b"4\n"], run_limits=LONG)
