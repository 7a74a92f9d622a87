"""The cost of isolation: runs per second and CPU time per run of the pool, beside a plain `python main.py` per run.

    python benchmarks/sandbox_core.py [--seconds 3] [--rounds 3] [--isolation auto]

Both alternate, round by round, so that a busy machine slows both. CPU time is that of all processes of a run: pool,
supervisor, zygotes, job supervisors and the program, or parent and child. It is read from a cgroup, where root may make
one; else it is left out.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentrl_sandbox.job import Job, Limits
from agentrl_sandbox.pool import Pool

CODE = "print(sum(map(int, input().split())))\n"
STDIN, STDOUT = b"19 23\n", b"42\n"
LONG = Limits(wall=60)
BATCH = 50
Once = Callable[[], Awaitable[int]]


class Meter:
    """CPU seconds of this process and its children."""

    def __init__(self) -> None:
        self.usage: Path | None = None
        for group in (Path("/sys/fs/cgroup/cpuacct/agentrl-benchmark"), Path("/sys/fs/cgroup/agentrl-benchmark")):
            try:
                group.mkdir(exist_ok=True)
                (group / "cgroup.procs").write_text(str(os.getpid()))
            except OSError:
                continue
            self.usage = next(path for path in (group / "cpuacct.usage", group / "cpu.stat") if path.exists())
            return

    def seconds(self) -> float:
        """Until now; NaN where it cannot be told."""
        if self.usage is None:
            return float("nan")
        words = self.usage.read_text().split()
        return int(words[0]) / 1e9 if len(words) == 1 else int(words[words.index("usage_usec") + 1]) / 1e6


async def measure(once: Once, meter: Meter, at_once: int, seconds: float) -> tuple[float, float, list[float]]:
    """(runs a second, CPU ms a run, seconds of each call) with so many callers at once."""
    done, taken = 0, list[float]()
    begin, used = time.monotonic(), meter.seconds()

    async def caller() -> None:
        nonlocal done
        while time.monotonic() < begin + seconds:
            start = time.monotonic()
            count = await once()
            done += count
            taken.append(time.monotonic() - start)

    await asyncio.gather(*(caller() for _ in range(at_once)))
    return done / (time.monotonic() - begin), (meter.seconds() - used) / done * 1e3, taken


def bare(python: str, file: str) -> Once:
    """One run without a sandbox."""

    async def once() -> int:
        process = await asyncio.create_subprocess_exec(python, file, stdin=-1, stdout=-1, stderr=-1)
        assert (await process.communicate(STDIN))[0] == STDOUT
        return 1

    return once


def ways(pool: Pool, file: str) -> dict[str, Once]:
    """The compared ways: each call does some runs, checks them and returns their number."""

    def sandboxed(code: str, count: int) -> Once:
        async def once() -> int:
            result = await pool.run(Job("python", code, [STDIN] * count, run_limits=LONG))
            assert [run.stdout for run in result.runs] == [STDOUT] * count
            return count

        return once

    return {
        "bare subprocess": bare(sys.executable, file),
        "pool": sandboxed(CODE, 1),
        f"pool, {BATCH} tests a job": sandboxed(CODE, BATCH),
        "pool, importing numpy": sandboxed("import numpy\n" + CODE, 1),
    }


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--isolation", default="auto")
    args = parser.parse_args()
    meter, pool = Meter(), Pool(isolation=args.isolation)
    await pool.start()
    print(f"isolation {pool.isolation}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'':24} {'callers':>7} {'runs/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'CPU ms/run':>11}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "main.py")
        file.write_text(CODE)  # noqa: ASYNC240
        table = ways(pool, str(file))
        for once in table.values():
            await once()
        for at_once in (1, 8):
            await compare(table, meter, at_once, args.rounds, args.seconds)
    await pool.close()


async def compare(table: dict[str, Once], meter: Meter, at_once: int, rounds: int, seconds: float) -> None:
    """Measure all ways in turn, round after round; a line each."""
    results: dict[str, list[tuple[float, float, list[float]]]] = {name: [] for name in table}
    for _ in range(rounds):
        for name, once in table.items():
            results[name].append(await measure(once, meter, at_once, seconds))
    for name, found in results.items():
        show(name, at_once, found)


def show(name: str, at_once: int, rounds: list[tuple[float, float, list[float]]]) -> None:
    """One line: medians over rounds; latencies over all calls."""
    speed, cpu = (statistics.median(column) for column in list(zip(*rounds, strict=True))[:2])
    taken = sorted(seconds for _, _, calls in rounds for seconds in calls)
    p50, p99 = (taken[int(len(taken) * share)] * 1e3 for share in (0.5, 0.99))
    print(f"{name:24} {at_once:7} {speed:8.1f} {p50:8.1f} {p99:8.1f} {cpu:11.2f}")


if __name__ == "__main__":
    asyncio.run(main())
