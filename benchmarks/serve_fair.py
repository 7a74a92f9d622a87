"""Waits of small tenants of one `agentrl serve` beside one whose passes are long.

    python benchmarks/serve_fair.py             # 2 minutes; a trainer that sleeps: busy cores do not matter
    python benchmarks/serve_fair.py --computed  # a server with a tiny model; 3 minutes on two idle cores

The large tenant always has passes of 64 sequences of 125 tokens; 19 small ones send two short sequences or a step now
and then. Three times: without the large tenant; with it, where a micro-batch has all its tokens, so that nothing comes
between; and with micro-batches of the default size, between which the others have their turns.
"""

import argparse
import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table
from serve_parts import Server, tiny_model
from serve_tenants import Tenant, passed

from agentrl.serve.app import App
from agentrl.serve.contract import Datum, PassResult
from agentrl.serve.service import Service

SEQUENCES, LENGTH = 64, 125
"""Sequences of a pass of the large tenant, and their tokens."""
WHOLE, DEFAULT = 2 * SEQUENCES * LENGTH, 2048
"""Tokens of a micro-batch."""
SPEED, STEP = 4000, 0.01
"""Tokens/s of the trainer that sleeps, and seconds of an optimizer step."""
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


class Sleeping:
    """A trainer, and samplers, that take time and compute nothing."""

    rank = topk = 64

    def __init__(self, tokens: int) -> None:
        """`tokens` of a micro-batch."""
        self.tokens, self.passes = tokens, dict[str, Iterator[PassResult | None]]()

    def create(self, model: str, shape: Any) -> None:
        """Nothing."""

    def remove(self, model: str) -> None:
        """Nothing."""

    def begin(self, model: str, *given: Any, backward: bool) -> None:
        """Begin a pass."""
        self.passes[model] = self.forward_backward(model, *given, backward=backward)

    def proceed(self, model: str) -> PassResult | None:
        """Sleep for a micro-batch."""
        return next(self.passes[model])

    def forward_backward(
        self, model: str, data: Sequence[Datum], loss: str, settings: Any, *, backward: bool
    ) -> Iterator[PassResult | None]:
        """Sleep for each micro-batch."""
        left = sum(len(datum.ids) for datum in data)
        while left > self.tokens:
            time.sleep(self.tokens / SPEED)
            left -= self.tokens
            yield None
        time.sleep(left / SPEED)
        yield PassResult([np.zeros(len(datum.ids), np.float32) for datum in data], {"loss:sum": 0.0})

    def optim_step(self, model: str, adam: Any) -> dict[str, float]:
        """Sleep."""
        time.sleep(STEP)
        return {}

    def save(self, model: str, folder: Path) -> None:
        """Write an empty folder."""
        folder.mkdir(parents=True)

    def training(self) -> AbstractAsyncContextManager[None]:
        """There are no samples."""
        return nullcontext()

    async def close(self) -> None:
        """Nothing."""


@asynccontextmanager
async def asleep(folder: Path, tokens: int) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service whose trainer sleeps."""
    parts: Any = Sleeping(tokens)
    await asyncio.to_thread(folder.mkdir)
    service = Service(parts, parts, Path("/models/of/tiny"), 32.0, (2,), folder)
    await service.start()
    transport = httpx.ASGITransport(App(service, ""))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http:
        yield http
    await service.close()


@asynccontextmanager
async def computed(folder: Path, tokens: int) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with a tiny model."""
    server = Server(tiny_model(folder.parent), folder, f"actor.ppo_max_token_len_per_gpu={tokens}")
    try:
        await asyncio.to_thread(server.ready)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
            yield http
    finally:
        server.kill()


async def waits(http: httpx.AsyncClient, large: int, small: int, seconds: float) -> tuple[Sequence[float], int]:
    """Seconds of each request of the small tenants, and the passes of the large ones."""
    others = [Small(n, http, pipelined=1, pause=2.0) for n in range(small)]
    long = [Large(small + n, http, pipelined=2, pause=0) for n in range(large)]
    end = time.monotonic() + seconds
    await asyncio.gather(*(one.live(end) for one in [*others, *long]))
    # The first requests of a tenant load the program's parts.
    return [wait for one in others for wait in one.waits[3:]], sum(len(one.waits) for one in long)


async def measure(args: argparse.Namespace, folder: Path) -> Table:
    """The table of the three."""
    table = Table("small tenants", "requests", "median wait, ms", "95% wait, ms", "of alone", "long passes")
    opened, alone = computed if args.computed else asleep, 0.0
    for name, large, tokens in (("alone", 0, DEFAULT), ("whole passes", 1, WHOLE), ("micro-batches", 1, DEFAULT)):
        async with opened(folder / name.replace(" ", "-"), tokens) as http:
            found, passes = await waits(http, large, args.small, args.seconds)
        median, late = (1000 * float(np.quantile(found, part)) for part in (0.5, 0.95))
        alone = alone or late
        table.add_row(name, str(len(found)), f"{median:.0f}", f"{late:.0f}", f"{late / alone:.1f}", str(passes))
    return table


def main() -> None:
    """Run the three, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=19)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--computed", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/serve-fair"))
    args = parser.parse_args()
    folder = args.out.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    console.print(asyncio.run(measure(args, folder)))


if __name__ == "__main__":
    main()
