"""CPU time per turn and memory per conversation, from 256 to 16,384 conversations at once.

The engine answers after a delay and the tool waits. Everything between them is agentrl's own: agent loop, chat
template, tool calls, ledgers and their checks, rewards, and with workers the return of trajectories to the controller.

    python benchmarks/rollout_workers.py                                 # all sizes, without and with workers
    python benchmarks/rollout_workers.py --sizes 256 16384 --workers 0 --turns 2   # some of them, and shorter

Each size runs in a process of its own. CPU time is that of all processes, so a busy machine changes it little.
"""

import argparse
import asyncio
import json
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.core.loop_thread import LoopThread
from agentrl.core.resources import share
from agentrl.engines.engine import Generation, Sampling
from agentrl.rollout.rollouts import Rollouts
from agentrl.tasks.models.tiny import train_tokenizer
from agentrl.trajectory.row import Row

SIZES = (256, 1024, 4096, 16384)
GROUP = 8
CALL = '<tool_call>{{"name": "search", "arguments": {{"query": "{}"}}}}</tool_call><|im_end|>'
WORDS = " ".join(f"word{i % 50}" for i in range(60))
TOOL = """
import asyncio, random
from agentrl.tools import BaseTool


class Search(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        await asyncio.sleep(random.uniform(0.5, 1.5))
        return "{words}"
"""
YAML = """
tools:
  - class_name: waiting.Search
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: search
        description: Search.
        parameters: {type: object, properties: {query: {type: string}}, required: [query]}
"""
REWARD = "def compute_score(data_source, solution_str, ground_truth, **_):\n    return float(len(solution_str) % 2)\n"


class DelayEngine:
    """Answers with tool calls, after a delay, and says something at the end."""

    def __init__(self, tokenizer: Any, turns: int) -> None:
        self.last = turns
        self.call = tokenizer.encode(CALL.format(WORDS), add_special_tokens=False)
        self.answer = tokenizer.encode(f"{WORDS}<|im_end|>", add_special_tokens=False)
        self.turns, self.under_way, self.most = Counter[str](), set[str](), 0

    async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        self.under_way.add(key)
        self.most = max(self.most, len(self.under_way))
        await asyncio.sleep(random.uniform(0.5, 1.5))
        self.turns[key] += 1
        ids = self.call if self.turns[key] < self.last else self.answer
        return Generation(ids.copy(), [-0.5] * len(ids), "stop", 1)

    def open(self, key: str) -> None:
        """Nothing to prepare."""

    def release(self, key: str) -> None:
        self.under_way.discard(key)
        self.turns.pop(key, None)

    async def health(self) -> dict[str, float]:
        """No figures."""
        return {}

    async def start(self) -> None:
        """Nothing to start."""

    async def close(self) -> None:
        """Nothing to stop."""

    async def update_weights(self, version: int) -> None:
        """There are none."""

    async def abort(self) -> None:
        """Nothing to end."""


@dataclass
class DelayLink:
    """An engine in the worker itself."""

    model: str
    turns: int
    engine: Any = None

    def open(self, lost: Any) -> None:
        from transformers import AutoTokenizer

        self.engine = DelayEngine(AutoTokenizer.from_pretrained(self.model), self.turns)

    async def set(self, state: Any) -> None:
        """Requests never wait."""


def prepared(folder: Path, conversations: int, workers: int, turns: int) -> Config:
    """Settings for a model that is only a tokenizer."""
    template = (share() / "configs/templates/chatml_tools_compact.jinja").read_text()
    train_tokenizer([WORDS, CALL.format(WORDS)], 600, template).save_pretrained(folder)
    (folder / "waiting.py").write_text(TOOL.format(words=WORDS))
    (folder / "tools.yaml").write_text(YAML)
    (folder / "reward.py").write_text(REWARD)
    return compose(
        [
            f"model.path={folder}",
            "rollout.multi_turn.enable=true",
            f"rollout.multi_turn.tool_config_path={folder / 'tools.yaml'}",
            f"rollout.multi_turn.max_assistant_turns={turns + 1}",
            f"reward.custom_reward_function.path={folder / 'reward.py'}",
            f"rollout.n={GROUP}",
            f"rollout.max_concurrent_trajectories={conversations}",
            f"rollout.agent.num_workers={workers}",
            "rollout.trajectory_timeout=3600",
            "data.max_prompt_length=1024",
            "data.max_response_length=8192",
        ],
        checks=(),
    )


