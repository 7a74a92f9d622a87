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

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl.chat import Chat
from agentrl.core.resources import share
from agentrl.engines.engine import Generation, Sampling
from agentrl.gateway.server import Gateway
from agentrl.gateway.session import Session
from agentrl.interactions import load_interactions
from agentrl.rollout.garbage import deferred_collection
from agentrl.rollout.limits import Limits
from agentrl.rollout.loops import Environment, ToolAgent
from agentrl.tools import load_tools
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

SYSTEM = "You are a careful programmer. Look before you change anything. " * 20
QUESTION = "Find out why the tests of this package fail, and repair it."
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Shows a part of a file.",
        "parameters": {"type": "object", "properties": {"turn": {"type": "integer"}}, "required": ["turn"]},
    },
}
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
HISTORY = "the history"
"""In the place of its items."""
PROTOCOLS = ("chat", "responses", "messages")
PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}


def result(words: int) -> str:
    return "part %d of the file:\n" + "    value = compute(left, right)  # checked\n" * (words // 10)


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


def environment(chat: Chat, engine: InstantEngine, folder: Path, words: int) -> Environment:
    (folder / "look.py").write_text(TOOL.replace("RESULT", repr(result(words))))
    entry = {"class_name": "look.LookTool", "config": {"type": "native"}, "tool_schema": LOOK}
    (folder / "look.yaml").write_text(json.dumps({"tools": [entry]}))
    tools = load_tools(str(folder / "look.yaml"), None, max_response=10**6, unit="characters", side="middle")
    limits = Limits(10**6, 10**6, 10**6)
    return Environment(engine, chat, tools, load_interactions(None), limits)  # type: ignore[arg-type]


def trajectories(count: int) -> Iterator[Trajectory]:
    for i in range(count):
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
        yield Trajectory(Row(f"row:{i}", prompt), f"bench/{i}", 0)


async def native(env: Environment, made: list[Trajectory]) -> None:
    """The loop in this process, with a tool that answers at once."""
    await asyncio.gather(*(ToolAgent(env).run(one, Sampling(10_000)) for one in made))
    cast(InstantEngine, env.engine).finish()


async def through_gateway(env: Environment, made: list[Trajectory], given: argparse.Namespace, protocol: str) -> None:
    """The agents in another process."""
    gateway = Gateway()
    async with AsyncExitStack() as stack:
        for i, one in enumerate(made):
            await stack.enter_async_context(gateway.serving(f"k{i}", Session(one, env, Sampling(10_000))))
        words = [gateway.url.rpartition(":")[2], len(made), given.turns, given.words, protocol, int(given.stream)]
        agents = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--agents", *map(str, words), env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
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


async def agents(port: int, sessions: int, turns: int, words: int, protocol: str, stream: bool) -> None:
    await asyncio.gather(*(agent(port, f"k{i}", turns, words, protocol, stream) for i in range(sessions)))


async def agent(port: int, key: str, turns: int, words: int, protocol: str, stream: bool) -> None:
    """One conversation over one connection, kept alive.

    It writes each item once: to write 60 KB again at each turn would slow the gateway down where both share a core's
    caches.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    before, _, after = json.dumps(asked([HISTORY], protocol, stream)).partition(json.dumps(HISTORY))
    said = [{"role": "user", "content": QUESTION}]
    for turn in range(turns):
        before += (", " if turn else "") + json.dumps(said)[1:-1]
        body = (before + after).encode()
        head = (
            f"POST /s/{key}/v1/{PATHS[protocol]} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
            f"Accept: application/json\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await whole(reader)
        said = followed(answer, protocol, stream, result(words) % turn)
    writer.close()


async def whole(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert b" 200 " in head, head
    if b"content-length" in head:
        return await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r")[0]))
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)


def asked(said: list[Any], protocol: str, stream: bool) -> dict[str, Any]:
    function = LOOK["function"]
    assert isinstance(function, dict)
    if protocol == "chat":
        system = {"role": "system", "content": SYSTEM}
        return {"messages": [system, *said], "model": "m", "tools": [LOOK], "stream": stream}
    if protocol == "responses":
        tools = [{"type": "function", **function}]
        return {"input": said, "model": "m", "instructions": SYSTEM, "tools": tools, "stream": stream, "store": False}
    tools = [{"name": "look", "description": function["description"], "input_schema": function["parameters"]}]
    return {"messages": said, "model": "m", "system": SYSTEM, "tools": tools, "max_tokens": 9999, "stream": stream}


def followed(answer: bytes, protocol: str, stream: bool, shown: str) -> list[dict[str, Any]]:
    """What an agent adds to its history."""
    if protocol == "chat":
        message = _streamed_chat(answer) if stream else json.loads(answer)["choices"][0]["message"]
        calls = message.get("tool_calls") or ()
        return [message, *({"role": "tool", "tool_call_id": call["id"], "content": shown} for call in calls)]
    if protocol == "responses":
        output = _last(answer, b"response.completed")["response"]["output"] if stream else json.loads(answer)["output"]
        ids = [item["call_id"] for item in output if item["type"] == "function_call"]
        return [*output, *({"type": "function_call_output", "call_id": id, "output": shown} for id in ids)]
    blocks = _streamed_blocks(answer) if stream else json.loads(answer)["content"]
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": id, "content": shown} for id in ids]
    return [{"role": "assistant", "content": blocks}, *([{"role": "user", "content": results}] if results else [])]


def _events(answer: bytes) -> Iterator[dict[str, Any]]:
    for line in answer.splitlines():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def _last(answer: bytes, kind: bytes) -> dict[str, Any]:
    return next(event for event in _events(answer) if event["type"].encode() == kind)


def _streamed_chat(answer: bytes) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for delta in (event["choices"][0]["delta"] for event in _events(answer) if event["choices"]):
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                start = {"id": call["id"], "type": "function", "function": {**call["function"]}}
                message.setdefault("tool_calls", []).append(start)
            else:
                message["tool_calls"][-1]["function"]["arguments"] += call["function"]["arguments"]
    return message


def _streamed_blocks(answer: bytes) -> list[dict[str, Any]]:
    blocks, written = list[dict[str, Any]](), defaultdict[int, str](str)
    for event in _events(answer):
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            written[event["index"]] += event["delta"].get("text") or event["delta"].get("partial_json") or ""
    return [_filled(block, written[i]) for i, block in enumerate(blocks)]


def _filled(block: dict[str, Any], written: str) -> dict[str, Any]:
    return block | ({"text": written} if block["type"] == "text" else {"input": json.loads(written or "{}")})


def keep_to_core(position: int) -> None:
    """Keep this process to one core: after a move its caches are cold."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[position]})


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
    from agentrl.evaluation.settings import scoring_something, untrained
    from agentrl.runtime import LocalRuntime

    config = untrained(scoring_something(compose([*settings, *UNTRAINED], checks=())))
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
    if sys.argv[1:2] == ["--agents"]:
        keep_to_core(-1)
        port, sessions, turns, words, protocol, stream = sys.argv[2:]
        asyncio.run(agents(int(port), int(sessions), int(turns), int(words), protocol, stream == "1"))
    else:
        main()
