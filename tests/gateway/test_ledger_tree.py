"""Sessions of random shape: every sampled token is in exactly one sample, as the engine's own log has it."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from agentrl.chat import Chat
from agentrl.core.errors import InfraError
from agentrl.engines.engine import Generation, Sampling
from agentrl.gateway.journal import append
from agentrl.gateway.protocols import anthropic, chat, google, responses
from agentrl.gateway.request import ModelAnswer, TurnRequest
from agentrl.gateway.session import AgentSession
from agentrl.http.refusals import Refused
from agentrl.interactions import load_interactions
from agentrl.rollout.episode import Limits
from agentrl.rollout.loops import RolloutContext
from agentrl.trajectory.trajectory import Trajectory
from tests.chat.pairs import by_name
from tests.gateway.serving import ADD, TOOL
from tests.rollout.scripted import make_chat, no_tools, row

SESSIONS = 250
REAL = ("qwen3_training", "qwen3", "llama3_1", "deepseek_v3_1")
"""Models' own templates; the history of some depends on what follows."""
WORDS = ["What", "is", " 2", "+ 3", "\n", "The answer", ' "quoted"', "5 .", "é", "<think>", "wrong"]


class RandomEngine:
    """Draws random turns, and keeps what it drew."""

    def __init__(self, random: Random, chat: Chat) -> None:
        self.random, self.chat = random, chat
        self.end = chat.stop_token_ids[:1]
        self.seeds: list[int | None] = []
        self.drawn: list[tuple[tuple[int, ...], tuple[float, ...]]] = []

    async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        random = self.random
        self.seeds.append(sampling.seed)
        if random.random() < 0.05:
            raise InfraError("the engine is on fire")
        text = " ".join(random.choices(WORDS, k=random.randint(1, 5)))
        for _ in range(random.choice([0, 0, 1, 2])):
            text += "\n" + written(self.chat, random.choice(["1", "2.0", '"x y"', "[1.5, null]"]))
        parts = list(text) if random.random() < 0.2 else [text]  # the same text in smaller tokens
        ids = [token for part in parts for token in encode(self.chat, part)]
        ids = [*ids, *(self.end if random.random() < 0.9 else ())][: sampling.max_new_tokens]
        logprobs = [-random.random() for _ in ids]
        self.drawn.append((tuple(ids), tuple(logprobs)))
        reason = "stop" if ids[-1] == self.end[0] else "length"
        experts = rows_of([*token_ids, *ids], sampling.experts_from, -1)
        return Generation(ids, logprobs, reason, random.randint(1, 3), experts=experts)  # type: ignore[arg-type]


def rows_of(ids: list[int], start: int | None, stop: int | None) -> np.ndarray:
    """Experts that are known by their token."""
    found = np.asarray(ids)[start:stop]
    return (found[:, None, None] % np.array([[7, 5]])).astype(np.uint8)


@dataclass
class Agent:
    """A client in one protocol, with a history of its own."""

    session: AgentSession
    random: Random
    client: "Client"
    history: list[dict[str, Any]] = field(default_factory=list)
    """Chat completions' messages; the client translates."""
    number: int = 0
    formatted: bool = False
    """Whether it asked for JSON: an engine that fails at a further attempt makes it begin again."""

    async def turn(self) -> bool:
        """Ask; False where the engine failed."""
        try:
            request = self.asked()
            answer = await self.session.answer(request, self.session.begin(request))
        except Refused:
            return False
        b"".join(self.client.protocol.events(answer))
        self.take(answer)
        return True

    def take(self, answer: ModelAnswer) -> None:
        asked = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": self.rewritten(c.arguments)}}
            for c in answer.calls
        ]
        pad = self.random.choice(["", " ", "\n"])
        said: dict[str, Any] = {"role": "assistant", "content": f"{answer.text}{pad}", "id": answer.id}
        if self.random.random() < 0.5:  # others drop it
            said["reasoning_content"] = answer.reasoning
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

    def asked(self) -> TurnRequest:
        body = self.client.body(self.history)
        if self.random.random() < 0.1:
            body["tool_choice"] = {"type": "any"} if self.client.protocol is anthropic else "required"
        if self.random.random() < 0.05 and self.client.protocol is chat:
            self.formatted, body["response_format"] = True, {"type": "json_object"}
        return self.client.protocol.read(json.loads(json.dumps(body)))


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


