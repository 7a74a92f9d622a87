"""A long mixed load on the sandbox: good, failing and hostile runs, many at once; its cost, and its leftovers.

    python benchmarks/sandbox_soak.py [--runs 20000] [--concurrent 64] [--isolation auto] [--only sum,exception]

Uses the HTTP server, in its own process. Each kind of run has a known verdict; wrong verdicts and errors of the sandbox
are counted. Memory, descriptors and processes of the
server and all below it are read before, ten times on the way, and after. The exit code is 1 where a verdict was wrong,
the sandbox itself failed, something was left, or memory grew by more than a tenth between the first reading on the way
and the end: a leak of a hundred bytes a run shows in 100,000 runs. `--only` leaves out the slow kinds for that.
"""

import argparse
import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.core.errors import InfraError
from agentrl_sandbox.client import Client
from agentrl_sandbox.isolation import descendants
from agentrl_sandbox.job import CommandResult, Job, Limits

LIMITS = Limits(wall=10.0, memory_mb=256, output_bytes=1 << 18, processes=32, disk_mb=8, inodes=500)
BRIEF = Limits(wall=0.5, memory_mb=256, processes=16, disk_mb=8, inodes=500)
JOB_SUPERVISORS = 4 * (os.cpu_count() or 1)
"""That may wait for another job, idle, and be counted at the end."""
Verdict = Callable[[CommandResult, int], bool]


@dataclass(frozen=True)
class Kind:
    """A program with a number in it, how often it is run, and whether a result is the right one."""

    name: str
    share: int
    code: str
    right: Verdict
    limits: Limits = LIMITS


def says(result: CommandResult, number: int) -> bool:
    return result.return_code == 0 and result.stdout == f"{number * 2}\n".encode()


def stopped(result: CommandResult, number: int) -> bool:
    return result.return_code != 0 or result.status != "Finished"


def late(result: CommandResult, number: int) -> bool:
    return result.status == "TimeLimitExceeded"


