"""Many tenants of one `agentrl serve` with simulated traffic: requests of each, their waits, and memory over time.

    python benchmarks/serve_tenants.py --tenants 20 --minutes 15

Each tenant has a key, an adapter and a habit: passes and steps one by one with pauses, or as a pipeline of 32 commands,
samples of new weights, checkpoints under the same name. A pipeline may not make the others wait: each waits for at most
one command of every other model, and for samples, which have half of the time.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table
from serve_parts import Server, new_server

from agentrl.serve.wire import MESSAGES, PROTOBUF

LOOKS = 15
"""Looks at the server's memory."""
console = Console(width=110)


@dataclass
class Tenant:
    """A client and its habit."""

    number: int
    http: httpx.AsyncClient
    pipelined: int
    """Commands at once."""
    pause: float
    """Longest seconds between two rounds."""
    waits: list[float] = field(default_factory=list)
    """Seconds of each request until its answer."""
    seq: int = 0
    samples: int = 0

    async def live(self, end: float) -> None:
        """Train and sample until a time."""
        draw = random.Random(self.number)
        await self.open(rank=4)
        rounds = 0
        while time.monotonic() < end:
            await asyncio.gather(*(self.command(self.next(), draw) for _ in range(self.pipelined)))
            rounds += 1
            if rounds % 4 == 0:
                await self.sample(draw)
            if rounds % 16 == 0:
                await self.save({"path": "last", "overwrite": True}, "save_weights")
            await asyncio.sleep(draw.uniform(0, self.pause))
        await self.finish()

    async def open(self, rank: int) -> None:
        """Begin a session with a model."""
        self.session = (await self._post("create_session"))["session_id"]
        body = {"session_id": self.session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": rank}}
        self.model = (await self.ask("create_model", body))["model_id"]

    async def finish(self) -> None:
        """End the session."""
        await self._post(f"sessions/{self.session}/finish")

    def next(self) -> int:
        """The number of the next command."""
        self.seq += 1
        return self.seq

    async def command(self, seq: int, draw: random.Random) -> None:
        """Send a short pass, or a step."""
        if seq % 3 == 0:
            body = {"model_id": self.model, "seq_id": seq, "adam_params": {"learning_rate": 1e-3}}
            await self.ask("optim_step", body)
        else:
            lengths = [draw.randrange(8, 64) for _ in range(2)]
            await self.ask("forward_backward", passed(self.model, seq, draw, lengths))

    async def save(self, body: dict[str, Any], path: str) -> dict[str, Any]:
        given = {"model_id": self.model, "seq_id": self.next()} | body
        found: dict[str, Any] = await self.ask(path, given)
        return found

    async def sample(self, draw: random.Random) -> None:
        saved = await self.save({"sampling_session_seq_id": 1}, "save_weights_for_sampler")
        prompt = {"chunks": [{"tokens": [draw.randrange(3, 300) for _ in range(16)]}]}
        body = {"prompt": prompt, "num_samples": 4, "sampling_params": {"max_tokens": 16, "stop": []}}
        self.samples += 1
        given = body | {"sampling_session_id": saved["sampling_session_id"], "seq_id": self.samples}
        found = await self.ask("asample", given)
        assert all(len(one["tokens"]) == 16 for one in found["sequences"]), found

    async def ask(self, path: str, body: dict[str, Any] | bytes) -> Any:
        """The answer to a request, whose wait is counted."""
        begun = time.monotonic()
        submitted = await self._post(path, body)
        while isinstance(answer := await self._post("retrieve_future", submitted), dict) and "queue_state" in answer:
            pass
        assert "error" not in answer, answer
        self.waits.append(time.monotonic() - begun)
        return answer

    async def _post(self, path: str, body: dict[str, Any] | bytes | None = None) -> Any:
        headers = {"x-api-key": f"tml-{self.number}", "accept": "application/json"}
        if raw := isinstance(body, bytes):
            headers["content-type"] = PROTOBUF
        given: dict[str, Any] = {"content": body} if raw else {"json": body or {}}
        answer = await self.http.post(f"/api/v1/{path}", headers=headers, **given)
        assert answer.status_code in (200, 408), answer.text
        return answer.json() if "json" in answer.headers["content-type"] else {}


def passed(model: str, seq: int, draw: random.Random, lengths: Sequence[int]) -> bytes:
    """A pass over sequences of these lengths."""
    message = MESSAGES["ForwardBackwardRequest"](model_id=model, seq_id=seq, loss_fn="cross_entropy")
    for length in lengths:
        datum, ids = message.data.add(), [draw.randrange(3, 300) for _ in range(length)]
        datum.model_input.add().encoded_text.tokens = np.array(ids, "<i4").tobytes()
        columns = {"target_tokens": (np.array(ids, "<i8"), 2), "weights": (np.ones(len(ids), "<f4"), 1)}
        for name, (column, dtype) in columns.items():
            datum.loss_fn_inputs[name].dense = column.tobytes()
            datum.loss_fn_inputs[name].dtype = dtype
    return bytes(message.SerializeToString())


async def traffic(server: Server, tenants: int, seconds: float) -> tuple[list[Tenant], list[float]]:
    """The tenants at their end, and the server's memory in MB, at times of the same distance."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=httpx.Limits(max_connections=None)) as http:
        own = [
            Tenant(n, http, pipelined=32 if n % 5 == 0 else 3, pause=0.0 if n % 5 == 0 else 2.0) for n in range(tenants)
        ]
        lives = asyncio.gather(*(one.live(time.monotonic() + seconds) for one in own))
        memory = []
        while not lives.done():
            await asyncio.wait([lives], timeout=seconds / LOOKS)
            memory.append(server.memory())
        await lives
    return own, memory


def main() -> None:
    """Run the traffic, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--out", type=Path, default=Path("runs/serve-tenants"))
    args = parser.parse_args()
    with new_server(args.out.resolve()) as server:
        tenants, memory = asyncio.run(traffic(server, args.tenants, 60 * args.minutes))
    table = Table("tenant", "commands at once", "requests", "mean wait, s", "99% wait, s", "longest wait, s")
    for one in tenants:
        waits = np.array(one.waits)
        numbers = waits.mean(), np.quantile(waits, 0.99), waits.max()
        table.add_row(str(one.number), str(one.pipelined), str(len(waits)), *(f"{n:.2f}" for n in numbers))
    console.print(table)
    console.print(
        f"memory of the server, MB, every {60 * args.minutes / LOOKS:.0f} s: {[round(one) for one in memory]}"
    )


if __name__ == "__main__":
    main()
