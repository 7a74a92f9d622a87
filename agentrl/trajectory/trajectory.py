"""One conversation as it happened: messages, ledgers, rewards, outcome, timings."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from agentrl.core.errors import plural
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.message import Message
from agentrl.trajectory.outline import LedgerOutline
from agentrl.trajectory.row import Row

VALIDATION = "val-"
"""Begins the keys of a validation's trajectories."""


class Outcome(StrEnum):
    """How a tool call or a whole trajectory ended."""

    OK = "ok"
    MODEL_ERROR = "model_error"
    """The model wrote a bad call; it read the error and continued."""
    INFRA_ERROR = "infra_error"
    """A tool, sandbox or engine failed; the sample is not trained on."""


Finish = Literal["stop", "terminated", "length", "max_turns", "max_errors", "timeout", "error"]
"""Why a trajectory ended: the model stopped, the interaction closed it, the length or turn limit, too many
bad tool calls in a row, the wall-time limit, an infrastructure error."""


@dataclass
class ToolCallRecord:
    """One tool call, for dumps and metrics."""

    turn: int
    name: str
    arguments: Any
    response: str
    outcome: Outcome
    seconds: float
    reward: float = 0.0
    metrics: dict[str, Any] = field(default_factory=dict)
    """The third part of the tool's answer."""


@dataclass
class TurnReward:
    """A reward earned within the conversation; it lands on the last model token of `turn`."""

    turn: int
    value: float
    source: Literal["tool", "interaction", "environment"]
    extra: dict[str, Any] = field(default_factory=dict)
    """The last part of the interaction's reply."""


SpanKind = Literal[
    "generate", "tool", "interaction", "wait", "score", "environment", "build", "start", "set_up", "verify"
]


@dataclass
class Span:
    """A period of a trajectory; seconds since the epoch. A `wait` is the time in a queue before the next span."""

    kind: SpanKind
    start: float
    end: float


@dataclass
class Trajectory:
    """A row's conversation. `ledgers` holds one training sample, or more where history was rewritten."""

    row: Row
    """The row that it answers."""
    key: str
    """Names this trajectory within a run: "<step>/<row uid>/<sample>", with VALIDATION before it in a validation."""
    sample: int
    """Index within its group of `rollout.n`."""
    messages: list[Message] = field(default_factory=list)
    """The conversation, the prompt's messages first; text for people, made of the tokens."""
    schemas: list[dict[str, Any]] = field(default_factory=list)
    """Schemas of the tools in the prompt."""
    ledgers: list[Ledger] = field(default_factory=list)
    """Its tokens."""
    outcome: Outcome = Outcome.OK
    """How it ended; one with INFRA_ERROR is not trained on."""
    finish: Finish = "stop"
    """Why it ended."""
    error: str | None = None
    """The failure, in a line, where there was one."""
    turns: int = 0
    """Assistant turns taken."""
    user_turns: int = 0
    """Replies of the simulated user."""
    tool_calls: list[ToolCallRecord] = field(default_factory=list)
    """All calls, in their order."""
    turn_rewards: list[TurnReward] = field(default_factory=list)
    """Rewards within the conversation, besides `reward`."""
    tool_rewards: dict[str, float] = field(default_factory=dict)
    """`calc_reward` of each tool, by tool name, taken once at the end."""
    interaction_score: float | None = None
    """`calculate_score` of the interaction, taken once at the end."""
    reward: float | None = None
    """The final reward, without turn rewards; None before scoring and without a score. An agent loop may set it: then
    no reward function is called."""
    side_rewards: list[float] = field(default_factory=list)
    """The final reward of each side, where the policy plays several sides of a game: each falls on the ledgers of its
    side, and `reward` is that of the first. Empty elsewhere."""
    length_penalty: float = 0.0
    """The part of `reward` for the length alone: 0 or less."""
    reward_extra: dict[str, Any] = field(default_factory=dict)
    """All values of the reward function's dict, as plain data; numbers are logged as metrics."""
    advantages: list[Any] = field(default_factory=list, compare=False)
    """Advantages of the tokens of each ledger, f32 [T] each, 0 off the mask; empty before the step trains on it, and
    where it does not."""
    spans: list[Span] = field(default_factory=list)
    """Its seconds: when it was sampled, called tools, waited."""
    extra: dict[str, Any] = field(default_factory=dict)
    """For the user's agent loops and tools; the reward function gets it in `extra_info`."""
    loop_lag: float = 0.0
    """The longest time in seconds that the event loop was blocked while the batch ran."""
    container: Any = field(default=None, repr=False, compare=False)
    """The row's container (`agentrl.containers.Container`) while the trajectory runs; None before, after and for rows
    without one."""
    templated: bool = True
    """Whether the chat template rendered the prompt tokens; false for a loop that writes tokens itself."""

    def __repr__(self) -> str:
        reward = "no reward" if self.reward is None else f"reward {self.reward:g}"
        made = sum(ledger.model_tokens for ledger in self.outlines)
        facts = f"{plural(self.turns, 'turn')}, {plural(made, 'model token')}, {reward}"
        return f"Trajectory({self.key!r}, {self.outcome}, {self.finish}, {facts})"

    @property
    def outlines(self) -> Sequence[Ledger | LedgerOutline]:
        """Facts about the tokens of each ledger: the ledgers themselves, or their outlines where these are in a
        store."""
        return self.ledgers

    @property
    def calls(self) -> list[ToolCallRecord]:
        """Facts about all tool calls; without their texts where these are in a store."""
        return self.tool_calls

    @property
    def validates(self) -> bool:
        """Whether it is one of a validation, which is never trained on."""
        return self.key.startswith(VALIDATION)

    @property
    def scored(self) -> bool:
        """Whether it has a valid reward: one without an infrastructure error."""
        return self.reward is not None and self.outcome is not Outcome.INFRA_ERROR

    @property
    def trainable(self) -> bool:
        """Whether it can be trained on: scored, with tokens of the model."""
        return self.scored and any(ledger.model_tokens for ledger in self.outlines)

    def part(self, prompt: list[Message]) -> "Trajectory":
        """A further conversation on the same row, in the same container, for `append`."""
        row = replace(self.row, prompt=prompt)
        return Trajectory(row, self.key, self.sample, extra=self.extra, container=self.container)

    def append(self, part: "Trajectory") -> None:
        """Take over the tokens, messages and records of a conversation that followed; its turns are counted on."""
        for ledger in part.ledgers:
            ledger.turns[:] = [turn + self.turns for turn in ledger.turns]
        records: list[ToolCallRecord | TurnReward] = [*part.tool_calls, *part.turn_rewards]
        for record in records:
            record.turn += self.turns
        for name in ("messages", "ledgers", "tool_calls", "turn_rewards", "spans"):
            getattr(self, name).extend(getattr(part, name))
        self.turns, self.user_turns = self.turns + part.turns, self.user_turns + part.user_turns
        self.schemas, self.finish, self.templated = part.schemas, part.finish, False
        self.tool_rewards |= part.tool_rewards
        if part.outcome is not Outcome.OK:
            self.outcome, self.error = part.outcome, part.error
