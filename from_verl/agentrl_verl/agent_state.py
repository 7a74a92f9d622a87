"""The state of a conversation, under verl's names."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any
from uuid import uuid4

from agentrl_verl.tool_calls import FunctionCall


class AgentState(Enum):
    """What happens next."""

    PENDING = "pending"
    GENERATING = "generating"
    PROCESSING_TOOLS = "processing_tools"
    TERMINATED = "terminated"
    INTERACTING = "interacting"


class AgentData:
    """One conversation. `prompt_ids` grows with all tokens; `response_mask` marks those after the first prompt."""

    def __init__(
        self,
        messages: list[dict[str, Any]],
        image_data: Any = None,
        video_data: Any = None,
        metrics: dict[str, Any] | None = None,
        request_id: str = "",
        tools_kwargs: dict[str, Any] | None = None,
        interaction: Any = None,
        interaction_kwargs: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        self.messages, self.image_data, self.video_data = messages, image_data, video_data
        self.metrics: dict[str, Any] = {} if metrics is None else metrics
        self.request_id = request_id or uuid4().hex
        self.tools_kwargs = tools_kwargs or {}
        self.interaction, self.interaction_kwargs = interaction, interaction_kwargs or {}
        self.prompt_ids: list[int] = []
        self.response_ids: list[int] = []
        self.response_mask: list[int] = []
        self.response_logprobs: list[float] = []
        self.turn_scores: list[float] = []
        self.tool_rewards: list[float] = []
        self.user_turns, self.assistant_turns = 0, 0
        self.tool_calls: list[FunctionCall] = []
        self.routed_experts: Any = None
        self.extra_fields: dict[str, Any] = {}
        self.audio_data: Any = None
        self.mm_processor_kwargs: dict[str, Any] = {}
        vars(self).update(others)


def asked_of(asked: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(messages, sampling_params) of `run(sampling_params, raw_prompt=...)` or `run(messages, sampling_params)`."""
    names = ("sampling_params",) if len(asked) == 1 else ("messages", "sampling_params")
    given = dict(zip(names, asked, strict=False)) | dict(kwargs)
    messages = given["messages"] if "messages" in given else given["raw_prompt"]
    return list(messages), given["sampling_params"]
