"""Every limit is real, and the answer says which one was hit. No time is asserted beyond 'it came back'."""

# ruff: noqa: E501, ISC004 - a program stands on a line of its own

import pytest

from agentrl_sandbox.job import Job, Limits
from agentrl_sandbox.pool import Pool
from tests.sandbox.attacks import fake_failures
from tests.sandbox.attacks.attack import Attack

from .kernel_memory import PROGRAMS
from .programs import run

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
MIB = 1 << 20


@pytest.mark.prevents("a program disguises its failure as the sandbox's, and the sample is masked")
@pytest.mark.parametrize("attack", fake_failures.ATTACKS, ids=lambda attack: attack.name)
async def test_whatever_a_program_does_is_its_own_verdict(pool: Pool, attack: Attack) -> None:
    """Never trouble of the sandbox, never much later than its limit; and the next program finds all in order."""
    result = await pool.run(attack.job({}))
    assert [fault for check in attack.checks if (fault := check(result))] == []
    assert (await run(pool, "print(6 * 7)")).stdout == b"42\n"


async def test_wall_time_and_the_output_until_then(pool: Pool) -> None:
    code = "import sys, time; print('before', flush=True); print('words', file=sys.stderr, flush=True); time.sleep(60)"
    answer = await run(pool, code, wall=1.0)
    assert (answer.status, answer.return_code, answer.limit_hit) == ("TimeLimitExceeded", None, "time")
    assert (answer.stdout, answer.stderr) == (b"before\n", b"words\n")


@pytest.mark.parametrize(
    "deaf", ["signal.signal(signal.SIGTERM, signal.SIG_IGN)", "os.kill(os.getpid(), signal.SIGSTOP)"]
)
async def test_wall_time_ends_the_deaf_and_the_stopped(pool: Pool, deaf: str) -> None:
    answer = await run(pool, f"import os, signal, time\n{deaf}\ntime.sleep(60)", wall=0.5)
    assert answer.limit_hit == "time"


async def test_cpu_time_of_one_process(pool: Pool) -> None:
    answer = await run(pool, "while True: pass", cpu=0.5)
    assert (answer.status, answer.limit_hit, answer.return_code) == ("TimeLimitExceeded", "cpu", None)
    assert answer.cpu_time >= 0.5


async def test_cpu_time_of_all_processes_together(pool: Pool) -> None:
    code = "import os\nfor _ in range(3):\n    if os.fork() == 0: break\nwhile True: pass"
    assert (await run(pool, code, cpu=1.0)).limit_hit == "cpu"


async def test_cpu_time_is_reported(pool: Pool) -> None:
    answer = await run(pool, "import time\nwhile time.process_time() < 0.3: pass")
    assert 0.3 <= answer.cpu_time < 3
    assert answer.execution_time >= 0.3


@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(1 << 30)",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor i in range(0, 1 << 30, 4096): m[i] = 1\nimport time; time.sleep(9)",
        "import mmap, os, time\nm = mmap.mmap(-1, 400 << 20)\nfor i in range(0, 400 << 20, 4096): m[i] = 1\n"
        "m.madvise(mmap.MADV_DONTNEED); time.sleep(9)",
        "import os, time\nfor _ in range(3):\n    if os.fork() == 0: break\nx = bytearray(b'x') * (100 << 20); time.sleep(9)",
        "open('/dev/shm/f', 'wb').write(bytes(200 << 20)); x = bytearray(b'x') * (120 << 20); import time; time.sleep(9)",
        "import os\nf = os.memfd_create('x')\nfor _ in range(400): os.write(f, bytes(1 << 20))\nimport time; time.sleep(9)",
    ],
    ids=["at once", "bit by bit", "shared", "shared, unmapped", "many processes", "files", "memfd"],
)
async def test_memory_however_it_is_had(pool: Pool, code: str) -> None:
    answer = await run(pool, code, memory_mb=300, disk_mb=256)
    if b"OSError" in answer.stderr:
        assert b"memfd" in code.encode()  # denied altogether
        return
    assert answer.limit_hit == "memory"
    assert answer.return_code in (1, -9)


@pytest.mark.parametrize("what", list(PROGRAMS))
async def test_memory_outside_of_any_address_space(pool: Pool, what: str) -> None:
    answer = await run(pool, PROGRAMS[what], memory_mb=64)
    assert (answer.limit_hit, answer.return_code) == ("memory", -9)


async def test_memory_that_is_only_reserved_is_free(pool: Pool) -> None:
    code = "import threading\nstop = threading.Event()\nthreads = [threading.Thread(target=stop.wait) for _ in range(60)]\n"
    code += "for t in threads: t.start()\nstop.set()\nprint('fine')"
    assert (await run(pool, code, memory_mb=128)).stdout == b"fine\n"


async def test_memory_peak_is_reported(pool: Pool) -> None:
    answer = await run(pool, "x = bytearray(b'x') * (100 << 20)")
    assert 100 <= answer.memory_peak_mb < 200


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_output_is_cut_and_the_program_ended(pool: Pool, stream: str) -> None:
    answer = await run(pool, f"import sys\nwhile True: sys.{stream}.write('x' * 999)", output_bytes=100_000)
    assert (answer.status, answer.return_code, answer.limit_hit, answer.truncated) == ("Finished", -9, "output", True)
    assert len(getattr(answer, stream)) == 100_000


