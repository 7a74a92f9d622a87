"""Waits of small tenants of one `agentrl serve` beside one whose passes are long.

    python benchmarks/serve_fair.py     # 3 minutes on two cores

The large tenant always has passes of 64 sequences of 125 tokens; 19 small ones send two short sequences now and then.
Three servers run in turn: without the large tenant; with it, where a micro-batch has all its tokens, so that a turn is
a whole pass; and with micro-batches of the default size, between which the others have their turns.
"""

import argparse
import asyncio
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table
from serve_parts import Server, tiny_model
from serve_tenants import Tenant, passed

SEQUENCES, LENGTH = 64, 125
"""Sequences of a pass of the large tenant, and their tokens."""
WHOLE = f"actor.ppo_max_token_len_per_gpu={2 * SEQUENCES * LENGTH}"
console = Console(width=110)


class Large(Tenant):
    """A tenant that sends long passes, two at a time."""

    async def live(self, end: float) -> None:
        """Train until a time."""
        await self.open(rank=4)
        draw = random.Random(self.number)
        while time.monotonic() < end:
            await asyncio.gather(*(self._long(self.next(), draw) for _ in range(2)))
        await self.finish()

    async def _long(self, seq: int, draw: random.Random) -> None:
        raw = passed(self.model, seq, draw, [LENGTH] * SEQUENCES)
        await self.ask("forward_backward", raw)


class Small(Tenant):
    """A tenant that sends a short pass or a step, and pauses."""

    async def live(self, end: float) -> None:
        """Train until a time."""
        await self.open(rank=4)
        draw = random.Random(self.number)
        while time.monotonic() < end:
            await self.command(self.next(), draw)
            await asyncio.sleep(draw.uniform(0, 2 * self.pause))
        await self.finish()


async def waits(server: Server, large: int, small: int, seconds: float) -> tuple[Sequence[float], int]:
    """Seconds of each request of the small tenants, and the passes of the large ones."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=httpx.Limits(max_connections=None)) as http:
        others = [Small(n, http, pipelined=1, pause=2.0) for n in range(small)]
        long = [Large(small + n, http, pipelined=2, pause=0) for n in range(large)]
        end = time.monotonic() + seconds
        await asyncio.gather(*(one.live(end) for one in [*others, *long]))
    # The first requests of a tenant load the program's parts.
    return [wait for one in others for wait in one.waits[3:]], sum(len(one.waits) for one in long)


def main() -> None:
    """Run the three, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=19)
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--out", type=Path, default=Path("runs/serve-fair"))
    args = parser.parse_args()
    folder = args.out.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model, table = tiny_model(folder), Table("small tenants", "requests", "median wait, ms", "95% wait, ms", "passes")
    for name, large, settings in (("alone", 0, []), ("whole passes", 1, [WHOLE]), ("micro-batches", 1, [])):
        server = Server(model, folder / name.replace(" ", "-"), *settings)
        try:
            server.ready()
            found, passes = asyncio.run(waits(server, large, args.small, args.seconds))
        finally:
            server.kill()
        numbers = (1000 * np.quantile(found, part) for part in (0.5, 0.95))
        table.add_row(name, str(len(found)), *(f"{n:.0f}" for n in numbers), str(passes))
    console.print(table)


if __name__ == "__main__":
    main()
