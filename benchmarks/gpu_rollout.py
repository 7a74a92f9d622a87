"""agentrl's loop over an engine, and the same requests without the loop: a part of one_gpu.py.

    python benchmarks/gpu_rollout.py SPEC.json

Each load is CONCURRENTxTURNSxTOKENS, 512x4x128 for example: so many conversations at once in groups of 8, each of so
many turns of exactly so many tokens (with ~ at the end: half to three halves of it), with a tool that answers at once
and a reward for each. The spec names the settings, the loads and the file for the figures.
"""

import asyncio
import dataclasses
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from gpu_parts import REWARD, bandwidth, least_seconds, median, model_bytes

from agentrl.config import compose
from agentrl.core.resources import share
from agentrl.engines.engine import Generation, Sampling
from agentrl.rollout.scheduler import Scheduler
from agentrl.runtime.local import LocalRuntime
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
PROMPT = 256
"""About so many tokens of a first prompt, with the tool's schema."""
GROUP = 8
"""Conversations with one prompt."""
WARM_UP = 48
"""New tokens a turn, at least, of the conversations before the timed ones: kernels are compiled, connections made."""


@dataclasses.dataclass(frozen=True)
class Load:
    """So many conversations at once, each of so many turns of so many tokens."""

    concurrent: int
    turns: int
    new: int
    vary: bool = False

    @classmethod
    def parse(cls, text: str) -> "Load":
        """From 512x4x128, or 512x4x128~ for lengths that vary."""
        concurrent, turns, new = map(int, text.rstrip("~").split("x"))
        return cls(concurrent, turns, new, text.endswith("~"))

    def length(self, key: str, turn: int) -> int:
        """New tokens of a turn."""
        if not self.vary:
            return self.new
        return random.Random(f"{key} {turn}").randint(self.new // 2, self.new * 3 // 2)


class Scripted:
    """Samples on the real engine, and returns a tool call of the same length to the loop.

    So the work is fixed in advance, and every part of agentrl's loop still runs. `asked` stores the requests: prompt,
    new tokens; `first` and `last` the times of the first request and the last answer.
    """

    first = last = 0.0

    def __init__(self, engine: Any, encode: Any, load: Load) -> None:
        self.engine, self.load = engine, load
        self.call, self.end, self.filler = encode(CALL), encode(" That is all.<|im_end|>"), encode(" so")[0]
        self.asked: dict[str, list[tuple[list[int], int]]] = defaultdict(list)

    def open(self, key: str) -> None:
        self.engine.open(key)

    def release(self, key: str) -> None:
        self.engine.release(key)

    async def generate(self, ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        self.first = self.first or time.perf_counter()
        length = self.load.length(key, len(self.asked[key]))
        self.asked[key].append((list(ids), length))
        fixed = dataclasses.replace(sampling, max_new_tokens=length, ignore_eos=True)
        got = await self.engine.generate(ids, fixed, key=key)
        self.last = time.perf_counter()
        assert len(got.token_ids) == length
        said = self.call if len(self.asked[key]) < self.load.turns else self.end
        assert len(said) <= length, "turns are too short for a tool call"
        said = [self.filler] * (length - len(said)) + said
        return dataclasses.replace(got, token_ids=said, finish_reason="stop", versions=())


Asked = Sequence[Sequence[tuple[list[int], int]]]
"""The requests of each conversation: prompt, new tokens."""


@dataclasses.dataclass(frozen=True)
class Round:
    """Agentrl's loop over a load once: seconds in all, before the first request, after the last answer, and of what a
    run does beside the update that follows."""

    seconds: float
    before: float
    after: float
    beside: float
    asked: Asked


class Bench:
    """A runtime and its engine under the loads."""

    def __init__(self, runtime: LocalRuntime, engine_name: str) -> None:
        self.runtime, self.engine_name = runtime, engine_name
        self.engine: Any = runtime.rollouts.engine

    def loop(self, load: Load) -> Round:
        """Agentrl's loop, from rows to rewards."""
        self.runtime.publish_weights(0)  # empties the server's cache
        scripted: Any = Scripted(self.engine, self._encode, load)
        scheduler = self.runtime.rollouts.scheduler
        assert isinstance(scheduler, Scheduler)
        scheduler.max_concurrent = load.concurrent
        scheduler.env = dataclasses.replace(self.runtime.rollouts.env, engine=scripted)
        group = min(GROUP, load.concurrent)
        rows = [self._row(i) for i in range(load.concurrent // group)]
        start = time.perf_counter()
        work = scheduler.run(rows, n=group, sampling=Sampling(10_000), tag="load", compared=False)
        done = self.runtime.runner.run(work)
        end = time.perf_counter()
        self.runtime.rollouts.compare(done)
        beside = time.perf_counter() - end
        assert all(t.turns == load.turns and t.reward is not None for t in done), "a trajectory went astray"
        asked = list(scripted.asked.values())
        return Round(end - start, scripted.first - start, end - scripted.last, beside, asked)

    def bare(self, asked: Asked) -> float:
        """Seconds of the same requests without the loop, all conversations at once."""
        self.runtime.publish_weights(0)
        if self.engine_name == "hf":
            return self.runtime.runner.run(in_process(self.engine, asked))
        return self.runtime.runner.run(over_http(self.engine_name, self.engine.pool.replicas[0].url, asked))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.runtime.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _row(self, i: int) -> Row:
        words = " so" * (PROMPT - 110)
        return Row(f"row:{i}", [{"role": "user", "content": f"Number {i}.{words}"}])


async def in_process(engine: Any, asked: Asked) -> float:
    """Seconds of the requests on an engine of this process."""

    async def one(key: str, chain: Sequence[tuple[list[int], int]]) -> None:
        for ids, new in chain:
            await engine.generate(ids, Sampling(new, ignore_eos=True), key=key)
        engine.release(key)

    start = time.perf_counter()
    await asyncio.gather(*(one(str(i), chain) for i, chain in enumerate(asked)))
    return time.perf_counter() - start


async def over_http(engine: str, url: str, asked: Asked) -> float:
    """Seconds of the requests on a server."""
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        async def one(chain: Sequence[tuple[list[int], int]]) -> None:
            for ids, new in chain:
                path, body = request(engine, ids, new)
                async with session.post(url + path, json=body) as response:
                    assert response.status == 200, await response.text()
                    await response.json()

        start = time.perf_counter()
        await asyncio.gather(*map(one, asked))
        return time.perf_counter() - start


def request(engine: str, ids: list[int], new: int) -> tuple[str, dict[str, Any]]:
    """Path and body of a request."""
    if engine == "sglang":
        sampling = {"max_new_tokens": new, "ignore_eos": True, "temperature": 1.0}
        return "/generate", {"input_ids": ids, "return_logprob": True, "sampling_params": sampling}
    drawn = {"max_tokens": new, "ignore_eos": True, "temperature": 1.0, "logprobs": 0}
    names = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    return "/v1/completions", {"model": "policy", "prompt": ids, **drawn, **names}


def settings(spec: dict[str, Any], folder: Path) -> list[str]:
    """The settings of a runtime for all loads."""
    loads = [Load.parse(text) for text in spec["loads"]]
    (folder / "note.py").write_text(TOOL)
    (folder / "reward.py").write_text(REWARD)
    longest = max(load.turns * (load.new * (2 if load.vary else 1) + 64) for load in loads)
    return [
        f"trainer.default_local_dir={folder / 'run'}",
        f"model.chat_template={share() / TEMPLATE}",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        "reward.custom_reward_function.name=score",
        f"data.max_prompt_length={2 * PROMPT}",
        f"data.max_response_length={longest}",
        "rollout.multi_turn.enable=true",
        f"rollout.multi_turn.function_tool_path={folder / 'note.py'}",
        f"data.train_batch_size={max(load.concurrent for load in loads) // GROUP or 1}",
        f"rollout.n={GROUP}",
        *spec["settings"],
    ]


def measure(bench: Bench, load: Load, repeats: int, costs: tuple[int, int, float]) -> dict[str, float]:
    """Tokens/s of both, their ratio, and that of the loop to the limit of the memory."""
    warm_up = dataclasses.replace(load, new=max(WARM_UP, load.new // 8), vary=False)
    bench.bare(bench.loop(warm_up).asked)
    pairs = [(loop := bench.loop(load), bench.bare(loop.asked)) for _ in range(repeats)]
    ours, theirs = median(loop.seconds for loop, _ in pairs), median(bare for _, bare in pairs)
    chains = [[(len(ids), new) for ids, new in chain] for chain in pairs[-1][0].asked]
    tokens, least = sum(new for chain in chains for _, new in chain), least_seconds(chains, load.concurrent, *costs)
    return {
        "tokens/s": tokens / ours,
        "bare tokens/s": tokens / theirs,
        "over bare": theirs / ours,
        "over limit": least / ours,
        "bare over limit": least / theirs,
        "before the first request, s": median(loop.before for loop, _ in pairs),
        "after the last answer, s": median(loop.after for loop, _ in pairs),
        "templates, beside the update, s": median(loop.beside for loop, _ in pairs),
    }


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    folder, out = Path(spec["folder"]), Path(spec["out"])
    begun = time.perf_counter()
    runtime = LocalRuntime(compose(settings(spec, folder), checks=()))
    found: dict[str, float] = {}
    try:
        costs = (*model_bytes(runtime.learner.model.config), spec.get("bandwidth") or bandwidth(runtime.device))
        found |= {"bandwidth GB/s": costs[2] / 1e9}
        runtime.publish_weights(0)
        found["start"] = time.perf_counter() - begun
        for text in spec["loads"]:
            figures = measure(Bench(runtime, spec["engine"]), Load.parse(text), spec["repeats"], costs)
            found |= {f"{text} {name}": value for name, value in figures.items()}
            out.write_text(json.dumps(found))
    finally:
        runtime.close()


if __name__ == "__main__":
    main()
