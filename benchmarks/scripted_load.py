"""agentrl's multi-turn loop over a server, and the same requests without the loop, for engine_gpu.py."""

import argparse
import asyncio
import dataclasses
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from agentrl.engines.engine import Generation, Sampling
from agentrl.runtime import LocalRuntime
from agentrl.trajectory.row import Row

TOOL = '''
from agentrl.tools import function_tool


@function_tool
async def note(text: str) -> str:
    """Take a note.

    Args:
        text: What to note.
    """
    return "noted: " + text
'''
CALL = '\n<tool_call>{"name": "note", "arguments": {"text": "one"}}</tool_call><|im_end|>'
TEMPLATE = "configs/templates/chatml_tools_terse.jinja"


class Scripted:
    """Samples on the real engine, and returns a tool call of the same length to the loop.

    So the work is fixed in advance, and every part of agentrl's loop still runs. `asked` stores the requests: prompt,
    new tokens.
    """

    def __init__(self, engine: Any, encode: Any, turns: int, new: int, *, vary: bool) -> None:
        """`vary`: lengths vary around `new`."""
        self.engine, self.turns, self.new, self.vary = engine, turns, new, vary
        self.call, self.last, self.filler = encode(CALL), encode(" That is all.<|im_end|>"), encode(" so")[0]
        assert max(len(self.call), len(self.last)) <= new // 2, "turns are too short for a tool call"
        self.asked: dict[str, list[tuple[list[int], int]]] = defaultdict(list)

    def open(self, key: str) -> None:
        self.engine.open(key)

    def release(self, key: str) -> None:
        self.engine.release(key)

    async def generate(self, ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        draw = random.Random(f"{key} {len(self.asked[key])}")
        length = draw.randint(self.new // 2, self.new * 3 // 2) if self.vary else self.new
        self.asked[key].append((ids, length))
        fixed = dataclasses.replace(sampling, max_new_tokens=length, ignore_eos=True)
        got = await self.engine.generate(ids, fixed, key=key)
        assert len(got.token_ids) == length
        said = self.call if len(self.asked[key]) < self.turns else self.last
        said = [self.filler] * (length - len(said)) + said
        return dataclasses.replace(got, token_ids=said, finish_reason="stop", versions=())


async def bare(args: argparse.Namespace, url: str, chains: list[list[tuple[list[int], int]]]) -> float:
    """Seconds for the same requests without the loop, with as many chains at once."""
    waiting = iter(chains)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        async def lane() -> None:
            for chain in waiting:
                for ids, new in chain:
                    path, body = request(args.engine, ids, new)
                    async with session.post(url + path, json=body) as response:
                        assert response.status == 200, await response.text()
                        await response.json()

        start = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(args.concurrent)))
        return time.perf_counter() - start


def request(engine: str, ids: list[int], new: int) -> tuple[str, dict[str, Any]]:
    """A request of the load script: path and body."""
    if engine == "sglang":
        sampling = {"max_new_tokens": new, "ignore_eos": True, "temperature": 1.0}
        return "/generate", {"input_ids": ids, "return_logprob": True, "sampling_params": sampling}
    drawn = {"max_tokens": new, "ignore_eos": True, "temperature": 1.0, "logprobs": 0}
    names = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    return "/v1/completions", {"model": "policy", "prompt": ids, **drawn, **names}


def server_cpu(engine: Any) -> float:
    """Seconds of CPU that the first server's processes have used: what a busy machine does not change much."""
    server = engine.pool.replicas[0].server
    if server is None or server._process is None:
        return 0.0
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == server._process.pid:  # its session
                total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def compare(runtime: LocalRuntime, args: argparse.Namespace, *, vary: bool) -> Iterator[tuple[str, str]]:
    """Run both, several times; gives what was measured and the figure."""
    story = "Take notes, please, as many as you can. " * 12
    rows = [
        Row(f"row:{i}", [{"role": "user", "content": f"Number {i}. {story}"}])
        for i in range(args.concurrent * args.waves)
    ]
    engine: Any = runtime.engine
    scheduler = runtime.rollouts.scheduler
    scheduler.max_concurrent = args.concurrent
    lengths = f"{args.new // 2} to {args.new * 3 // 2}" if vary else f"exactly {args.new}"
    for i in range(args.repeats + 1):
        runtime.publish_weights(0)  # empties the server's cache
        encode = lambda text: runtime.tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
        scripted: Any = Scripted(engine, encode, args.turns, args.new, vary=vary)
        scheduler.env = dataclasses.replace(runtime.rollouts.env, engine=scripted)
        start, cpu, served = time.perf_counter(), time.process_time(), server_cpu(engine)
        done = runtime.runner.run(scheduler.run(rows, n=1, sampling=Sampling(10_000), tag="load"))
        ours, cpu = time.perf_counter() - start, time.process_time() - cpu
        served = server_cpu(engine) - served
        chains = list(scripted.asked.values())
        assert all(t.turns == args.turns for t in done), "a trajectory went astray"
        runtime.publish_weights(0)
        served_bare, cpu_bare = server_cpu(engine), time.process_time()
        theirs = runtime.runner.run(bare(args, engine.pool.replicas[0].url, chains))
        served_bare, cpu_bare = server_cpu(engine) - served_bare, time.process_time() - cpu_bare
        tokens = sum(new for chain in chains for _, new in chain)
        speeds = f"{tokens / ours:,.0f} tokens/s, the bare server {tokens / theirs:,.0f}: {theirs / ours:.3f}"
        what = f"{args.concurrent} at once, {args.turns} turns of {lengths} tokens"
        turns = sum(map(len, chains))
        spent = f"CPU a turn: client {cpu / turns * 1e3:.2f} ms, bare {cpu_bare / turns * 1e3:.2f}"
        spent += f"; server {served / turns * 1e3:.0f} ms, bare {served_bare / turns * 1e3:.0f}"
        yield what if i else "the same to warm up", f"{speeds}; {spent}"
