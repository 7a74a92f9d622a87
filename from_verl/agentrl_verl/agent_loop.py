"""verl's base class of agent loops, its single turn loop, and what such loops are given and give back."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from agentrl.core.errors import UserError
from agentrl.rollout.loops import SingleTurn
from agentrl_verl.agent_state import asked_of
from agentrl_verl.continuous_tokens import ContinuousTokenBuilder

Kind = TypeVar("Kind", bound=type)

AGENT_LOOPS: dict[str, type] = {}
"""By the name that users registered them under."""


def register(agent_name: str) -> Callable[[Kind], Kind]:
    """A decorator that makes a loop known to rows and settings."""

    def decorate(kind: Kind) -> Kind:
        AGENT_LOOPS[agent_name] = kind
        return kind

    return decorate


@dataclass
class DictConfigWrap:
    """Holds a configuration."""

    config: Any


class Fields:
    """Named values, those that verl's classes have and any other; `defaults` where none was given."""

    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, **fields: Any) -> None:
        vars(self).update({name: default() for name, default in self.defaults.items()} | fields)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """All of them."""
        return dict(vars(self))


def _nothing() -> None:
    return None


class AgentLoopMetrics(Fields):
    """Seconds, by what took them."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "generate_sequences": float,
        "tool_calls": float,
        "compute_score": float,
        "num_preempted": lambda: -1,
    }


class AgentLoopOutput(Fields):
    """What a conversation left: `prompt_ids`, `response_ids` and `response_mask` (1: the model's own), and more.

    `response_logprobs` counts only for tokens that the loop did not get from `server_manager.generate`; with
    `reward_score` no reward function is asked.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None
    multi_modal_data: dict[str, Any] | None
    reward_score: float | None
    num_turns: int
    metrics: Any
    extra_fields: dict[str, Any]
    defaults: ClassVar[Mapping[str, Any]] = {
        "response_logprobs": _nothing,
        "multi_modal_data": _nothing,
        "reward_score": _nothing,
        "routed_experts": _nothing,
        "mm_processor_kwargs": _nothing,
        "num_turns": int,
        "metrics": AgentLoopMetrics,
        "extra_fields": dict,
    }


@dataclass
class ToolListWrap:
    """Holds tools."""

    tools: list[Any]


class TokenOutput(list[int]):
    """Sampled tokens: the list that verl 0.5 gives, with the attributes that it has since 0.6."""

    def __init__(self, token_ids: Iterable[int] = (), log_probs: list[float] | None = None, **others: Any) -> None:
        super().__init__(token_ids)
        self.log_probs = log_probs
        self.stop_reason: str | None = others.get("stop_reason")
        self.routed_experts, self.num_preempted = None, None
        self.extra_fields: dict[str, Any] = others.get("extra_fields") or {}

    @property
    def token_ids(self) -> list[int]:
        """The tokens."""
        return list(self)


class AgentLoopBase:
    """One object a conversation. Its `run` returns an AgentLoopOutput, or a list of them."""

    _class_initialized: ClassVar[bool] = False

    def __init__(
        self,
        trainer_config: DictConfigWrap,
        server_manager: Any,
        tokenizer: Any,
        processor: Any = None,
        dataset_cls: Any = None,
        data_config: DictConfigWrap | None = None,
        **kwargs: Any,
    ) -> None:
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.server_manager, self.tokenizer, self.processor = server_manager, tokenizer, processor
        self.dataset_cls = dataset_cls
        self.data_config = self.dataset_config = data_config.config if data_config else self.config.data
        self.apply_chat_template_kwargs = self.data_config.get("apply_chat_template_kwargs", {})
        self.mm_processor_kwargs = self.data_config.get("mm_processor_kwargs") or {}
        self.continuous_token_builder = ContinuousTokenBuilder(server_manager.env.chat)
        self.enable_continuous_token = True
        self.loop = asyncio.get_running_loop()
        self.init_class(config=self.config, tokenizer=tokenizer, processor=processor, **kwargs)

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any, processor: Any = None, **kwargs: Any) -> None:
        """What all objects share, once."""
        cls._class_initialized = True

    @cached_property
    def system_prompt(self) -> list[int]:
        """Tokens that the template writes before a conversation without a system message."""
        once, twice = (self._rendered([""] * times) for times in (1, 2))
        return once[: 2 * len(once) - len(twice)]

    @cached_property
    def turn_separator(self) -> list[int]:
        """Tokens that the template writes between the end of a turn and the next turn."""
        ids, stops = self._rendered(["a"]), self.server_manager.env.chat.stop_token_ids
        after = next((i for i, token in enumerate(reversed(ids)) if token in stops), 0)
        return ids[len(ids) - after :]

    def _get_mm_processor_kwargs(self, audio_data: list[Any] | None = None) -> dict[str, Any]:
        rate = getattr(getattr(self.processor, "feature_extractor", None), "sampling_rate", None)
        heard = {} if audio_data is None or rate is None else {"sampling_rate": int(rate)}
        return heard | dict(self.mm_processor_kwargs)

    def _assert_mm_supported(self, has_multi_modal: bool) -> None:
        if has_multi_modal and not self.continuous_token_builder.supports_multimodal():
            raise UserError("the conversation has images, videos or sound, and the model has no processor for them")

    def _cap_text_prompt_length(self, prompt_ids: list[int]) -> list[int]:
        return prompt_ids[-self.rollout_config.prompt_length :]

    async def process_vision_info(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The messages' images and videos, as PIL images."""
        seen = self.server_manager.env.chat.see(messages)
        kinds = {"images": "image", "videos": "video"}
        from agentrl.trajectory.medium import media_of

        found = {name: [m.source for m in media_of(seen) if m.kind == kind] for name, kind in kinds.items()}
        return {name: pictures for name, pictures in found.items() if pictures}

    process_multi_modal_info = process_vision_info

    async def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        images: Any = None,
        videos: Any = None,
        remove_system_prompt: bool = False,
        **_: Any,
    ) -> list[int]:
        """Tokens of the messages with the generation prompt; images and videos are those in the messages."""
        ids = self._prompt(messages, tools)
        return ids[len(self.system_prompt) :] if remove_system_prompt else ids

    async def ct_build_initial_tokens(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **_: Any
    ) -> list[int]:
        """verl 0.9's name for it."""
        return self._prompt(messages, tools)

    async def ct_merge_non_assistant_msg(
        self,
        previous_messages: list[dict[str, Any]],
        updated_messages: list[dict[str, Any]],
        runtime_token_ids: list[int],
        response_mask: list[int],
        response_logprobs: list[float] | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> Any:
        """(MergeResult, mask, log-probs) after messages of tools and users."""
        builder = self.continuous_token_builder
        merged = builder.merge_non_assistant_tokens(previous_messages, updated_messages, runtime_token_ids, tools=tools)
        return (merged, *builder.align_response_metadata(merged, response_mask, response_logprobs))

    async def ct_merge_assistant_token(
        self,
        runtime_token_ids: list[int],
        assistant_token_ids: list[int],
        response_mask: list[int],
        response_logprobs: list[float] | None = None,
        assistant_logprobs: list[float] | None = None,
    ) -> Any:
        """(MergeResult, mask, log-probs) after a turn of the model's."""
        builder = self.continuous_token_builder
        merged = builder.merge_assistant_tokens(runtime_token_ids, assistant_token_ids)
        given = {"assistant_logprobs": assistant_logprobs}
        return (merged, *builder.align_response_metadata(merged, response_mask, response_logprobs, **given))

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """Hold the conversation; `kwargs` are the row's columns."""
        raise NotImplementedError(f"{type(self).__name__} does not define run()")

    def _rendered(self, users: list[str]) -> list[int]:
        """Tokens of user messages, without the generation prompt."""
        template = self.server_manager.env.chat.template
        return list(template.encode(template.render([{"role": "user", "content": text} for text in users])))

    def _prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> list[int]:
        chat = self.server_manager.env.chat
        return list(chat.prompt(chat.see(messages), tools))


class SingleTurnAgentLoop(AgentLoopBase):
    """One answer. `run(sampling_params, **columns)`, or verl 0.5's `run(messages, sampling_params)`."""

    served_by: ClassVar[type] = SingleTurn
    """agentrl's loop that stands for the class itself."""

    async def run(self, *asked: Any, **kwargs: Any) -> Any:
        """Ask once."""
        messages, sampling_params = asked_of(asked, kwargs)
        prompt_ids = await self.apply_chat_template(messages)
        seen = await self.process_vision_info(messages)
        output = await self.server_manager.generate(
            prompt_ids=prompt_ids, sampling_params=sampling_params, image_data=seen.get("images")
        )
        ids = list(output.token_ids)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=ids,
            response_mask=[1] * len(ids),
            response_logprobs=output.log_probs,
            multi_modal_data=seen,
            num_turns=2,
        )
