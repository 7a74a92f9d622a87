"""Sessions of random shape: every sampled token is in exactly one sample, as the engine's own log has it."""

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import pytest

from agentrl.core.errors import InfraError
from agentrl.engines.engine import Generation, Sampling
from agentrl.gateway.protocols import anthropic, chat, responses
from agentrl.gateway.request import Answer, Refused
from agentrl.gateway.session import Session
from agentrl.interactions import load_interactions
from agentrl.rollout.limits import Limits
from agentrl.rollout.loops import Environment
from agentrl.trajectory.trajectory import Trajectory
from tests.gateway.serving import ADD, TOOL
from tests.rollout.scripted import END, calls, make_chat, no_tools, row

SESSIONS = 1000
WORDS = ["What", "is", " 2", "+ 3", "\n", "The answer", ' "quoted"', "5 .", "é", "<think>", "wrong"]


class RandomEngine:
    """Draws random turns, and keeps what it drew."""

    def __init__(self, random: Random, encode: Any) -> None:
        self.random, self.encode = random, encode
        self.seeds: list[int | None] = []
        self.drawn: list[tuple[tuple[int, ...], tuple[float, ...]]] = []

    async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        random = self.random
        self.seeds.append(sampling.seed)
        if random.random() < 0.05:
            raise InfraError("the engine is on fire")
        text = " ".join(random.choices(WORDS, k=random.randint(1, 5)))
        for _ in range(random.choice([0, 0, 1, 2])):
            arguments = {"a": random.choice([1, 2.0, "x y", [1.5, None]]), "b": {"z": 1, "c": "  é "}}
            text += "\n" + calls("add", json.dumps(arguments))
        ids = list(self.encode(text + (END if random.random() < 0.9 else "")))
        if random.random() < 0.2:  # the same text in smaller tokens
            ids = [token for part in text for token in self.encode(part)] + ids[-1:]
        ids = ids[: sampling.max_new_tokens]
        logprobs = [-random.random() for _ in ids]
        self.drawn.append((tuple(ids), tuple(logprobs)))
        return Generation(ids, logprobs, "stop" if ids[-1:] == self.encode(END) else "length", random.randint(1, 3))


@dataclass
class Agent:
    """A client in one protocol, with a history of its own."""

    session: Session
    random: Random
    protocol: Any
    history: list[dict[str, Any]] = field(default_factory=list)
    """Chat completions' messages; `sent` translates."""
    number: int = 0

    async def turn(self) -> bool:
        """Ask; False where the engine failed."""
        try:
            request = self.protocol.read(self.sent())
            answer = await self.session.answer(request, self.session.begin(request))
        except Refused:
            return False
        b"".join(self.protocol.events(answer))
        self.take(answer)
        return True

    def take(self, answer: Answer) -> None:
        asked = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": self.rewritten(c.arguments)}}
            for c in answer.calls
        ]
        pad = self.random.choice(["", " ", "\n"])
        said: dict[str, Any] = {"role": "assistant", "content": f"{answer.text}{pad}"}
        self.history.append(said | ({"tool_calls": asked} if asked else {}))
        for call in answer.calls:
            self.history.append({"role": "tool", "tool_call_id": call.id, "content": self.word()})
        if not asked or self.random.random() < 0.2:
            self.history.append({"role": "user", "content": self.word()})
        if self.random.random() < 0.1:
            self.history.append({"role": "system", "content": self.word()})

    def rewritten(self, arguments: Any) -> str:
        """As another language would write it."""
        items = list(arguments.items())
        self.random.shuffle(items)
        return json.dumps(dict(items), indent=self.random.choice([None, 2])).replace(
            "2.0", self.random.choice(["2", "2.0"])
        )

    def word(self) -> str:
        self.number += 1
        return f"{self.random.choice(['It is', 'No:', '4'])} {self.number}"

    def sent(self) -> dict[str, Any]:
        return TRANSLATED[self.protocol](self.history)


def as_chat(history: list[dict[str, Any]]) -> dict[str, Any]:
    return {"messages": history, "tools": [TOOL], "model": "m"}


def as_responses(history: list[dict[str, Any]]) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for m in history:
        if m["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": m["tool_call_id"], "output": m["content"]})
            continue
        if m["content"].strip() or not m.get("tool_calls"):
            items.append({"role": m["role"], "content": m["content"]})
        for call in m.get("tool_calls", ()):
            items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return {"input": items, "tools": [{"type": "function", **ADD}]}


