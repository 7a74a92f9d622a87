"""One conversation as it happened: messages, ledgers, rewards, outcome, timings."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.row import Row

Message = dict[str, Any]
"""An OpenAI-style message: role, content, tool_calls?, tool_call_id?, name?, reasoning_content?"""


class Outcome(StrEnum):
    """How a tool call or a whole trajectory ended."""

    OK = "ok"
    MODEL_ERROR = "model_error"
    """The model wrote a bad call; it saw the error and went on."""
    INFRA_ERROR = "infra_error"
    """A tool, sandbox or engine failed; the sample teaches nothing."""


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


@dataclass
class TurnReward:
    """A reward earned within the conversation; it lands on the last model token of `turn`."""

    turn: int
    value: float
    source: Literal["tool", "interaction"]


SpanKind = Literal["generate", "tool", "interaction", "wait", "score"]


@dataclass
class Span:
    """A stretch of a trajectory's life; seconds since the epoch. In a `wait` it stands in line for what follows."""

    kind: SpanKind
    start: float
    end: float


@dataclass
class Trajectory:
    """A row's conversation. `ledgers` holds one training sample, or more where history was rewritten."""

    row: Row
    key: str
    """Names this trajectory within a run: "<step>/<row uid>/<sample>"."""
    sample: int
    """Index within its group of `rollout.n`."""
    messages: list[Message] = field(default_factory=list)
    schemas: list[dict[str, Any]] = field(default_factory=list)
    """Tools as the model saw them."""
    ledgers: list[Ledger] = field(default_factory=list)
    outcome: Outcome = Outcome.OK
    finish: Finish = "stop"
    error: str | None = None
    turns: int = 0
    """Assistant turns taken."""
    user_turns: int = 0
    tool_calls: list[ToolCallRecord] = field(default_factory=list)
    turn_rewards: list[TurnReward] = field(default_factory=list)
    tool_rewards: dict[str, float] = field(default_factory=dict)
    """`calc_reward` of each tool, by tool name, taken once at the end."""
    interaction_score: float | None = None
    """`calculate_score` of the interaction, taken once at the end."""
    reward: float | None = None
    """What the trajectory is trained on, without turn rewards; None until scored, or when there is no score. A loop of
    the user's own may set it: no reward function is asked then."""
    length_penalty: float = 0.0
    """The part of `reward` that is for its length alone: 0, or less."""
    reward_extra: dict[str, Any] = field(default_factory=dict)
    """Other values of the reward function's dict: logged as metrics."""
    spans: list[Span] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    """Free for a user's own agent loop and tools; the reward function finds it in `extra_info`."""
    loop_lag: float = 0.0
    """Seconds that the event loop stood still at most while its batch ran."""
    templated: bool = True
    """Whether the chat template wrote what the model read; a loop that writes tokens itself says no."""

    @property
    def scored(self) -> bool:
        """Whether it has a reward that means something: no infrastructure error stands behind it."""
        return self.reward is not None and self.outcome is not Outcome.INFRA_ERROR

    @property
    def trainable(self) -> bool:
        """Whether the sample may teach: scored, with tokens the model made."""
        return self.scored and any(ledger.model_tokens for ledger in self.ledgers)
