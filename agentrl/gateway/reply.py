"""The model's turn as its client gets it: where a stop string ends it, its text and reasoning, the ids of its calls."""

from bisect import bisect_left
from collections.abc import Sequence

from agentrl.chat import Chat
from agentrl.gateway.ledger_branch import SampledTokens
from agentrl.trajectory.message import Call, Reply, as_tool_call, call_id
from agentrl.trajectory.trajectory import Outcome, ToolCallRecord


def cut_at_stop(chat: Chat, sampled: SampledTokens, text: str, stops: Sequence[str]) -> str | None:
    """End the answer with the token that completes a stop string, as if generation had ended there. The first of the
    strings that the text has; None: it has none."""
    found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return None
    _, stop = min(found)
    shorter = range(1, len(sampled.ids))
    sampled.keep(1 + bisect_left(shorter, True, key=lambda count: stop in chat.decode(sampled.ids[:count])))
    return stop


def rename_calls(reply: Reply, name: str) -> None:
    """Give the calls ids that no other turn has: the same text may come again."""
    for i, call in enumerate(reply.calls):
        call.id = call_id(name, i + 1)
    if "tool_calls" in reply.message:
        reply.message["tool_calls"] = [as_tool_call(call) for call in reply.calls]


def call_records(calls: Sequence[Call], turn: int) -> list[ToolCallRecord]:
    """Calls of a turn as metrics count them. The program runs them and keeps their seconds and results to itself; a
    malformed one reaches it as text."""
    ends = {True: Outcome.OK, False: Outcome.MODEL_ERROR}
    return [
        ToolCallRecord(turn, call.name, call.arguments, call.error or "", ends[call.error is None], seconds=0.0)
        for call in calls
    ]
