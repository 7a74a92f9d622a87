"""On a host with many cores and much memory, libraries and runtimes size themselves by the run, not by the host."""

import json
import sys

import pytest

from agentrl_sandbox.job import Job, Limits
from agentrl_sandbox.pool import Pool

from .programs import run

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
COUNT = "import numpy, os; print(len(os.listdir('/proc/self/task')))"


@pytest.mark.prevents("a library starts one thread per host core and dies in the sandbox")
async def test_numpy_starts_no_thread_a_core(pool: Pool) -> None:
    """Where it is imported by name, by a string, in another process, and in a session."""
    late = "import os; __import__('num' + 'py'); print(len(os.listdir('/proc/self/task')))"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COUNT!r}])"
    for code in (COUNT, late, child):
        answer = await run(pool, code)
        assert (answer.stdout, answer.stderr) == (b"1\n", b""), code
    session = await pool.session(Limits(wall=60))
    assert (await session.run(COUNT)).stdout == b"1\n"
    await session.close()


@pytest.mark.parametrize("language", ["python", "bash"])
async def test_the_variables_that_bound_threads_are_there(pool: Pool, language: str) -> None:
    code = {"python": "import json, os; print(json.dumps(dict(os.environ)))", "bash": f"{sys.executable} -c '%s'"}
    program = code[language] % code["python"] if language == "bash" else code[language]
    environment = json.loads((await run(pool, program, language=language)).stdout)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        assert environment[name] == "1"
    assert (environment["GOMAXPROCS"], environment["RAYON_NUM_THREADS"]) == ("2", "2")


async def test_the_stacks_of_all_threads_that_are_allowed_fit(pool: Pool) -> None:
    """A program that is started by exec gives each thread the stack of its first: reserved, not used."""
    threads = (
        "import threading\nstop = threading.Event()\n"
        "threads = [threading.Thread(target=stop.wait) for _ in range(120)]\n"
        "for t in threads: t.start()\nstop.set()\nprint(len(threads))"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {threads!r}])"
    answer = await run(pool, code, memory_mb=128, processes=128)
    assert (answer.stdout, answer.stderr) == (b"120\n", b"")


async def test_javas_heap_and_threads_follow_the_run(pool: Pool) -> None:
    code = (
        "public class Main { public static void main(String[] a) { Runtime r = Runtime.getRuntime();"
        'System.out.println(r.maxMemory() / (1 << 20) + " " + r.totalMemory() / (1 << 20) + " "'
        " + r.availableProcessors()); } }"
    )
    limits = Limits(wall=60, memory_mb=400)
    result = await pool.run(Job("java", code, compile_limits=Limits(wall=60), run_limits=limits))
    assert result.runs, result.compiled
    most, begin, cores = map(int, result.runs[0].stdout.split())
    assert most <= 300
    assert begin <= 16
    assert cores <= 2


async def test_nodes_heap_follows_the_run(pool: Pool) -> None:
    code = "console.log(require('v8').getHeapStatistics().heap_size_limit / 1048576 | 0)"
    small, large = [int((await run(pool, code, language="nodejs", memory_mb=mb)).stdout) for mb in (256, 2048)]
    assert small < 256
    assert small * 4 < large