def as_anthropic(history: list[dict[str, Any]]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for m in history:
        if m["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": m["tool_call_id"], "content": m["content"]}
            messages.append({"role": "user", "content": [block]})
        elif m["role"] == "assistant":
            blocks = [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": m["content"]}]
            for call in m.get("tool_calls", ()):
                written = call["function"]
                use = {"type": "tool_use", "id": call["id"], "name": written["name"]}
                blocks.append({**use, "input": json.loads(written["arguments"])})
            messages.append({"role": "assistant", "content": blocks})
        else:
            messages.append({"role": m["role"], "content": m["content"]})
    return {"messages": messages, "tools": [{"name": "add", "input_schema": ADD["parameters"]}], "max_tokens": 300}


TRANSLATED = {chat: as_chat, responses: as_responses, anthropic: as_anthropic}


@cache
def encode(env_chat: Any, text: str) -> list[int]:
    ids: list[int] = env_chat.tokenizer.encode(text, add_special_tokens=False)
    return ids


async def play(seed: int, env_chat: Any, *, inference: bool = False) -> tuple[Session, RandomEngine, bool]:
    """A session; the last says whether it was linear."""
    random = Random(seed)
    engine = RandomEngine(random, lambda text: encode(env_chat, text))
    limits = Limits(512, 512, 4096)
    env = Environment(engine, env_chat, no_tools(), load_interactions(None), limits, inference)  # type: ignore[arg-type]
    session = Session(Trajectory(row(), "k", 0), env, Sampling(64, seed=seed))
    agent = Agent(session, random, random.choice([chat, responses, anthropic]))
    agent.history = [{"role": "system", "content": "Add."}, {"role": "user", "content": agent.word()}]
    linear, wild = True, random.random() < 0.7
    for _ in range(random.randint(1, 6)):
        shape = random.choice(["on", "on", "retry", "compact", "parallel", "back"]) if wild else "on"
        before = list(agent.history)
        answered = await agent.turn()
        if shape == "on" or not answered:
            continue
        linear = False
        if shape == "retry":
            agent.history = before
        elif shape == "compact":
            agent.history = [*before[:1], {"role": "user", "content": f"So far: {agent.word()}"}]
        elif shape == "back":
            agent.history = [*before[: random.randint(2, len(before))]]
            agent.history = agent.history if agent.history[-1]["role"] != "assistant" else [*agent.history, before[1]]
        else:
            others = [Agent(session, random, agent.protocol, list(agent.history), 100 * i) for i in range(1, 4)]
            requests = [other.protocol.read(other.sent()) for other in others]
            pending = [session.begin(request) for request in requests]
            for i in random.sample(range(3), 3):
                try:
                    others[i].take(await session.answer(requests[i], pending[i]))
                    agent.history = others[i].history
                except Refused:
                    continue
    session.end("done")
    return session, engine, linear


def check(session: Session, engine: RandomEngine) -> None:
    """Each turn of the engine's is in one ledger, with its log-probs, and nothing else is."""
    kept: Counter[Any] = Counter()
    numbers: list[int] = []
    for ledger in session.trajectory.ledgers:
        ledger.check()
        for number in sorted({turn for turn, mask in zip(ledger.turns, ledger.mask, strict=True) if mask}):
            own = [i for i in range(len(ledger)) if ledger.mask[i] and ledger.turns[i] == number]
            assert own == list(range(own[0], own[-1] + 1))
            kept[tuple(ledger.ids[i] for i in own), tuple(ledger.logprobs[i] for i in own)] += 1
            numbers.append(number)
    assert kept == Counter(engine.drawn)
    assert sorted(numbers) == list(range(len(engine.drawn)))
    assert len(set(engine.seeds)) == len(engine.seeds)


async def test_every_sampled_token_is_in_exactly_one_sample() -> None:
    env_chat = make_chat()
    linear_sessions = 0
    for seed in range(SESSIONS):
        session, engine, linear = await play(seed, env_chat)
        check(session, engine)
        if linear and engine.drawn:
            linear_sessions += 1
            assert len(session.trajectory.ledgers) == 1, seed
    assert linear_sessions > SESSIONS / 5


async def test_so_it_is_when_the_template_rewrites_history() -> None:
    env_chat = make_chat(inference_template=True)
    for seed in range(50):
        session, engine, _ = await play(seed, env_chat, inference=True)
        check(session, engine)


@pytest.mark.parametrize("protocol", [chat, responses, anthropic])
async def test_a_fork_repeats_the_tokens_of_its_parent(protocol: Any) -> None:
    env_chat = make_chat()
    for seed in range(40):
        random = Random(seed)
        engine = RandomEngine(random, lambda text: encode(env_chat, text))
        env = Environment(engine, env_chat, no_tools(), load_interactions(None), Limits(512, 512, 4096))  # type: ignore[arg-type]
        session = Session(Trajectory(row(), "k", 0), env, Sampling(64, seed=seed))
        agent = Agent(session, random, protocol, [{"role": "user", "content": "What is 2 + 3 ?"}])
        if not await agent.turn():
            continue
        again = list(agent.history)
        if not await agent.turn():
            continue
        agent.history = again
        if await agent.turn():
            first, second = session.trajectory.ledgers
            shared = session.forest.branches[1].shared
            assert 0 < shared < len(first)
            assert first.ids[:shared] == second.ids[:shared]
            assert second.prompt_length >= shared