def as_stored(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Only what follows the last answer."""
    last = max((i for i, m in enumerate(history) if "id" in m), default=-1)
    body = as_responses(history[last + 1 :])
    return body | ({"previous_response_id": f"resp_{history[last]['id']}"} if last >= 0 else {})


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
            messages.append({"role": m["role"], "content": [{"type": "text", "text": m["content"]}]})
    messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}  # its place moves with each request
    return {"messages": messages, "tools": [{"name": "add", "input_schema": ADD["parameters"]}], "max_tokens": 300}


def as_google(history: list[dict[str, Any]]) -> dict[str, Any]:
    contents: list[dict[str, Any]] = []
    for m in history:
        if m["role"] == "tool":
            result = {"id": m["tool_call_id"], "name": "add", "response": {"output": m["content"]}}
            contents.append({"role": "user", "parts": [{"functionResponse": result}]})
        elif m["role"] == "assistant":
            parts: list[dict[str, Any]] = [{"text": "x", "thought": True}, {"text": m["content"]}]
            for call in m.get("tool_calls", ()):
                written = call["function"]
                use = {"name": written["name"], "args": json.loads(written["arguments"])}
                parts.append({"functionCall": use, "thoughtSignature": "eA=="})
            contents.append({"role": "model", "parts": parts})
        else:
            contents.append({"role": "user", "parts": [{"text": m["content"]}]})
    return {"contents": contents, "tools": [{"functionDeclarations": [ADD]}]}


@dataclass(frozen=True)
class Client:
    protocol: Any
    body: Callable[[list[dict[str, Any]]], dict[str, Any]]


CLIENTS = [Client(chat, as_chat), Client(responses, as_responses), Client(anthropic, as_anthropic)]
CLIENTS += [Client(responses, as_stored), Client(google, as_google)]


@cache
def encode(env_chat: Chat, text: str) -> list[int]:
    ids: list[int] = env_chat.tokenizer.encode(text, add_special_tokens=False)
    return ids


@cache
def written(env_chat: Chat, argument: str) -> str:
    """A call as the model's own template writes it."""
    arguments = {"a": json.loads(argument), "b": {"z": 1, "c": "  é "}}
    call = {"id": "agentrl00", "type": "function", "function": {"name": "add", "arguments": arguments}}
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    (turn,) = env_chat.transcript(said, [TOOL]).turn_ids().values()
    return env_chat.decode([token for token in turn if token not in env_chat.stop_token_ids])


async def play(
    seed: int, env_chat: Any, *, inference: bool = False, journal: Path | None = None
) -> tuple[AgentSession, RandomEngine, bool]:
    """A session; the last says whether it was linear."""
    random = Random(seed)
    engine = RandomEngine(random, env_chat)
    limits = Limits(512, 512, 4096)
    env = RolloutContext(engine, env_chat, no_tools(), load_interactions(None), limits, inference)  # type: ignore[arg-type]
    session = AgentSession(Trajectory(row(), "k", 0), env, Sampling(192, seed=seed, experts_from=0))
    session.record = partial(append, journal) if journal else session.record
    agent = Agent(session, random, random.choice(CLIENTS))
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
            others = [Agent(session, random, agent.client, list(agent.history), 100 * i) for i in range(1, 4)]
            requests = [other.asked() for other in others]
            pending = [session.begin(request) for request in requests]
            for i in random.sample(range(3), 3):
                try:
                    others[i].take(await session.answer(requests[i], pending[i]))
                    agent.history = others[i].history
                except Refused:
                    continue
    session.end("done")
    return session, engine, linear and not agent.formatted


def check(session: AgentSession, engine: RandomEngine) -> None:
    """Each turn of the engine's is in one ledger, with its log-probs, and nothing else is."""
    kept: Counter[Any] = Counter()
    numbers: list[int] = []
    for ledger in session.trajectory.ledgers:
        ledger.check()
        assert ledger.routed == len(ledger) - 1
        assert np.array_equal(np.concatenate(ledger.experts), rows_of(list(ledger.ids), 0, -1))
        for number in sorted({turn for turn, mask in zip(ledger.turns, ledger.mask, strict=True) if mask}):
            own = [i for i in range(len(ledger)) if ledger.mask[i] and ledger.turns[i] == number]
            assert own == list(range(own[0], own[-1] + 1))
            kept[tuple(ledger.ids[i] for i in own), tuple(ledger.logprobs[i] for i in own)] += 1
            numbers.append(number)
    assert kept == Counter(engine.drawn)
    assert sorted(numbers) == list(range(len(engine.drawn)))
    assert len(set(engine.seeds)) == len(engine.seeds)


async def play_all(env_chat: Chat, sessions: int, *, inference: bool = False) -> int:
    """Play and check; gives the number of linear sessions."""
    linear_sessions = 0
    for seed in range(sessions):
        session, engine, linear = await play(seed, env_chat, inference=inference)
        check(session, engine)
        if linear and engine.drawn:
            linear_sessions += 1
            assert inference or len(session.trajectory.ledgers) == 1, seed
    return linear_sessions


@pytest.mark.prevents(
    "an agent writes its history down in another way, and its tokens are encoded again, counted twice or lost"
)
async def test_every_sampled_token_is_in_exactly_one_sample() -> None:
    assert await play_all(make_chat(), SESSIONS) > SESSIONS / 5


async def test_so_it_is_when_the_template_rewrites_history() -> None:
    await play_all(make_chat(), 30, inference=True)


async def test_so_it_is_with_a_models_own_template() -> None:
    await play_all(by_name("deepseek_v3_1"), 50)


async def test_a_session_that_is_read_from_its_journal_is_the_same(tmp_path: Path) -> None:
    for seed in range(20):
        file = tmp_path / str(seed) / "journal"
        session, engine, _ = await play(seed, make_chat(), journal=file)
        again = AgentSession(Trajectory(row(), "k", 0), session.env, session.sampling)
        again.restore(file)
        check(again, engine) if engine.drawn else None
        assert again.trajectory.messages == session.trajectory.messages


@pytest.mark.slow
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("template", REAL)
async def test_so_it_is_in_a_thousand_sessions(template: str, inference: bool) -> None:
    await play_all(by_name(template), 1000, inference=inference)


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_fork_repeats_the_tokens_of_its_parent(client: Client) -> None:
    env_chat = make_chat()
    for seed in range(15):
        random = Random(seed)
        engine = RandomEngine(random, env_chat)
        env = RolloutContext(engine, env_chat, no_tools(), load_interactions(None), Limits(512, 512, 4096))  # type: ignore[arg-type]
        session = AgentSession(Trajectory(row(), "k", 0), env, Sampling(192, seed=seed))
        agent = Agent(session, random, client, [{"role": "user", "content": "What is 2 + 3 ?"}])
        if not await agent.turn():
            continue
        again = list(agent.history)
        if not await agent.turn():
            continue
        agent.history = again
        if await agent.turn():
            first, second = session.trajectory.ledgers
            shared = session.tree.branches[1].shared
            assert 0 < shared < len(first)
            assert first.ids[:shared] == second.ids[:shared]
            assert second.prompt_length >= shared
