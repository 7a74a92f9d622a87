"""A chat template and its tokenizer: messages to text, text to ids and back.

What differs from template to template is found out by rendering probes, once, never by a model's name:
whether tool calls and tools are shown at all, whether arguments must be text, whether thinking is read.
"""

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from agentrl.chat.message import Message
from agentrl.errors import UserError
from agentrl.media import Processor, media_of
from agentrl.resources import find
from agentrl.writable import whole

MARK = "agentrlmark"
"""A word that no template alters; its place in a render says where content goes."""

PROMPTS = 256
"""Prompts whose ids are remembered."""

Tools = Sequence[dict[str, Any]] | None


class TemplateRefusal(Exception):
    """The template raised: it cannot show these messages."""


class Template:
    """Thread-safe; holds no state of a conversation."""

    def __init__(
        self,
        tokenizer: Any,
        source: str | None = None,
        kwargs: dict[str, Any] | None = None,
        processor: Processor | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.processor = processor or Processor()
        self.kwargs = kwargs or {}
        self.source = _source(tokenizer, source)
        self._arguments_as_text = False
        self._content_with_calls: str | None = ""
        self.shows_calls = self._probe_calls()
        self._encoded = lru_cache(maxsize=PROMPTS)(lambda text: tuple(self.encode(text)))

    def render(self, messages: Sequence[Message], tools: Tools = None, *, generation: bool = False) -> str:
        """The conversation as text, its media drawn out. Raises TemplateRefusal when the template cannot show it."""
        # A chat template is code that came with the model: anything may come out of it.
        try:
            text = self.tokenizer.apply_chat_template(
                [self._normalised(m) for m in messages],
                tools=list(tools) if tools else None,
                chat_template=self.source,
                add_generation_prompt=generation,
                tokenize=False,
                **self.kwargs,
            )
            return whole(self.processor.expand(text, media_of(messages)))
        except Exception as error:
            raise TemplateRefusal(f"{type(error).__name__}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens recognised, none added."""
        if self.tokenizer.is_fast:
            # Past the wrapper: it sets truncation state on the shared backend, which threads may not do.
            return self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode_prompt(self, text: str) -> list[int]:
        """`encode` for text that comes again: a group of trajectories begins with one prompt."""
        return list(self._encoded(text))

    def encode_after(self, last: int, text: str) -> list[int]:
        """Ids of `text` as they follow the token `last`, which is not re-encoded itself.

        Tokenizers treat the beginning of a text in ways of their own; a special token in front takes that away.
        """
        if last not in self.added_tokens:
            return self.encode(text)
        ids = self.encode(self.added_tokens[last] + text)
        return ids[1:] if ids[:1] == [last] else self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        if self.tokenizer.is_fast:
            return self.tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False)
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @cached_property
    def added_tokens(self) -> dict[int, str]:
        """Tokens that encode as one id wherever they stand: id to text."""
        return {i: str(token) for i, token in self.tokenizer.added_tokens_decoder.items()}

    def token_id(self, text: str) -> int | None:
        """The id of a special token; None when the vocabulary has no such token."""
        ids = self.encode(text)
        return ids[0] if len(ids) == 1 and ids[0] in self.added_tokens else None

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the prompt tells the model about its tools."""
        parameters = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]}
        tool = {"type": "function", "function": {"name": MARK, "description": "x", "parameters": parameters}}
        return self._shows([{"role": "user", "content": "x"}], tools=[tool])

    @cached_property
    def reads_reasoning(self) -> bool:
        """Whether an assistant message's `reasoning_content` is shown; elsewhere thinking stays in the content."""
        thought = {"role": "assistant", "content": "x", "reasoning_content": MARK}
        return self._shows([{"role": "user", "content": "x"}, thought])

    def _shows(self, messages: list[Message], tools: Tools = None) -> bool:
        try:
            return MARK in self.render(messages, tools)
        except TemplateRefusal:
            return False

    def _probe_calls(self) -> bool:
        """Find how an assistant turn with a tool call must look to be shown."""
        call = {"id": "agentrl00", "type": "function", "function": {"name": "x", "arguments": {"x": MARK}}}
        turn: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
        for content in ("", None):
            for as_text in (False, True):
                self._content_with_calls, self._arguments_as_text = content, as_text
                if self._shows([{"role": "user", "content": "x"}, turn]):
                    return True
        self._content_with_calls, self._arguments_as_text = "", False
        return False

    def _normalised(self, message: Message) -> Message:
        """Parquet fills absent keys with None and OpenAI sends arguments as JSON text; templates choke on both."""
        clean = {key: value for key, value in message.items() if value is not None}
        calls = clean.pop("tool_calls", None)
        if not calls:
            clean.setdefault("content", "")
            return clean
        clean["tool_calls"] = [self._normalised_call(call) for call in calls]
        if not clean.get("content"):
            clean["content"] = self._content_with_calls
        return clean

    def _normalised_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = dict(call.get("function", call))
        function["arguments"] = self._arguments(function.get("arguments"))
        return {"id": call.get("id") or "agentrl00", "type": "function", "function": function}

    def _arguments(self, arguments: Any) -> Any:
        if self._arguments_as_text:
            return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        if not isinstance(arguments, str):
            return arguments or {}
        try:
            return json.loads(arguments)
        except ValueError:
            return arguments


def _source(tokenizer: Any, source: str | None) -> str | None:
    """Jinja text, read from a file where `source` names one; None: the tokenizer's own."""
    if source is not None:
        return source if "{" in source else find(source, what="model.chat_template").read_text(encoding="utf-8")
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "model.chat_template: this tokenizer has no chat template; name a jinja file that fits the model"
        )
    return None
