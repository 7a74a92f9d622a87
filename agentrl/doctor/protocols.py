"""Reads a conversation as the gateway does: what an agent says has to reach the model.

The conversation has all that agents send: instructions, a tool with a call and its result, a system message in the
middle. Markers in it show which parts the template drops: in any protocol, since all are read into the same messages.
"""

from collections.abc import Iterator
from typing import Any

from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.gateway.ledger_tree import LedgerTree
from agentrl.gateway.protocols import chat
from agentrl.http.refusals import Refused
from agentrl.rollout.loops import RolloutContext

NAME = "agentrl_look_up"
PARAMETERS = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
TOOL = {"name": NAME, "description": "Looks agentrl-description up.", "parameters": PARAMETERS}
CALL = {"id": "agentrl00", "function": {"name": NAME, "arguments": '{"word": "agentrl-argument"}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Follow the agentrl-instructions."},
    {"role": "user", "content": "Look agentrl-question up."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "agentrl00", "content": "agentrl-result"},
    {"role": "system", "content": "An agentrl-reminder."},
]
PARTS = {
    "instructions": "agentrl-instructions",
    "the user's message": "agentrl-question",
    "the tool's name": NAME,
    "the tool's description": "agentrl-description",
    "the arguments of a call": "agentrl-argument",
    "a tool's result": "agentrl-result",
    "a system message in the middle": "agentrl-reminder",
}
"""Parts of an agent's request, and a word in each that must reach the model."""
ROOM = 1_000_000
FIX = "set model.chat_template=configs/templates/chatml_tools.jinja (ChatML models), or a template that shows it"


def protocols(env: RolloutContext) -> Iterator[Finding]:
    """What does not arrive is a warning; without tools agents cannot work."""
    request = chat.read({"messages": HISTORY, "tools": [{"type": "function", "function": TOOL}]})
    try:
        shown = env.chat.decode(list(LedgerTree(env.chat, ROOM).begin(request).ids))
    except Refused as error:
        yield problem(f"agents cannot use tools with this template: {error}", FIX)
        return
    lost = [name for name, word in PARTS.items() if word not in shown]
    if "the arguments of a call" in lost:
        yield problem(f"agents cannot use tools with this template: the model does not see {', '.join(lost)}", FIX)
    elif lost:
        yield warning(f"the model does not see {', '.join(lost)}", FIX)
    else:
        yield ok("tools, results and a system message in the middle reach the model")