async def test_output_of_exactly_the_cap_is_whole(pool: Pool) -> None:
    answer = await run(pool, "print('x' * 99_999)", output_bytes=100_000)
    assert (answer.return_code, answer.limit_hit, answer.truncated) == (0, None, False)
    assert len(answer.stdout) == 100_000


async def test_large_output_comes_whole(pool: Pool) -> None:
    answer = await run(pool, "import sys; sys.stdout.write('x' * 20_000_000)", output_bytes=32 * MIB)
    assert len(answer.stdout) == 20_000_000


async def test_any_bytes_come_back_as_they_were(pool: Pool) -> None:
    code = (
        "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data); sys.stderr.buffer.write(data[::-1])"
    )
    data = bytes(range(256)) * 1000
    answer = await run(pool, code, data)
    assert (answer.stdout, answer.stderr) == (data, data[::-1])


async def test_processes(pool: Pool) -> None:
    code = "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(60)\n        n += 1\n"
    answer = await run(pool, code + "except BlockingIOError:\n    print(n)\n    raise", processes=20)
    assert (int(answer.stdout), answer.limit_hit) == (19, "processes")


async def test_fork_bomb(pool: Pool) -> None:
    answer = await run(
        pool, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", wall=2.0, processes=50
    )
    assert answer.status == "TimeLimitExceeded"


@pytest.mark.prevents("programs die of a limit on process ids, or use memory that is not counted")
async def test_processes_are_counted_while_they_live(pool: Pool) -> None:
    """However many threads and processes there were, new ones start: the limit is on those alive at once."""
    code = "import os, threading\nfor _ in range(2000):\n    t = threading.Thread(target=int); t.start(); t.join()\n"
    code += (
        "for _ in range(1000):\n    pid = os.fork()\n    if pid == 0: os._exit(0)\n    os.waitpid(pid, 0)\nprint('end')"
    )
    answer = await run(pool, code, processes=20)
    assert (answer.stdout, answer.stderr, answer.limit_hit) == (b"end\n", b"", None)


async def test_orphans_that_have_ended_do_not_count(pool: Pool) -> None:
    code = "import os, time\nfor _ in range(60):\n    pid = os.fork()\n    if pid == 0: os._exit(os.fork() and 0)\n"
    code += "    os.waitpid(pid, 0); time.sleep(0.02)\nprint('end')"
    answer = await run(pool, code, processes=20)
    assert (answer.stdout, answer.stderr) == (b"end\n", b"")


async def test_children_do_not_outlive_the_answer(pool: Pool) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(600)\n    os._exit(0)\nprint('end')"
    answer = await run(pool, code)
    assert (answer.stdout, answer.return_code) == (b"end\n", 0)
    assert answer.execution_time < 60


async def test_disk(pool: Pool) -> None:
    code = "f = open('f', 'wb')\nwhile True: f.write(bytes(1 << 20)); f.flush()"
    assert (await run(pool, code, disk_mb=8)).limit_hit == "disk"


async def test_disk_of_many_files(pool: Pool) -> None:
    code = "for i in range(100): open(f'/tmp/{i}', 'wb').write(bytes(1 << 20))"
    assert (await run(pool, code, disk_mb=8)).limit_hit == "disk"


async def test_inodes(pool: Pool) -> None:
    assert (await run(pool, "for i in range(1000): open(str(i), 'w')", inodes=100)).limit_hit == "disk"


async def test_open_files(pool: Pool) -> None:
    answer = await run(pool, "x = [open('/dev/null') for _ in range(100)]", open_files=50)
    assert b"Too many open files" in answer.stderr


async def test_limits_cannot_be_raised(pool: Pool) -> None:
    code = "import resource as r\nfor k in range(16):\n    try: r.setrlimit(k, (r.RLIM_INFINITY,) * 2)\n"
    code += "    except (ValueError, OSError): pass\n    if r.RLIM_INFINITY in r.getrlimit(k): print(k)"
    answer = await run(pool, code)
    finite = {0, 1, 2, 3, 4, 6, 7, 8, 11, 13, 14}
    assert not finite & {int(word) for word in answer.stdout.split()}


async def test_huge_stdin_of_a_program_that_does_not_read_it(pool: Pool) -> None:
    answer = await run(pool, "import time; time.sleep(0.2); print('done')", bytes(100 * MIB))
    assert (answer.stdout, answer.return_code) == (b"done\n", 0)


async def test_huge_stdin_that_is_read(pool: Pool) -> None:
    answer = await run(pool, "import sys; print(len(sys.stdin.buffer.read()))", bytes(30 * MIB))
    assert answer.stdout == b"31457280\n"


async def test_exit_before_stdin_is_written(pool: Pool) -> None:
    answer = await run(pool, "import os; os._exit(3)", bytes(30 * MIB))
    assert (answer.status, answer.return_code) == ("Finished", 3)


async def test_total_time_of_a_batch(pool: Pool) -> None:
    job = Job("python", "import time; time.sleep(60)", [b""] * 5, run_limits=Limits(wall=50), total=1.0)
    result = await pool.run(job)
    assert [run.limit_hit for run in result.runs] == ["time"]
