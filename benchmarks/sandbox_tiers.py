"""CPU time of a run in each tier of the sandbox, in ratio to a plain `python main.py`.

    python benchmarks/sandbox_tiers.py [--seconds 1] [--rounds 7] [--tiers namespace landlock bwrap] [--callers 1]

Each call is a new program or a plain process. All ways alternate, round by round, and each ratio compares two
neighbours in time, so that a busy machine changes the milliseconds more than the ratios. CPU time is that of everything
that works for a run, as in sandbox_core.py. It needs root: a cgroup tells it.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sandbox_core import CODE, LONG, STDIN, STDOUT, Meter, Once, bare, measure

from agentrl.core.errors import UserError
from agentrl_sandbox.job import Job
from agentrl_sandbox.pool import Pool

BARE = "bare python main.py"
PROGRAMS = {
    "": CODE,
    ", leaves a file": f"open('left', 'w').close()\n{CODE}",
    ", 0.1 s asleep": f"import time\ntime.sleep(0.1)\n{CODE}",
}
"""What is run in each tier: the program of sandbox_core.py; one after which the folder is to be emptied; one that is
looked at three times."""


def sandboxed(pool: Pool, code: str) -> Once:
    """One run in a pool."""

    async def once() -> int:
        result = await pool.run(Job("python", code, [STDIN], run_limits=LONG))
        assert result.runs[0].stdout == STDOUT, result.runs[0]
        return 1

    return once


async def started(tiers: Sequence[str], python: str, slots: int) -> list[Pool]:
    """A pool of each tier that this host has."""
    pools = []
    for tier in tiers:
        pool = Pool(isolation=tier, slots=slots, python=python)
        try:
            await pool.start()
        except UserError as error:
            print(error)
            continue
        pools.append(pool)
        print(f"{tier}: {'forks a warm interpreter' if pool.forks else 'starts an interpreter'} for each run")
    return pools


async def compare(ways: dict[str, Once], meter: Meter, at_once: int, rounds: int, seconds: float) -> None:
    """Measure all ways in turn, round after round; a line each."""
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for once in ways.values():
        await once()
    for _ in range(rounds):
        for name, once in ways.items():
            cpu[name].append((await measure(once, meter, at_once, seconds))[1])
    print(f"\n{'':26} {'CPU ms/run':>11} {'of bare':>8} {'least':>6} {'most':>6}")
    for name, found in cpu.items():
        ratios = sorted(own / other for own, other in zip(found, cpu[BARE], strict=True))
        middle = statistics.median(ratios)
        print(f"{name:26} {statistics.median(found):11.2f} {middle:8.2f} {ratios[0]:6.2f} {ratios[-1]:6.2f}")


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--tiers", nargs="+", default=["namespace", "landlock", "bwrap"])
    parser.add_argument("--python", default=sys.executable, help="one that other users reach, for landlock as root")
    args = parser.parse_args()
    meter, pools = Meter(), await started(args.tiers, args.python, args.callers)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "main.py")
        file.write_text(CODE)  # noqa: ASYNC240
        ways = {BARE: bare(args.python, str(file))}
        ways |= {f"{p.isolation}{words}": sandboxed(p, code) for words, code in PROGRAMS.items() for p in pools}
        await compare(ways, meter, args.callers, args.rounds, args.seconds)
    for pool in pools:
        await pool.close()


if __name__ == "__main__":
    asyncio.run(main())
