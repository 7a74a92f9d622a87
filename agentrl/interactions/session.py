"""The simulated user of one trajectory.

Invariants:
- after `start` has begun, `finalize_interaction` is called exactly once, also after timeouts, failures and
  cancellation, and runs to its end even when the trajectory's task is cancelled meanwhile;
- an error in the user's code raises InfraError; UserError passes unchanged.

Timeouts are enforced in `MethodRunner.call` (tools/runner.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from agentrl.core.json_text import cleaned, whole
from agentrl.core.user_code import Cleanup, Threads
from agentrl.tools.response import read_number
from agentrl.tools.runner import MethodRunner
from agentrl.trajectory.trajectory import TurnReward

METHODS = ("start_interaction", "generate_response", "calculate_score", "finalize_interaction")


@dataclass(frozen=True)
class InteractionReply:
    """One reply of the simulated user."""

    stop: bool
    """The conversation is over; `text` is then not shown to the model."""
    text: str
    score: float = 0.0
    """Score of the model's last turn."""
    extra: dict[str, Any] = field(default_factory=dict)

    def turn_reward(self, turn: int) -> TurnReward:
        """The score for the record."""
        return TurnReward(turn, self.score, "interaction", cleaned(self.extra))


class InteractionSession:
    """Starts, asks and finalizes the simulated user of one trajectory. `finalize` belongs in a `finally`."""

    def __init__(self, runner: MethodRunner, kwargs: Mapping[str, Any], cleanup: Cleanup) -> None:
        self.runner = runner
        self.kwargs = kwargs
        self.cleanup = cleanup
        self.id = uuid4().hex
        self.begun = False  # and not finalized yet
        self.starting: Threads = set()
        self.last_score = 0.0

    async def start(self) -> None:
        """Begin. Raises InfraError."""
        self.begun = True
        given = await self.runner.call("start_interaction", self.id, kwargs=self.kwargs, threads=self.starting)
        if isinstance(given, str) and given:
            self.id = given

    async def respond(self, messages: list[dict[str, Any]]) -> InteractionReply:
        """React to the model's answer, the last of `messages`. Raises InfraError."""
        # Copies: the user's code may change what it is given, the trajectory must not.
        copies = [dict(message) for message in messages]
        answer = await self.runner.call("generate_response", self.id, copies, kwargs=self.kwargs)
        with self.runner.reading("generate_response"):
            reply = _read_reply(answer)
        self.last_score = reply.score
        return reply

    async def score(self) -> float:
        """calculate_score where it is defined, the last turn's score otherwise. Raises InfraError."""
        scores = self.runner.methods["calculate_score"]
        # One that needs more than verl would give is a helper of its generate_response.
        if self.runner.inherits("calculate_score") or not scores.fits((self.id,), self.kwargs):
            return self.last_score
        answer = await self.runner.call("calculate_score", self.id, kwargs=self.kwargs)
        with self.runner.reading("calculate_score"):
            return read_number(answer)

    async def finalize(self) -> None:
        """End, once. Never raises; safe to call twice."""
        if self.begun:
            self.begun = False
            ending = self.runner.end("finalize_interaction", self.id, self.kwargs, self.starting)
            await self.cleanup.run(ending)


def _read_reply(answer: Any) -> InteractionReply:
    if not isinstance(answer, tuple) or not 2 <= len(answer) <= 4:
        raise TypeError(f"returned {answer!r}: return (should_terminate, content, score, extra)")
    stop, text, score, extra = (*answer, None, None)[:4]
    return InteractionReply(bool(stop), "" if text is None else whole(str(text)), read_number(score), dict(extra or {}))
