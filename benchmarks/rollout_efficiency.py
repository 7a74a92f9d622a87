"""The scheduler's wall time over the ideal, and the framework's CPU time per turn.

The engine has a fixed token speed and costs nothing, so agentrl's own time remains: chat format, ledger, tool runner,
scheduler. The ideal wall time is the longest chain (a trajectory's own generation
and tool latencies, hung tools counted with their timeout), or all tokens over the engine's speed, whichever is
larger.

    python benchmarks/rollout_efficiency.py --trajectories 256 1024
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.chat import Chat
from agentrl.config.schema import Reward
from agentrl.core.resources import share
from agentrl.engines.engine import Generation, Sampling
from agentrl.interactions import load_interactions
from agentrl.rewards.function import RewardFn
from agentrl.rewards.scorer import Scorer
from agentrl.rollout.episode import Limits
from agentrl.rollout.loops import RolloutContext, ToolAgent
from agentrl.rollout.scheduler import Scheduler
from agentrl.tasks.models.tiny import train_tokenizer
from agentrl.tools import load_tools
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory

TOOL = """
import asyncio

from agentrl.tools import BaseTool


class WaitTool(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        await asyncio.sleep(parameters["seconds"])
        return f"waited {parameters['seconds']:.3f} s, and nothing much happened", 0.0, {}
"""
TOOL_YAML = """
tools:
  - class_name: wait.WaitTool
    config: {type: native, timeout: TIMEOUT, on_error: tell_model}
    tool_schema:
      type: function
      function:
        name: wait
        description: Waits.
        parameters: {type: object, properties: {seconds: {type: number}}, required: [seconds]}
"""
TIMEOUT = 5.0
HUNG = 1000.0
TEMPLATE = "configs/templates/chatml_tools_compact.jinja"


@dataclass
class FixedSpeedEngine:
    """Samples scripted tokens at `speed` tokens/s a request, `slots` requests at a time; costs nothing."""

    scripts: dict[str, list[list[int]]]
    speed: float
    slots: asyncio.Semaphore
    turn: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def open(self, key: str) -> None: ...

    def release(self, key: str) -> None: ...

    async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        ids = self.scripts[key][self.turn[key]]
        self.turn[key] += 1
        async with self.slots:
            await asyncio.sleep(len(ids) / self.speed)
        return Generation(ids, [-0.5] * len(ids), "stop", 0)


@dataclass
class Plan:
    """The plan of one trajectory: a tool call with a latency per turn, then an answer."""

    latencies: list[float]
    script: list[list[int]]

    def chain(self, speed: float) -> float:
        """Seconds it takes alone."""
        return sum(len(ids) for ids in self.script) / speed + sum(min(x, TIMEOUT) for x in self.latencies)

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids in self.script)


def latency(rng: random.Random, quick: bool) -> float:
    """Lognormal around half a second with one hung call in a hundred; or nothing at all."""
    if quick:
        return 0.0
    return HUNG if rng.random() < 0.01 else rng.lognormvariate(-0.69, 0.5)


def make_plan(rng: random.Random, chat: Chat, turns: int, *, quick: bool) -> Plan:
    latencies = [latency(rng, quick) for _ in range(turns - 1)]
    encode = lambda text: chat.tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    calls = [
        f"I wait.<tool_call>{json.dumps({'name': 'wait', 'arguments': {'seconds': x}})}</tool_call>" for x in latencies
    ]
    return Plan(latencies, [encode(text + "<|im_end|>") for text in [*calls, "That is all there is to say."]])


def load_wait_tool(folder: Path) -> Any:
    (folder / "wait.py").write_text(TOOL)
    (folder / "wait.yaml").write_text(TOOL_YAML.replace("TIMEOUT", str(TIMEOUT)))
    return load_tools(str(folder / "wait.yaml"), None, max_response=256, unit="characters", side="middle")


async def measure(
    chat: Chat, tools: Any, *, trajectories: int, turns: int, slots: int, speed: float, quick: bool, seed: int = 0
) -> dict[str, float]:
    """One run; `quick` makes tools instant and the engine infinitely fast, to see what the framework costs."""
    rng = random.Random(seed)
    rows = [Row(f"row:{i}", [{"role": "user", "content": f"Wait for me, number {i}."}]) for i in range(trajectories)]
    plans = {f"bench/{row.uid}/0": make_plan(rng, chat, turns, quick=quick) for row in rows}
    engine = FixedSpeedEngine({k: p.script for k, p in plans.items()}, speed, asyncio.Semaphore(slots))
    limits = Limits(prompt_length=4096, response_length=100_000, model_length=100_000)
    env = RolloutContext(engine, chat, tools, load_interactions(None), limits)  # type: ignore[arg-type]
    scorer = Scorer(
        RewardFn(score, "score", {}, frozenset()),
        Reward(tool_weight=0.0, interaction_weight=0.0, num_workers=8, timeout=10),
        chat.decode,
    )
    scheduler = Scheduler(
        env=env, loop_for=lambda _: ToolAgent, scorer=scorer, max_concurrent=trajectories, timeout=600, retries=0
    )
    wall, cpu = time.perf_counter(), time.process_time()
    done: list[Trajectory] = await scheduler.run(rows, n=1, sampling=Sampling(10_000), tag="bench")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert all(t.turns == turns and t.outcome is not Outcome.INFRA_ERROR for t in done), "a trajectory went astray"
    longest = max(plan.chain(speed) for plan in plans.values())
    budget = sum(plan.tokens for plan in plans.values()) / (speed * slots)
    return {"wall": wall, "ideal": max(longest, budget), "cpu_ms": 1e3 * cpu / (trajectories * turns)}


def score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    return float(len(solution_str) > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--speed", type=float, default=40.0, help="tokens/s of one request")
    args = parser.parse_args()
    texts = [TOOL, TOOL_YAML, "I wait. That is all there is to say. Wait for me, number 0."]
    tokenizer = train_tokenizer(texts, 1024, (share() / TEMPLATE).read_text())
    chat = Chat(tokenizer)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        tools = load_wait_tool(Path(folder))
        console.print(efficiency(chat, tools, args.trajectories, args.speed))
        console.print(cost_by_turns(chat, tools))


def efficiency(chat: Chat, tools: Any, counts: list[int], speed: float) -> Table:
    table = Table("trajectories", "engine slots", "bound by", "wall s", "ideal s", "wall / ideal", "CPU ms a turn")
    for count in counts:
        for slots, bound in ((count, "longest chain"), (count // 16, "token budget")):
            run = measure(chat, tools, trajectories=count, turns=4, slots=slots, speed=speed, quick=False)
            r = asyncio.run(run)
            ratio = r["wall"] / r["ideal"]
            figures = f"{r['wall']:.2f}", f"{r['ideal']:.2f}", f"{ratio:.3f}", f"{r['cpu_ms']:.2f}"
            table.add_row(str(count), str(slots), bound, *figures)
    return table


def cost_by_turns(chat: Chat, tools: Any) -> Table:
    """Framework CPU per turn, with instant tools and engine: it must not grow with the conversation."""
    table = Table("turns", "CPU ms a turn", title="64 trajectories, instant tools and engine")
    for turns in (2, 5, 10, 20, 50):
        run = measure(chat, tools, trajectories=64, turns=turns, slots=64, speed=1e9, quick=True)
        table.add_row(str(turns), f"{asyncio.run(run)['cpu_ms']:.2f}")
    return table


if __name__ == "__main__":
    main()
