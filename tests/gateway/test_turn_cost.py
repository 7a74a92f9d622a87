"""A turn costs the same however long its conversation is."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from agentrl.engines.engine import Sampling
from agentrl.gateway.protocols import WireProtocol, anthropic, chat, responses
from agentrl.gateway.session import AgentSession
from agentrl.http.serving import parse
from agentrl.trajectory.trajectory import Trajectory
from tests.rollout.scripted import environment, row, says

EARLY, LATE = 4, 64
SAID = "I look at the next part ."


class Steps:
    """Bytecodes that Python has run: the same on every machine, under any load."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self._trace


def asked(protocol: WireProtocol, turns: int) -> bytes:
    """The request for a turn, with all turns before it."""
    said: list[Any] = [{"role": "user", "content": "Look ."}]
    for turn in range(turns):
        said += [{"role": "assistant", "content": SAID}, {"role": "user", "content": f"part {turn % 10} ."}]
    return json.dumps({"model": "m", protocol.HISTORY: said, "max_tokens": 99}).encode()


@pytest.mark.parametrize("protocol", [chat, responses, anthropic])
async def test_late_turns_cost_what_early_ones_cost(protocol: WireProtocol) -> None:
    env, _ = environment(says(*[SAID] * (LATE + 1)), model_length=100_000, response_length=100_000)
    session = AgentSession(Trajectory(row(), "k", 0), env, Sampling(256))
    cost = {}
    for turn in range(LATE + 1):
        text, steps = asked(protocol, turn), Steps()
        if turn in (EARLY, LATE):
            with steps.counted():
                await turn_of(session, protocol, text)
            cost[turn] = steps.count
        else:
            await turn_of(session, protocol, text)
    assert len(session.tree.branches) == 1
    assert cost[LATE] < 1.03 * cost[EARLY]


async def turn_of(session: AgentSession, protocol: WireProtocol, text: bytes) -> None:
    """From the bytes of a request to its answer."""
    request = protocol.read(parse(text))
    protocol.whole(await session.ask(request))
