"""Runs per second of the sandbox's server over HTTP with full isolation, beside a plain subprocess per run.

    python benchmarks/sandbox_throughput.py [--seconds 5] [--concurrency 1,8,64,256] [--rounds 3]

The job reads standard input, adds, prints; its number differs from run to run, and every answer is checked. The server
is a process of its own, as people start it; the client is a process of its own, too, and writes HTTP/1.1 by hand over
kept connections, so that the client costs little. Rows are measured in turn, round after round, and
the median round is shown: a machine's other work hits all of them alike. CPU is that of the server, its executor and
the programs (for subprocesses: of the programs and of what starts them), user and system time together.
"""

import argparse
import asyncio
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

CODE = "import sys\nprint(sum(map(int, sys.stdin.read().split())))\n"
NUMPY = "import sys\nimport numpy\nprint(numpy.array(sys.stdin.read().split(), dtype=int).sum())\n"
BATCH = 15
Attempt = Callable[[int], Awaitable[int]]
"""Does the work of one number; how many of its verdicts were wrong."""


@dataclass
class Round:
    """One measured stretch."""

    runs: int
    seconds: float
    latencies: list[float]
    wrong: int
    cpu: float

    def rate(self) -> float:
        return self.runs / self.seconds


@dataclass
class Row:
    """A way to run things, at a concurrency."""

    name: str
    concurrency: int
    attempt: Attempt
    cpu: Callable[[], float]
    each: int = 1
    """Runs an attempt."""
    rounds: list[Round] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="a row and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", default="1,8,64,256")
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--only", default="", help="rows whose name has this word")
    args = parser.parse_args()
    levels = [int(word) for word in args.concurrency.split(",")]
    with served(args.isolation) as server:
        asyncio.run(measure(args, levels, server))


async def measure(args: argparse.Namespace, levels: list[int], server: "Served") -> None:
    """All rows, in turn, and the table."""
    http = Http(server.url)
    health = await http.health()
    rows = [row for row in make_rows(levels, http, server.cpu) if args.only in row.name]
    for row in rows:
        await stretch(row, min(1.0, args.seconds))  # warms up, and is thrown away
    for _ in range(args.rounds):
        for row in rows:
            row.rounds.append(await stretch(row, args.seconds))
    console = Console(width=120)
    console.print(f"isolation: {health['isolation']}; {os.cpu_count()} cores; ready in {server.ready:.2f} s")
    memory, load = memory_of(server.pid), os.getloadavg()[0]
    console.print(f"load of the machine: {load:.1f}; memory of the server at the end: {memory:.0f} MiB")
    console.print(table(rows))


def make_rows(levels: list[int], http: "Http", served_cpu: Callable[[], float]) -> list[Row]:
    """The compared rows."""
    rows = []
    for level in levels:
        rows.append(Row("server", level, lambda n: http.run(CODE, n), served_cpu))
        rows.append(Row("bare subprocess", level, lambda n: bare(CODE, n), own_cpu))
    rows.append(Row(f"server, {BATCH} tests a request", 8, lambda n: http.batch(CODE, n), served_cpu, each=BATCH))
    rows.append(Row("server, imports numpy", 8, lambda n: http.run(NUMPY, n), served_cpu))
    rows.append(Row("bare subprocess, imports numpy", 8, lambda n: bare(NUMPY, n), own_cpu))
    return rows


async def stretch(row: Row, seconds: float) -> Round:
    """Keep `concurrency` attempts going for that long."""
    begin, cpu, latencies, wrong = time.monotonic(), row.cpu(), [], 0
    number = iter(range(1, 1 << 60))

    async def worker() -> None:
        nonlocal wrong
        while time.monotonic() < begin + seconds:
            start = time.monotonic()
            wrong += await row.attempt(next(number))
            latencies.append(time.monotonic() - start)

    await asyncio.gather(*(worker() for _ in range(row.concurrency)))
    spent = time.monotonic() - begin
    return Round(len(latencies) * row.each, spent, sorted(latencies), wrong, row.cpu() - cpu)