KINDS = (
    Kind("sum", 40, "print(int(input()) + {n})", says),
    Kind("files and children", 10, "import subprocess\nopen('x','w').write('{n}')\n"
         "print(int(subprocess.run(['cat','x'],capture_output=True).stdout) * 2)", says),
    Kind("exception", 10, "print({n} * 2, flush=True); 1 / 0", lambda r, n: r.return_code == 1 and b"Zero" in r.stderr),
    Kind("exit code", 8, "import os; os._exit({n} % 100 + 1)", lambda r, n: r.return_code == n % 100 + 1),
    Kind("crash", 8, "import os; os.kill(os.getpid(), 11)", lambda r, n: r.return_code == -11),
    Kind("daemon", 6, "import os\nif os.fork() == 0:\n    os.setsid(); os.execvp('sleep', ['sleep', '86399'])\n"
         "print({n} * 2)", says),
    Kind("output", 4, "while True: print('x' * 9999)", lambda r, n: r.truncated),
    Kind("memory", 4, "x = bytearray(1 << 30)", stopped),
    Kind("shared memory", 3, "import mmap\nm = mmap.mmap(-1, 1 << 30)\n"
         "for i in range(0, 1 << 30, 4096): m[i] = 1", stopped),
    Kind("disk", 3, "for n in range(99): open(f'f{{n}}', 'wb').write(bytes(1 << 20))", stopped),
    Kind("endless", 2, "while True: pass", late, BRIEF),
    Kind("fork bomb", 1, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", stopped, BRIEF),
    Kind("kill all", 1, "import os; os.kill(-1, 9); print({n} * 2)", lambda r, n: True),
)  # fmt: skip


@dataclass(frozen=True)
class Census:
    """Resources of the server and its processes."""

    server_mib: float
    all_mib: float
    handles: int
    processes: int


def census(pid: int) -> Census:
    """Of a server and all below it. Memory: proportional, shared pages counted once."""
    family = [pid, *descendants(pid)]
    sizes = [pss(one) for one in family]
    return Census(sizes[0], sum(sizes), sum(map(handles, family)), len(family))


def pss(pid: int) -> float:
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def handles(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


async def one(client: Client, rng: random.Random, kinds: list[Kind], counts: dict[str, Counter[str]]) -> None:
    kind = rng.choices(kinds, [kind.share for kind in kinds])[0]
    number = rng.randrange(10**6)
    job = Job("python", kind.code.format(n=number), stdins=[str(number).encode()], run_limits=kind.limits)
    try:
        result = (await client.run(job)).runs[0]
    except InfraError as error:
        counts[kind.name]["infra"] += 1
        counts["errors"][str(error)[:100]] += 1
        return
    counts[kind.name]["right" if kind.right(result, number) else "wrong"] += 1


async def soak(
    client: Client, pid: int, options: argparse.Namespace
) -> tuple[dict[str, Counter[str]], list[Census], float]:
    rng = random.Random(options.seed)
    kinds = [kind for kind in KINDS if not options.only or kind.name in options.only.split(",")]
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("errors", *(kind.name for kind in KINDS))}
    warm = {name: Counter[str]() for name in counts}
    await asyncio.gather(*(one(client, rng, kinds, warm) for _ in range(options.concurrent)))
    await asyncio.sleep(2)
    taken = [census(pid)]
    left, step = iter(range(options.runs)), max(1, options.runs // 10)
    start = time.monotonic()

    async def worker() -> None:
        for number in left:
            await one(client, rng, kinds, counts)
            if number % step == step - 1:
                taken.append(census(pid))

    await asyncio.gather(*(worker() for _ in range(options.concurrent)))
    seconds = time.monotonic() - start
    await asyncio.sleep(2)
    return counts, [*taken, census(pid)], seconds


def show(console: Console, counts: dict[str, Counter[str]], taken: list[Census], seconds: float, runs: int) -> None:
    table = Table("kind", "right", "wrong", "sandbox's own errors")
    for kind in KINDS:
        count = counts[kind.name]
        table.add_row(kind.name, *(str(count[word]) for word in ("right", "wrong", "infra")))
    console.print(table)
    table = Table("", "server MiB", "all MiB", "descriptors", "processes")
    for index, now in enumerate(taken):
        name = "before" if index == 0 else "after" if now is taken[-1] else f"{index * 10}%"
        table.add_row(name, f"{now.server_mib:.0f}", f"{now.all_mib:.0f}", str(now.handles), str(now.processes))
    console.print(table)
    console.print(f"{runs} runs in {seconds:.0f} s, {runs / seconds:.0f} a second")
    for words, number in counts["errors"].most_common(5):
        console.print(f"{number} x {words}", markup=False)


def sound(counts: dict[str, Counter[str]], taken: list[Census], alive: list[int]) -> bool:
    """No wrong verdict, no error of the sandbox's own, nothing left, nothing growing."""
    first, last = taken[min(1, len(taken) - 1)], taken[-1]
    grown = last.server_mib > 1.1 * first.server_mib or last.processes > taken[0].processes + JOB_SUPERVISORS
    verdicts = sum(count["wrong"] + count["infra"] for count in counts.values())
    return not (verdicts or alive or grown)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("--runs", 20_000), ("--concurrent", 64), ("--seed", 0), ("--port", 8097)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--only", default="", help="kinds of runs, joined by commas (default: all)")
    options = parser.parse_args()
    words = ["--port", str(options.port), "--isolation", options.isolation, "--log-level", "error"]
    with subprocess.Popen([sys.executable, "-m", "agentrl", "sandbox", "serve", *words]) as server:
        try:
            counts, taken, seconds = asyncio.run(drive(server.pid, options))
        finally:
            family = descendants(server.pid)
            server.terminate()
            server.wait()
    console = Console()
    show(console, counts, taken, seconds, options.runs)
    alive = [pid for pid in family if os.path.exists(f"/proc/{pid}")]
    console.print(f"processes left after the server has ended: {len(alive)}")
    return 0 if sound(counts, taken, alive) else 1


async def drive(pid: int, options: argparse.Namespace) -> Any:
    client = Client(f"http://127.0.0.1:{options.port}", queue_timeout=600.0)
    for _ in range(600):
        try:
            await client.start()
            break
        except InfraError:
            await asyncio.sleep(0.1)
    try:
        return await soak(client, pid, options)
    finally:
        await client.close()


if __name__ == "__main__":
    sys.exit(main())
