"""A chat template and its tokenizer: messages to text, text to ids and back.

Differences between templates are detected by rendering probes once, never by a model's name: whether they show tool
calls and tools, whether arguments must be text, whether they read thinking.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any

from agentrl.chat.byte_level import Decode, decoder
from agentrl.chat.media.processor import Processor
from agentrl.chat.outside_text import MARKER, OutsideText, tail, unmarked
from agentrl.chat.template_bounds import bound_templates
from agentrl.chat.thinking import BLOCKS
from agentrl.core.errors import UserError
from agentrl.core.json_text import whole
from agentrl.core.resources import find, read_text
from agentrl.trajectory.medium import media_of
from agentrl.trajectory.message import Message, Tools

MARK = "agentrlmark"
"""A word that no template changes; its position in a render is the position of the content."""

CACHED_PROMPTS = 256
"""Prompts whose ids are remembered."""
LEAD_TOKENS = 16
"""Tokens at the end of a prompt that are enough to find an open think block."""

PARAMETERS = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]}
TOOL_NAME = "agentrltool"
MARKED_TOOL = {"type": "function", "function": {"name": TOOL_NAME, "description": "x", "parameters": PARAMETERS}}
USER: Message = {"role": "user", "content": "x"}
CALL = {"id": "agentrl00", "type": "function", "function": {"name": "x", "arguments": {"x": MARK}}}
CALLING: Message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANCHORS = ("\n", "0", "!")
"""Texts that a tokenizer hardly ever joins with what follows them."""


class TemplateRefusal(Exception):
    """The template raised: it cannot show these messages."""


@contextmanager
def showing(what: str, fix: str = "") -> Iterator[None]:
    """Turn a refusal to show something into a UserError."""
    try:
        yield
    except TemplateRefusal as error:
        raise UserError(f"model.chat_template cannot show {what}: {error}{fix}") from error


class Template:
    """Thread-safe; holds no state of a conversation."""

    def __init__(
        self,
        tokenizer: Any,
        source: str | None = None,
        kwargs: dict[str, Any] | None = None,
        processor: Processor | None = None,
    ) -> None:
        bound_templates()
        self.tokenizer = tokenizer
        self.processor = processor or Processor()
        self.kwargs = dict(kwargs or {})
        encoding = self.kwargs.pop("tokenizer_kwargs", None)
        self.source = _source(tokenizer, source)
        self.named = self.source is None and "tool_use" in _names(tokenizer)
        """Whether conversations with tools have a separate template."""
        self._arguments_as_text = False
        self._content_with_calls: str | None = ""
        self._outside = OutsideText(tokenizer, ())
        self.shows_calls = self._probe_calls()
        self._shows_time = any("strftime_now" in str(text) for text in self.sources)
        if not isinstance(encoding, Mapping) or encoding.get("split_special_tokens", True):
            self._outside = OutsideText(tokenizer, self._control_tokens())
        self._prompts = lru_cache(maxsize=CACHED_PROMPTS)(lambda text: self._prompt(*json.loads(text)))

    def render(
        self, messages: Sequence[Message], tools: Tools = None, *, generation: bool = False, marked: bool = False
    ) -> str:
        """The conversation as text, its media drawn out. Raises TemplateRefusal when the template cannot show it.

        `marked`: for `encode`, with marks in control tokens that messages spell (outside_text.py).
        """
        # A chat template is code that came with the model: anything may come out of it.
        try:
            text = self.tokenizer.apply_chat_template(
                [self._outer(self._normalised(m)) for m in messages],
                tools=self._outside.marked(list(tools)) if tools else None,
                chat_template=self.source,
                add_generation_prompt=generation,
                tokenize=False,
                **self.kwargs,
            )
            text = whole(self.processor.expand(text, media_of(messages)))
            return text if marked else unmarked(text)
        except Exception as error:
            raise TemplateRefusal(f"{type(error).__name__}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens recognised unless they are marked, none added."""
        if MARKER not in text:
            return self._encode(text)
        ids = self._outside.encode(text)
        if ids is not None:
            return ids
        first, *others = self._outside.pieces(text)
        return [*self._encode(first), *(i for piece in others for i in self.encode_within(piece, encode=self._encode))]

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer.is_fast:
            # Past the wrapper: it sets truncation state on the shared backend, which threads may not do.
            return self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode_within(
        self, text: str, before: str = "", *, encode: Callable[[str], list[int]] | None = None
    ) -> list[int]:
        """Ids of `text` as it goes on after `before`, or in the middle of some text.

        SentencePiece puts a space in front of a text.
        """
        encode = encode or self.encode
        if not self._prefixes:
            return encode(text)
        for anchor in filter(None, (before, *ANCHORS)):
            lead, ids = encode(anchor), encode(anchor + text)
            if ids[: len(lead)] == lead:
                return ids[len(lead) :]
        return encode(text)

    def prompt(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Ids of the messages and the generation prompt, remembered: a group of trajectories begins with one prompt.

        A template that shows the date is rendered each time. Raises TemplateRefusal.
        """
        if self._shows_time:
            return list(self._prompt(messages, tools))
        try:
            key = json.dumps([list(messages), tools])
        except (TypeError, ValueError):  # images, or what a user put there
            return list(self._prompt(messages, tools))
        return list(self._prompts(key))

    def encode_after(self, last: int, text: str) -> list[int]:
        """Ids of `text` as they follow the token `last`, which is not re-encoded itself.

        Tokenizers treat the beginning of a text in a special way; a special token in front prevents that.
        """
        if last not in self.added_tokens:
            return self.encode_within(text)
        ids = self.encode(self.added_tokens[last] + text)
        return ids[1:] if ids[:1] == [last] else self.encode(text)

    def comparable(self, text: str) -> str:
        """`text` without the spaces after control tokens, where decoding puts some there (SentencePiece of old).

        A text and the decoded ids of the same text are equal in this form.
        """
        return self._spaced.sub(r"\1", text) if self._spaced else text

    def beyond(self, text: str, known: str) -> str | None:
        """The rest of a render after `known`, the decoded ids of its beginning; None where it begins otherwise."""
        rest = self._beyond(unmarked(text), known)
        return rest if rest is None or MARKER not in text else tail(text, len(rest))

    def _beyond(self, text: str, known: str) -> str | None:
        if text.startswith(known):
            return text[len(known) :]
        start = self.comparable(known)
        if not self._spaced or not self.comparable(text).startswith(start):
            return None
        at = len(start)
        for match in self._spaced.finditer(text):
            if match.end(1) >= at:
                break
            at += len(match[0]) - len(match[1])
        return text[at:]

    @cached_property
    def decode(self) -> Decode:
        """Text of ids, special tokens included."""
        return decoder(self.tokenizer, self._decode)

    @property
    def additive(self) -> bool:
        """Whether ids stand for bytes: the text of two halves is that of the whole, cut between two characters."""
        return self.decode != self._decode

    def _decode(self, ids: Sequence[int]) -> str:
        if self.tokenizer.is_fast:
            return str(self.tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False))
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    @cached_property
    def added_tokens(self) -> dict[int, str]:
        """Tokens that encode as one id wherever they stand: id to text."""
        return {i: str(token) for i, token in self.tokenizer.added_tokens_decoder.items()}

    def token_id(self, text: str) -> int | None:
        """The id of a special token; None when the vocabulary has no such token."""
        ids = self.encode(text)
        return ids[0] if len(ids) == 1 and ids[0] in self.added_tokens else None

    @cached_property
    def _prefixes(self) -> bool:
        """Whether the tokenizer puts a space in front of a text."""
        tokens = self.tokenizer.convert_ids_to_tokens(self.encode("x"))
        return bool(tokens) and str(tokens[0]).startswith("\u2581")

    @cached_property
    def _spaced(self) -> "re.Pattern[str] | None":
        """Finds control tokens with the spaces after them; None where a decoded text equals what was encoded."""
        control = sorted(self.added_tokens.values(), key=len, reverse=True)
        if not control or not self._prefixes:
            return None
        probe = f"{control[0]}x{control[0]} x"
        if self.decode(self.encode(probe)) == probe:
            return None
        # Tokenizers written in Python put spaces in front of control tokens as well.
        lead = "" if self.tokenizer.is_fast else " *"
        return re.compile(f"{lead}({'|'.join(map(re.escape, control))}) *")

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the prompt tells the model about its tools."""
        return self._shows([USER], [MARKED_TOOL], TOOL_NAME)

    @cached_property
    def reads_reasoning(self) -> bool:
        """Whether an assistant message's `reasoning_content` is shown; elsewhere thinking stays in the content."""
        thought = {"role": "assistant", "content": "x", "reasoning_content": MARK}
        return any(self._shows([USER, thought], tools) for tools in self._kinds)

    @property
    def sources(self) -> list[str]:
        """The Jinja text of the template, or of each of the templates."""
        own = self.tokenizer.chat_template
        return [self.source] if self.source else list(own.values()) if isinstance(own, dict) else [own]

    @property
    def _kinds(self) -> tuple[Tools, ...]:
        """Tools that pick each of the templates."""
        return (None, [MARKED_TOOL]) if self.named else (None,)

    def _shows(self, messages: list[Message], tools: Tools = None, mark: str = MARK) -> bool:
        try:
            return mark in self.render(messages, tools)
        except TemplateRefusal:
            return False

    def _probe_calls(self) -> bool:
        """Find how an assistant turn with a tool call must look to be shown."""
        for content in ("", None):
            for as_text in (False, True):
                self._content_with_calls, self._arguments_as_text = content, as_text
                if any(self._shows([USER, CALLING], tools) for tools in self._kinds):
                    return True
        self._content_with_calls, self._arguments_as_text = "", False
        return False

    def _prompt(self, messages: Sequence[Message], tools: Tools) -> tuple[int, ...]:
        return tuple(self.encode(self.render(messages, tools, generation=True, marked=True)))

    def _control_tokens(self) -> set[str]:
        """Tokens that text from outside may not write: the special ones, and those that the template writes around
        messages. Tags of thinking are not among them, unless they are special: prompts explain them to the model."""
        user: Message = {"role": "user", "content": MARK}
        answer: Message = {"role": "assistant", "content": MARK}
        special = {str(token) for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        around = self._written([user], generation=True) | self._written([user, answer, user])
        return special | (around - {*BLOCKS, *BLOCKS.values()})

    def _written(self, messages: list[Message], *, generation: bool = False) -> set[str]:
        """The added tokens that the template writes."""
        try:
            ids = self.encode(self.render(messages, generation=generation))
        except TemplateRefusal:
            return set()
        return {self.added_tokens[i] for i in ids if i in self.added_tokens}

    def _outer(self, message: Message) -> Message:
        """The message with its spellings of control tokens marked, unless the model is said to have written it."""
        return {**self._outside.marked(message, own=message["role"] == "assistant"), "role": message["role"]}

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


def template_text(source: str) -> str:
    """Jinja text, given directly or read from a file. Raises UserError."""
    return source if "{" in source else read_text(find(source, what="model.chat_template"))


def _source(tokenizer: Any, source: str | None) -> str | None:
    """Jinja text, read from a file where `source` names one; None: the tokenizer's own."""
    if source is not None:
        return template_text(source)
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "model.chat_template: this tokenizer has no chat template; name a jinja file that fits the model"
        )
    names = _names(tokenizer)
    if names and "default" not in names:
        raise UserError(
            f"model.chat_template: this tokenizer has templates named {', '.join(names)} and none named default; save "
            "the one to use as a jinja file and name that"
        )
    return None


def _names(tokenizer: Any) -> list[str]:
    """The names of a tokenizer's templates, where it has several."""
    template = getattr(tokenizer, "chat_template", None)
    return sorted(template) if isinstance(template, dict) else []
