"""The simulated user of one trajectory.

Invariants:
- after `start` has begun, `finalize_interaction` is called exactly once, also after timeouts, failures and
  cancellation, and runs to its end even when the trajectory's task is cancelled meanwhile;
- an error in the user's code raises InfraError; UserError passes unchanged.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from agentrl.core.errors import InfraError, UserError
from agentrl.core.json_text import recorded, whole
from agentrl.core.user_code import Cleanup, Threads, UserFunction
from agentrl.tools.options import IN_THREAD_FIX
from agentrl.tools.response import read_number
from agentrl.trajectory.trajectory import TurnReward

log = logging.getLogger(__name__)

METHODS = ("start_interaction", "generate_response", "calculate_score", "finalize_interaction")


@dataclass(frozen=True)
class InteractionReply:
    """One reply of the simulated user."""

    stop: bool
    """The conversation is over; `text` is then not shown to the model."""
    text: str
    score: float = 0.0
    """For the model's last turn."""
    extra: dict[str, Any] = field(default_factory=dict)

    def earned(self, turn: int) -> TurnReward:
        """The score for the record."""
        return TurnReward(turn, self.score, "interaction", recorded(self.extra))


class InteractionRunner:
    """One interaction and its time limit, shared by all trajectories."""

    def __init__(self, name: str, interaction: Any, timeout: float | None, *, in_thread: bool = False) -> None:
        """`in_thread`: async methods run in threads too, each call in an event loop of its own."""
        self.name = name
        self.timeout = timeout
        owner = f"interaction {name!r}"
        self.methods = {
            method: UserFunction(getattr(interaction, method), owner=owner, fix=IN_THREAD_FIX, in_thread=in_thread)
            for method in METHODS
        }
        self.scores = self.methods["calculate_score"].fn.__qualname__ != "BaseInteraction.calculate_score"
        self.reported: set[str] = set()

    async def call(self, method: str, *args: Any, kwargs: Mapping[str, Any], threads: Threads | None = None) -> Any:
        """Call a method. Raises InfraError."""
        function = self.methods[method]
        try:
            return await function.run(args, function.fit(kwargs), timeout=self.timeout, threads=threads)
        except UserError:
            raise
        except Exception as error:
            raise self.failure(method, error) from error

    def failure(self, method: str, error: Exception) -> InfraError:
        """The error as an infrastructure error with one line to show; logs the first of its kind."""
        line = f"interaction {self.name!r}: {method} failed: {type(error).__name__}: {' '.join(str(error).split())}"
        kind = f"{method} {type(error).__name__}"
        if kind not in self.reported:
            self.reported.add(kind)
            log.warning("%s (further ones of this kind are only counted)", line, exc_info=error)
        return InfraError(line)


class InteractionSession:
    """What an agent loop holds. `finalize` belongs in a `finally`."""

    def __init__(self, runner: InteractionRunner, kwargs: Mapping[str, Any], cleanup: Cleanup) -> None:
        self.runner = runner
        self.kwargs = kwargs
        self.cleanup = cleanup
        self.id = uuid4().hex
        self.begun = False
        self.finalized = False
        self.starting: Threads = set()
        self.last_score = 0.0
        self.final_score: float | None = None

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
        try:
            reply = _read_reply(answer)
        except (TypeError, ValueError) as error:
            raise self.runner.failure("generate_response", error) from error
        self.last_score = reply.score
        return reply

    async def score(self) -> float:
        """calculate_score where it is defined, the last turn's score otherwise. Asked once; raises InfraError."""
        if self.final_score is None:
            self.final_score = await self._score() if self.runner.scores else self.last_score
        return self.final_score

    async def finalize(self) -> None:
        """End, once. Never raises; safe to call twice."""
        if self.begun and not self.finalized:
            self.finalized = True
            await self.cleanup.run(self._finalize())

    async def _score(self) -> float:
        answer = await self.runner.call("calculate_score", self.id, kwargs=self.kwargs)
        try:
            return read_number(answer)
        except (TypeError, ValueError) as error:
            raise self.runner.failure("calculate_score", error) from error

    async def _finalize(self) -> None:
        if self.starting:
            # A start that overstayed in its thread would make its state after we ended it.
            await asyncio.wait(self.starting, timeout=self.runner.timeout)
        try:
            await self.runner.call("finalize_interaction", self.id, kwargs=self.kwargs)
        except (InfraError, UserError):
            return  # the runner has logged it, and the trajectory is over


def _read_reply(answer: Any) -> InteractionReply:
    if not isinstance(answer, tuple) or not 2 <= len(answer) <= 4:
        raise TypeError(f"returned {answer!r}: return (should_terminate, content, score, extra)")
    stop, text, score, extra = (*answer, None, None)[:4]
    return InteractionReply(bool(stop), "" if text is None else whole(str(text)), read_number(score), dict(extra or {}))
