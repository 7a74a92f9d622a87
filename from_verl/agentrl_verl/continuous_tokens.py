"""verl 0.9's builder of prompts that only grow, over agentrl's chat format."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat import Chat

Messages = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class MergeResult:
    """A conversation's tokens after some were appended."""

    token_ids: list[int]
    appended_token_count: int
    kind: str = "non_assistant"
    """assistant or non_assistant: who wrote the appended tokens."""
    inserted_token_ids: list[int] = field(default_factory=list)
    removed_prefix_token_count: int = 0


class ContinuousTokenBuilder:
    """The first prompt, and the tokens of each turn after it."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    def supports_multimodal(self) -> bool:
        """Whether the model has a processor."""
        return self.chat.processor.processor is not None

    def build_initial_tokens(self, messages: Messages, *, tools: Any = None, **_: Any) -> list[int]:
        """Tokens of the messages with the generation prompt."""
        return list(self.chat.prompt(self.chat.see(list(messages)), tools))

    def merge_non_assistant_tokens(
        self,
        previous_messages: Messages,
        updated_messages: Messages,
        runtime_token_ids: list[int],
        *,
        tools: Any = None,
    ) -> MergeResult:
        """`runtime_token_ids` and the messages that are new in `updated_messages`. Raises ValueError for others."""
        before, after = list(previous_messages), list(updated_messages)
        if after[: len(before)] != before:
            raise ValueError("updated_messages does not begin with previous_messages; history may only grow")
        last = runtime_token_ids[-1]
        segments = self.chat.observation(
            self.chat.see(after[len(before) :]),
            closed=last in self.chat.stop_token_ids,
            tools=tools,
            last=last,
            history=before,
        )
        ids = [token for _, tokens in segments for token in tokens]
        return MergeResult([*runtime_token_ids, *ids], len(ids))

    def merge_assistant_tokens(self, runtime_token_ids: list[int], assistant_token_ids: list[int]) -> MergeResult:
        """`runtime_token_ids` and a turn that the model wrote."""
        return MergeResult([*runtime_token_ids, *assistant_token_ids], len(assistant_token_ids), "assistant")

    def align_response_metadata(
        self,
        merge_result: MergeResult,
        response_mask: list[int],
        response_logprobs: list[float] | None = None,
        *,
        assistant_logprobs: list[float] | None = None,
    ) -> tuple[list[int], list[float] | None]:
        """Mask and log-probs with an entry for each appended token."""
        count, trained = merge_result.appended_token_count, merge_result.kind == "assistant"
        mask = [*response_mask, *[int(trained)] * count]
        if response_logprobs is None:
            return mask, None
        return mask, [*response_logprobs, *(assistant_logprobs if trained and assistant_logprobs else [0.0] * count)]
