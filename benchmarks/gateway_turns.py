"""The gateway's CPU time a turn, beside the native loop in the same run, and the memory of a session.

An instant engine plays the same conversation to both: a call of a tool, and its result, turn by turn. The agents are
processes of their own, so that only the gateway's CPU counts; they send their whole history at each turn, as agents do.
Read the ratios: late turns over early ones, and the gateway over the native loop. "fixed" is the ratio of late over
early for a fixed piece of work between the turns: what the machine itself lost or won in that time.

    python benchmarks/gateway_turns.py --sessions 32 --turns 50

With settings of a run (`model.path=... rollout.name=sglang`) its engine draws as many tokens, which the conversation
replaces: so both get the same work, and the seconds are a server's.

    python benchmarks/gateway_turns.py --set model.path=MODEL rollout.name=sglang trainer.device=cpu
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any, cast

import gateway_agents
from gateway_agents import LOOK, PROTOCOLS, QUESTION, SYSTEM, keep_to_core, result

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl.chat import Chat
from agentrl.core.resources import share
from agentrl.engines.engine import Generation, Sampling
from agentrl.gateway.server import Gateway
from agentrl.gateway.session import AgentSession
from agentrl.interactions import load_interactions
from agentrl.rollout.episode import Limits
from agentrl.rollout.gc_control import deferred_collection
from agentrl.rollout.loops import RolloutContext, ToolAgent
from agentrl.tools import load_tools
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

TOOL = """
from agentrl.tools import BaseTool


