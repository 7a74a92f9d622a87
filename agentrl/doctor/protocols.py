"""Sends a conversation through the gateway in each of its protocols: what an agent says has to reach the model.

The conversation has all that agents send: instructions, a tool with a call and its result, a system message in the
middle. Markers in it show which parts the template drops.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.core.errors import UserError
from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.engines.engine import Generation, Sampling
from agentrl.gateway.protocols import WireProtocol, anthropic, chat, responses
from agentrl.gateway.session import AgentSession
from agentrl.http.refusals import Refused
from agentrl.rollout.episode import Limits
from agentrl.rollout.loops import RolloutContext
from agentrl.trajectory.message import Message
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

PARAMETERS = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
TOOL = {"name": "agentrl_look_up", "description": "Looks agentrl-description up.", "parameters": PARAMETERS}
SCHEMA = {"type": "function", "function": TOOL}
ARGUMENTS = {"word": "agentrl-argument"}
QUESTION = "agentrl-question"
PARTS = {
    "instructions": "agentrl-instructions",
    "the user's message": QUESTION,
    "the tool's name": "agentrl_look_up",
    "the tool's description": "agentrl-description",
    "the arguments of a call": "agentrl-argument",
    "a tool's result": "agentrl-result",
    "a system message in the middle": "agentrl-reminder",
}
"""Parts of an agent's request, and a word in each that must reach the model."""
ROOM = 1_000_000
FIX = "set model.chat_template=configs/templates/chatml_tools.jinja (ChatML models), or a template that shows it"
NAMES: tuple[tuple[str, WireProtocol], ...] = (
    ("chat completions", chat),
    ("responses", responses),
    ("messages", anthropic),
)


@dataclass
class TwoTurns:
    """An engine that calls the tool, then answers; keeps the last prompt."""

    turns: list[list[int]]
    prompt: Sequence[int] = ()

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        self.prompt = token_ids
        ids = self.turns.pop(0)
        return Generation(ids, [-0.5] * len(ids), "stop", 0)


async def protocols(env: RolloutContext) -> AsyncIterator[Finding]:
    """Ask twice in each protocol; what does not arrive is a warning."""
    try:
        turns = _turns(env)
    except UserError as error:
        yield problem(f"agents cannot use tools with this template: {error}", FIX)
        return
    for name, protocol in NAMES:
        engine = TwoTurns([list(turn) for turn in turns])
        try:
            session = await _conversation(env, engine, protocol)
        except Refused as error:
            yield problem(f"{name}: {error}", FIX)
            continue
        for finding in _judged(env, session, engine):
            yield Finding(finding.level, f"{name}: {finding.text}", finding.fix)


def _turns(env: RolloutContext) -> list[list[int]]:
    """A call as the template writes it, and an answer. Raises UserError."""
    call = {"id": "agentrl00", "type": "function", "function": {"name": TOOL["name"], "arguments": ARGUMENTS}}
    made: list[Message] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": TOOL["name"], "tool_call_id": "agentrl00", "content": "x"},
        {"role": "assistant", "content": "Found."},
    ]
    return list(env.chat.transcript(made, [SCHEMA]).turn_ids().values())


async def _conversation(env: RolloutContext, engine: Any, protocol: WireProtocol) -> AgentSession:
    """Two requests, the second with the whole history. Raises Refused."""
    unscored = RolloutContext(engine, env.chat, env.tools, env.interactions, Limits(ROOM, ROOM, ROOM))
    session = AgentSession(Trajectory(Row("doctor", []), "doctor", 0), unscored, Sampling(ROOM))
    history: list[dict[str, Any]] = [{"role": "user", "content": f"Look {QUESTION} up."}]
    for _ in range(2):
        request = protocol.read(_body(protocol, history))
        answer = await session.answer(request, session.begin(request))
        history = [*history, *_followed(protocol, protocol.whole(answer))]
    return session


def _body(protocol: WireProtocol, history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    system = f"Follow the {PARTS['instructions']}."
    if protocol is chat:
        return {"messages": [{"role": "system", "content": system}, *history], "tools": [SCHEMA]}
    if protocol is responses:
        return {"input": history, "instructions": system, "tools": [{"type": "function", **TOOL}]}
    tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": PARAMETERS}
    return {"messages": history, "system": system, "tools": [tool], "max_tokens": 100}


def _followed(protocol: WireProtocol, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages that an agent adds to its history: the answer as it came, the result of the tool, a system message."""
    reminder = {"role": "system", "content": f"A {PARTS['a system message in the middle']}."}
    return [*_answered(protocol, answer, PARTS["a tool's result"]), reminder]


def _answered(protocol: WireProtocol, answer: dict[str, Any], result: str) -> list[dict[str, Any]]:
    if protocol is chat:
        message = answer["choices"][0]["message"]
        ids = [call["id"] for call in message.get("tool_calls", ())]
        return [message, *({"role": "tool", "tool_call_id": id, "content": result} for id in ids)]
    if protocol is responses:
        ids = [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]
        return [*answer["output"], *({"type": "function_call_output", "call_id": id, "output": result} for id in ids)]
    ids = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
    blocks = [{"type": "tool_result", "tool_use_id": id, "content": result} for id in ids]
    return [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": blocks or result}]


def _judged(env: RolloutContext, session: AgentSession, engine: TwoTurns) -> Iterator[Finding]:
    shown = env.chat.decode(engine.prompt)
    lost = [name for name, word in PARTS.items() if word not in shown]
    ledgers = len(session.trajectory.ledgers)
    if lost:
        yield warning(f"the model does not see {', '.join(lost)}", FIX)
    if ledgers > 1:
        yield warning(
            f"a conversation of two turns becomes {ledgers} ledgers: the template rewrites its history",
            "it is trained on all the same, in several samples",
        )
    if not lost and ledgers == 1:
        yield ok("tools, results and a system message in the middle reach the model, in one ledger")