def table(rows: list[Row]) -> Table:
    """The median round of each row; wrong verdicts of all rounds."""
    shown = Table("", "at once", "runs/s", "p50 ms", "p99 ms", "CPU ms/run", "wrong", "runs")
    for row in rows:
        middle = sorted(row.rounds, key=Round.rate)[len(row.rounds) // 2]
        last = middle.latencies[min(len(middle.latencies) - 1, int(len(middle.latencies) * 0.99))]
        shown.add_row(
            row.name,
            str(row.concurrency),
            f"{middle.rate():.0f}",
            f"{statistics.median(middle.latencies) * 1000:.1f}",
            f"{last * 1000:.1f}",
            f"{middle.cpu / middle.runs * 1000:.1f}",
            str(sum(one.wrong for one in row.rounds)),
            str(sum(one.runs for one in row.rounds)),
        )
    return shown


async def bare(code: str, number: int) -> int:
    """A fresh interpreter without isolation."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate(b"%d 1" % number)
    return int(output != b"%d\n" % (number + 1))


class Http:
    """A minimal HTTP/1.1 client with persistent connections."""

    def __init__(self, url: str) -> None:
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port = int(port)
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def run(self, code: str, number: int) -> int:
        reply = await self.send({"code": code, "language": "python", "stdin": f"{number} 1"})
        return int(reply is None or reply["run_result"]["stdout"] != f"{number + 1}\n")

    async def batch(self, code: str, number: int) -> int:
        tests = [{"stdin": f"{number} {index}"} for index in range(BATCH)]
        reply = await self.send({"code": code, "language": "python", "tests": tests})
        if reply is None:
            return BATCH
        return sum(test["stdout"] != f"{number + index}\n" for index, test in enumerate(reply["tests"]))

    async def send(self, body: dict) -> dict | None:
        """The reply; None where it is no verdict."""
        status, content = await self.exchange(b"POST /run_code", json.dumps(body | {"queue_timeout": 60}).encode())
        reply = json.loads(content)
        return reply if status == 200 and reply["status"] == "Success" else None

    async def health(self) -> dict:
        return json.loads((await self.exchange(b"GET /health", b""))[1])

    async def exchange(self, line: bytes, content: bytes) -> tuple[int, bytes]:
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection(self.host, self.port)
        head = b" HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(content)
        writer.write(line + head + content)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.partition(b"content-length: ")[2].split()[0])
        content = await reader.readexactly(length)
        self.idle.append((reader, writer))
        return int(answer[9:12]), content


@dataclass
class Served:
    """A started server."""

    url: str
    pid: int
    ready: float
    """Seconds from the command until it was ready."""
    account: Path | None
    """The control group that counts its CPU time; without one /proc is asked, which misses what no one waited for."""

    def cpu(self) -> float:
        """Seconds of everything in it."""
        return int(self.account.read_text()) / 1e9 if self.account else cpu_of(self.pid)


@contextmanager
def served(isolation: str) -> Iterator[Served]:
    """A server of its own, stopped at the end."""
    begin, named = time.monotonic(), Path(f"/sys/fs/cgroup/cpuacct/agentrl-benchmark-{os.getpid()}")
    group: Path | None = named
    command = [sys.executable, "-m", "agentrl", "sandbox", "serve", "--port", "0", "--isolation", isolation]
    try:
        named.mkdir()
        command = ["sh", "-c", f'echo $$ > {named}/cgroup.procs && exec "$@"', "sh", *command]
    except OSError:
        group = None
    process = subprocess.Popen([*command, "--patience", "60"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines: list[str] = []
    while not (found := re.search(r"sandbox: (http://\S+),", "".join(lines))):
        line = process.stderr.readline()
        if not line:
            raise SystemExit("".join(lines))
        lines.append(line)
    drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
    try:
        yield Served(found[1], process.pid, time.monotonic() - begin, group and group / "cpuacct.usage")
    finally:
        process.terminate()
        process.wait()
        drain.wait()
        if group:
            group.rmdir()


def own_cpu() -> float:
    """Seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def cpu_of(pid: int) -> float:
    """Seconds of a process, of all below it, and of their children that have ended."""
    ticks: dict[int, int] = {}
    parents: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks[int(file.parent.name)] = sum(map(int, words[11:15]))
        parents.setdefault(int(words[1]), []).append(int(file.parent.name))
    total, below = 0, [pid]
    while below:
        process = below.pop()
        total += ticks.get(process, 0)
        below += parents.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> float:
    """MiB of a process alone."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


if __name__ == "__main__":
    main()