def used() -> dict[str, float]:
    """CPU seconds, present and largest memory in bytes of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory = {name: 1024 * int(status[name].split()[0]) for name in ("VmRSS", "VmHWM")}
    return {"cpu": time.process_time(), **memory}


def one(conversations: int, workers: int, turns: int, folder: Path) -> dict[str, float]:
    """The figures of one size."""
    from transformers import AutoTokenizer

    config = prepared(folder, conversations, workers, turns)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [Row(f"r:{i}", [{"role": "user", "content": f"{WORDS} {WORDS} {i}"}]) for i in range(conversations // GROUP)]
    with ExitStack() as stack:
        runner = stack.enter_context(closing(LoopThread()))
        engine: Any = DelayEngine(tokenizer, turns)
        measure: Any = list  # without workers there is nothing else to measure
        if workers:
            engine, measure = spread(config, engine, DelayLink(str(folder), turns), stack)
            runner.run(engine.start())
        handles = engine.handles if workers else ()
        rollouts = Rollouts(config, tokenizer, engine, runner.run, workers=handles)
        stack.callback(rollouts.close)
        rollouts.sample(rows[:4], 1, lambda _: None)  # fills caches
        before = [used(), *measure()]
        start = time.monotonic()
        made = rollouts.sample(rows, 2, lambda _: None)
        wall = time.monotonic() - start
        after = [used(), *measure()]
    assert all(t.turns == turns and t.reward is not None for t in made), Counter(t.error for t in made)
    return figures(before, after, conversations, turns) | {"wall": wall}


def spread(config: Config, own: Any, link: Any, stack: ExitStack) -> Any:
    """An engine over workers, and a function that measures them."""
    import ray

    from agentrl.rollout.user_objects import NO_OBJECTS
    from agentrl.runtime.ray.cluster import connect
    from agentrl.runtime.ray.rollout_workers import start_rollout_workers
    from agentrl.runtime.ray.store import RayStore

    config.ray_init.address, config.ray_init.num_cpus = "local", 2
    connect(config.ray_init, stack)
    engine = start_rollout_workers(config, own, link, NO_OBJECTS, RayStore(), stack)

    def measure() -> list[dict[str, float]]:
        return ray.get([worker.actor.__ray_call__.remote(lambda _: used()) for worker in engine.handles])

    return engine, measure


def figures(
    before: list[dict[str, float]], after: list[dict[str, float]], conversations: int, turns: int
) -> dict[str, float]:
    """By turn and by conversation; the controller apart where there are workers."""
    cpu = [1e3 * (b["cpu"] - a["cpu"]) / conversations / turns for a, b in zip(before, after, strict=True)]
    memory = [(b["VmHWM"] - a["VmRSS"]) / conversations / 1024 for a, b in zip(before, after, strict=True)]
    return {
        "controller_ms": cpu[0],
        "workers_ms": sum(cpu[1:]),
        "controller_kib": memory[0],
        "workers_kib": sum(memory[1:]),
    }


def measured(conversations: int, workers: int, turns: int) -> dict[str, float]:
    """The figures of one size, in a process of its own."""
    command = [sys.executable, __file__, "--one", str(conversations), "--workers", str(workers)]
    command += ["--turns", str(turns)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(sizes: Sequence[int], counts: Sequence[int], turns: int) -> None:
    """Print a line for each size."""
    sys.stdout.write("CPU ms a turn and KiB a conversation: controller + workers\n")
    sys.stdout.write(f"workers  conversations  {'CPU ms a turn':>16}  {'KiB a conversation':>18}  wall s\n")
    for workers in counts:
        for size in sizes:
            f = measured(size, workers, turns)
            cpu, kib = (f"{f[f'controller_{unit}']:.3f} + {f[f'workers_{unit}']:.3f}" for unit in ("ms", "kib"))
            sys.stdout.write(f"{workers:7}  {size:13}  {cpu:>16}  {kib:>18}  {f['wall']:6.1f}\n")
            sys.stdout.flush()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments.add_argument("--workers", type=int, nargs="+", default=[0, 4])
    arguments.add_argument("--turns", type=int, default=4)
    arguments.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = arguments.parse_args()
    logging.disable()
    if args.one is None:
        table(args.sizes, args.workers, args.turns)
        return
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(json.dumps(one(args.one, args.workers[0], args.turns, Path(folder))) + "\n")


if __name__ == "__main__":
    main()
