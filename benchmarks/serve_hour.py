"""An hour of 20 tenants of one `agentrl serve` at a gentle pace: memory every minute, waits by tenant, errors.

    setsid nice -n 10 python benchmarks/serve_hour.py --result hour.txt &

The result is written anew each minute, so it can be read before the end. A tenant pauses after each round as long as a
third of a core allows to all; it trains, samples new weights, saves checkpoints, and now and then begins a new session.
"""

import argparse
import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
from serve_parts import Server, new_server
from serve_tenants import Tenant

SHARE = 1 / 3
"""Share of a core that the server may use; tenants pause longer while it uses more."""
ROUNDS = 40
"""Rounds of a session."""


class Paced(Tenant):
    """A tenant that trains in rounds of two passes and a step."""

    errors: Counter[str]
    sessions = 0

    async def live(self, end: float) -> None:
        """Train in one session after another until a time; count errors."""
        self.errors = Counter()
        while time.monotonic() < end:
            try:
                await self._session(end, random.Random(f"{self.number} {self.sessions}"))
            except (AssertionError, httpx.HTTPError) as error:
                self.errors[f"{type(error).__name__}: {error}"[:200]] += 1
                await asyncio.sleep(5)
            self.sessions += 1

    async def _session(self, end: float, draw: random.Random) -> None:
        self.seq = 0
        await self.open(rank=4)
        for number in range(1, ROUNDS + 1):
            if time.monotonic() > end:
                break
            await asyncio.gather(*(self.command(self.next(), draw) for _ in range(3)))
            if number % 4 == 0:
                await self.sample(draw)
            if number % 16 == 0:
                await self.save({"path": "last", "overwrite": True}, "save_weights")
            await asyncio.sleep(draw.uniform(0, 2) * self.pause)
        await self.finish()


def seconds_used(server: Server) -> float:
    """CPU seconds of the server so far."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def traffic(server: Server, tenants: int, minutes: float, result: Path) -> None:
    """Run the tenants; write the result each minute and at the end."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
        own = [Paced(n, http, pipelined=3, pause=10.0) for n in range(tenants)]
        begun = time.monotonic()
        lives = asyncio.gather(*(one.live(begun + 60 * minutes) for one in own))
        lines, before = [], seconds_used(server)
        while not lives.done():
            await asyncio.wait([lives], timeout=60)
            share, before = (seconds_used(server) - before) / 60, seconds_used(server)
            for one in own:
                one.pause = min(max(one.pause * share / SHARE, one.pause / 2, 1.0), one.pause * 2, 120.0)
            lines.append(
                f"{(time.monotonic() - begun) / 60:5.1f} {server.memory():8.1f} {share:6.2f} {own[0].pause:7.1f}"
            )
            await asyncio.to_thread(result.write_text, report(own, lines))
        await lives


def report(own: list[Paced], lines: list[str]) -> str:
    """The figures so far."""
    rows = ["tenant sessions requests median_s p95_s longest_s errors"]
    for one in own:
        waits = np.array(one.waits or [0.0])
        numbers = f"{np.median(waits):8.2f} {np.quantile(waits, 0.95):6.2f} {waits.max():8.2f}"
        rows.append(f"{one.number:6} {one.sessions:8} {len(one.waits):8} {numbers} {sum(one.errors.values()):6}")
    found = sum((one.errors for one in own), Counter[str]())
    errors = [f"{count} x {text}" for text, count in found.items()] or ["none"]
    return "\n".join(["minute RSS_MB cores pause_s", *lines, "", *rows, "", "errors:", *errors, ""])


def main() -> None:
    """Start the server, and run the traffic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, default=Path("runs/serve-hour"))
    parser.add_argument("--result", type=Path, default=Path("serve-hour.txt"))
    args = parser.parse_args()
    with new_server(args.out.resolve(), 600) as server:
        asyncio.run(traffic(server, args.tenants, args.minutes, args.result))


if __name__ == "__main__":
    main()
