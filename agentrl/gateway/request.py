"""One request and its answer in any protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrl.gateway.answer_format import AnswerFormat
from agentrl.gateway.conversation import Conversation
from agentrl.trajectory.message import Call

Body = Mapping[str, Any]
"""The JSON object of a request."""

Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class TurnRequest:
    """A request for one turn of the model.

    `role`: the entry of `models` for its model's name; `sampling`: that entry's; `trained`: whether the answer is
    trained on.
    """

    conversation: Conversation
    """Its messages are OpenAI-style: arguments of calls as objects where they are JSON, texts as one string."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """OpenAI-style schemas; none where the client forbids calls."""
    previous: str = ""
    """Id of the answer that the conversation follows; empty where the client sends all of it."""
    same_tools: bool = False
    """Whether the tools are those of the answer that it follows."""
    must_call: str | None = None
    """A tool that the answer has to call; empty: any of them; None: it may call none."""
    allowed: frozenset[str] | None = None
    """Names of the tools that it may call; None: all."""
    model: str = "policy"
    role: str = ""
    trained: bool = True
    sampling: Mapping[str, float] = field(default_factory=dict)
    stream: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    logprobs: int | None = None
    """Number of candidates that the client gets with each token of the answer; None: it wants no log-probs."""
    token_ids: bool = False
    """Whether the client wants the ids of prompt and answer."""
    format: AnswerFormat | None = None
    """The form that the answer has to have, unless it calls a tool."""
    unmet: tuple[str, ...] = ()
    """Wishes that change nothing here, such as a tool that runs at the provider."""
    one_call: bool = False
    """Whether the client wants one call in an answer at the most."""
    body: Body = field(default_factory=dict)
    """The request as it came, for what its protocol repeats in the answer."""

    @property
    def identity(self) -> list[Any]:
        """Without which two requests share no ledger."""
        return [*self.tools, self.role, self.trained]


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """One turn of the model, as a client gets it."""

    id: str
    model: str = "policy"
    created: int = 0
    """Seconds since the epoch."""
    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    """Well-formed ones; the text holds the others."""
    finish: Finish = "stop"
    stop: str | None = None
    """The stop string that ended it."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the prompt that its ledger had before."""
    completion_tokens: int = 0
    tokens: Sequence[Mapping[str, Any]] = ()
    """Each sampled token as OpenAI's protocols show it, and its id, where the client asked for log-probs."""
    body: Body = field(default_factory=dict)
    """The request as it came."""
    prompt_ids: Mapping[str, list[int]] = field(default_factory=dict)
    """`prompt_token_ids`, where the client asked for them."""
    ids: Mapping[str, list[int]] = field(default_factory=dict)
    """`token_ids`, where the client asked for them."""