class LookTool(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        return RESULT % parameters["turn"], 0.0, {}
"""
TEMPLATE = "model.chat_template=configs/templates/chatml_tools.jinja"
UNTRAINED = [TEMPLATE, "rollout.multi_turn.enable=true", "rollout.deterministic=false"]
FIXED = 20
"""Texts encoded as the fixed work of a round of turns."""


@dataclass
class InstantEngine:
    """Says the next turn of the conversation; `marks`: CPU seconds of this process when each round of turns began,
    before and after a fixed piece of work, which shows how fast the machine is at that moment."""

    chat: Chat
    sessions: int
    turns: int
    real: Any = None
    """An engine that draws as many tokens first."""
    marks: list[tuple[float, float]] = field(default_factory=list)
    resident: int = 0
    """Bytes of this process at the end."""
    asked: int = 0
    taken: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def open(self, key: str) -> None: ...

    def release(self, key: str) -> None:
        if self.real is not None:
            self.real.release(key)

    def __post_init__(self) -> None:
        said = "I look at the next part, since the error is not in the one before." * 4
        call = '<tool_call>\n{{"name": "look", "arguments": {{"turn": {}}}}}\n</tool_call><|im_end|>'
        texts = [f"{said}\n{call.format(turn)}" for turn in range(self.turns - 1)] + ["It is repaired.<|im_end|>"]
        self.said = [self.chat.tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def finish(self) -> None:
        """Note CPU and memory while the sessions are there."""
        self.mark()
        self.resident = resident()

    def mark(self) -> None:
        """Note the CPU time, and that of the fixed work."""
        start = time.process_time()
        for _ in range(FIXED):
            self.chat.tokenizer.encode(SYSTEM)
        self.marks.append((start, time.process_time()))

    async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        if self.asked % self.sessions == 0:
            self.mark()
        self.asked += 1
        ids = self.said[self.taken[key]]
        self.taken[key] += 1
        if self.real is None:
            await asyncio.sleep(0)
        else:
            await self.real.generate(token_ids, Sampling(len(ids), ignore_eos=True), key=key)
        return Generation(ids, [-0.5] * len(ids), "stop", 0)


def fifths(taken: Sequence[float]) -> tuple[float, float]:
    """The mean in the first fifth and in the last one."""
    fifth = max(1, len(taken) // 5)
    return mean(taken[:fifth]), mean(taken[-fifth:])


def environment(chat: Chat, engine: InstantEngine, folder: Path, words: int) -> RolloutContext:
    (folder / "look.py").write_text(TOOL.replace("RESULT", repr(result(words))))
    entry = {"class_name": "look.LookTool", "config": {"type": "native"}, "tool_schema": LOOK}
    (folder / "look.yaml").write_text(json.dumps({"tools": [entry]}))
    tools = load_tools(str(folder / "look.yaml"), None, max_response=10**6, unit="characters", side="middle")
    limits = Limits(10**6, 10**6, 10**6)
    return RolloutContext(engine, chat, tools, load_interactions(None), limits)  # type: ignore[arg-type]


def trajectories(count: int) -> Iterator[Trajectory]:
    for i in range(count):
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
        yield Trajectory(Row(f"row:{i}", prompt), f"bench/{i}", 0)


async def native(env: RolloutContext, made: list[Trajectory]) -> None:
    """The loop in this process, with a tool that answers at once."""
    await asyncio.gather(*(ToolAgent(env).run(one, Sampling(10_000)) for one in made))
    cast(InstantEngine, env.engine).finish()


async def through_gateway(
    env: RolloutContext, made: list[Trajectory], given: argparse.Namespace, protocol: str
) -> None:
    """The agents in another process."""
    gateway = Gateway()
    async with AsyncExitStack() as stack:
        for i, one in enumerate(made):
            await stack.enter_async_context(gateway.serving(f"k{i}", AgentSession(one, env, Sampling(10_000))))
        words = [gateway.url.rpartition(":")[2], len(made), given.turns, given.words, protocol, int(given.stream)]
        agents = await asyncio.create_subprocess_exec(sys.executable, gateway_agents.__file__, *map(str, words))
        if await agents.wait():
            raise SystemExit("the agents failed")
        cast(InstantEngine, env.engine).finish()


@dataclass
class Bench:
    """A chat format, an engine that draws (or none), and the loop that runs both."""

    chat: Chat
    engine: Any = None
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run


@dataclass(frozen=True)
class Figures:
    """Of a run: CPU time, and what a session takes."""

    name: str
    sessions: int
    taken: Sequence[float]
    """CPU seconds of each round of turns, from the second one on."""
    fixed: Sequence[float]
    """Those of the fixed work around it."""
    kib: float
    tokens: int
    seconds: float

    def __str__(self) -> str:
        per, (early, late), (first, last) = 1000 / self.sessions, fifths(self.taken), fifths(self.fixed)
        times = f"{per * mean(self.taken):12.2f}{per * early:10.2f}{per * late:10.2f}{late / early:10.2f}"
        times += f"{last / first:10.2f}"
        return f"{self.name:14}{times}{self.kib:14.0f}{self.tokens:10}{self.seconds:10.1f}"


def measure(given: argparse.Namespace, bench: Bench, protocol: str | None) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        chat = bench.chat
        engine = InstantEngine(chat, given.sessions, given.turns, bench.engine)
        env = environment(chat, engine, Path(folder), given.words)
        before = resident()
        made = list(trajectories(given.sessions))
        start = time.perf_counter()
        with deferred_collection():  # as in a run
            bench.run(through_gateway(env, made, given, protocol) if protocol else native(env, made))
        seconds = time.perf_counter() - start
    ledgers = {len(one.ledgers) for one in made}
    assert ledgers == {1}, f"a conversation broke: {ledgers} ledgers"
    assert all(one.turns == given.turns for one in made)
    kib = (engine.resident - before) / 1024 / given.sessions
    taken = [end[0] - start[1] for start, end in pairwise(engine.marks[1:])]
    fixed = [(start[1] - start[0] + end[1] - end[0]) / 2 for start, end in pairwise(engine.marks[1:])]
    return Figures(protocol or "native loop", given.sessions, taken, fixed, kib, len(made[0].ledgers[0]), seconds)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--words", type=int, default=200, help="of a tool's result")
    parser.add_argument("--template", default="qwen3_training")
    parser.add_argument("--tokenizer", help="folder of a ChatML model, in place of --template")
    parser.add_argument("--rounds", type=int, default=1, help="the least CPU time of each turn counts")
    parser.add_argument("--protocols", nargs="*", default=PROTOCOLS, choices=PROTOCOLS)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--set", nargs="*", help="settings of a run with a real engine")
    given = parser.parse_args()
    if not given.set:
        keep_to_core(0)
    with ExitStack() as stack:
        show(given, served(given.set, stack) if given.set else Bench(chat_of(given)))


def chat_of(given: argparse.Namespace) -> Chat:
    """Of a model's own tokenizer with a template for tools, or one of the tests' pairs."""
    if not given.tokenizer:
        from tests.chat.pairs import by_name  # which needs the packages of tests

        return by_name(given.template)
    from transformers import AutoTokenizer

    template = (share() / "configs/templates/chatml_tools.jinja").read_text()
    return Chat(AutoTokenizer.from_pretrained(given.tokenizer), chat_template=template)


def served(settings: list[str], stack: ExitStack) -> Bench:
    """The engine of a run with these settings, started."""
    from agentrl.config import compose
    from agentrl.config.schema import Config
    from agentrl.evaluation.settings import scoring_something, untrained
    from agentrl.runtime.local import LocalRuntime

    config: Config = compose([*settings, *UNTRAINED], checks=())
    config = untrained(scoring_something(config))
    runtime = stack.enter_context(closing(LocalRuntime(config)))
    runtime.publish_weights(0)
    env = runtime.rollouts.env
    return Bench(env.chat, env.engine, runtime.runner.run)


def show(given: argparse.Namespace, bench: Bench) -> None:
    print(f"CPU ms a turn, {given.sessions} sessions x {given.turns} turns, {'streamed' if given.stream else 'plain'}")
    print(
        f"{'':14}{'all':>12}{'early':>10}{'late':>10}{'ratio':>10}{'fixed':>10}{'KiB/session':>14}{'tokens':>10}{'seconds':>10}"
    )
    for protocol in (None, *given.protocols):
        measure(argparse.Namespace(**{**vars(given), "sessions": 4, "turns": 3}), bench, protocol)  # fills caches
        rounds = [measure(given, bench, protocol) for _ in range(given.rounds)]
        least = [min(taken) for taken in zip(*(one.taken for one in rounds), strict=True)]
        fixed = [min(taken) for taken in zip(*(one.fixed for one in rounds), strict=True)]
        print(replace(rounds[0], taken=least, fixed=fixed), flush=True)


if __name__ == "__main__":
    main()
