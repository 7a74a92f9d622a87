"""From messages to tokens and back, one `Chat` per run.

Invariants:
- nothing the engine sampled is ever re-encoded: a turn's ids go in through `parse` and only text comes out;
- what `observation` returns is encoded as one text that begins with the turn's end, so it equals the same
  stretch of a one-shot tokenization wherever the template is append-only;
- `transcript` is made of the same pieces as a rollout: prompt, assistant text, observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from agentrl.chat import check as checking
from agentrl.chat.check import Mismatch
from agentrl.chat.context import EMPTY, Context, Glances
from agentrl.chat.fixed_base import DOCUMENT_ENDS, FixedBase
from agentrl.chat.formats import FALLBACK, call_ends, readers
from agentrl.chat.media import Processor
from agentrl.chat.memory import Memory, Parts
from agentrl.chat.parsers import format_stops, parser_for
from agentrl.chat.pieces import Piece, Pieces
from agentrl.chat.template import LEAD, MARKED_TOOL, Template, TemplateRefusal, Tools
from agentrl.chat.thinking import BLOCKS, begins_with, left_open
from agentrl.chat.transcript import transcript
from agentrl.core.errors import UserError
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.message import Message, Reply, as_tool_call

FORMAT = "rollout.multi_turn.format"
READY_MADE = "configs/templates/chatml_tools.jinja"
CONTEXTS = 256
"""Contexts whose surrounding texts are remembered: a group of trajectories has one."""


@dataclass(frozen=True)
class Append:
    """The history stands; `pieces` follow it."""

    pieces: list[Piece]


@dataclass(frozen=True)
class Split:
    """The template rewrote the history: a new sample begins with the prompt `ids`."""

    ids: list[int]


class Chat:
    """Chat template, tool-call format and stop tokens of one model. Thread-safe, knows no trajectory."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        format: str | None = None,
        chat_template: str | None = None,
        inference_template: bool = False,
        check: str = "strict",
        template_kwargs: dict[str, Any] | None = None,
        processor: Processor | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """`chat_template` is Jinja text or a file; `template_kwargs` reach the template (enable_thinking, say).
        `format` None: the one that reads the template's own calls (formats.py). `processor`: how the model sees images;
        None: it does not. `stop_token_ids`: the model's, besides those that tokenizer and template tell.

        Raises UserError for an unknown format or mode, or a template that cannot show a conversation.
        """
        given = None if format is None else parser_for(format)
        if check not in checking.MODES:
            modes = ", ".join(checking.MODES)
            raise UserError(
                f"rollout.multi_turn.tokenization_sanity_check_mode: {check!r} is unknown; use one of {modes}"
            )
        self.tokenizer = tokenizer
        self._with_kwargs = lru_cache(
            lambda **others: Chat(
                tokenizer,
                format=format,
                chat_template=chat_template,
                inference_template=inference_template,
                check=check,
                template_kwargs={**(template_kwargs or {}), **others},
                processor=processor,
                stop_token_ids=stop_token_ids,
            )
        )
        self.inference_template = inference_template
        self.check = check
        self.processor = processor or Processor()
        self.template = Template(tokenizer, chat_template, template_kwargs, self.processor)
        self.readers = readers(self.template, () if given is None or format is None else ((format, given),))
        """Formats that read the template's own calls, the best first."""
        self.format = format or next(iter(self.readers), FALLBACK)
        self._parser = given or parser_for(self.format)
        eos = [tokenizer.eos_token] if tokenizer.eos_token else []
        self._stops = [*eos, *self._other_ends(stop_token_ids)]
        self._glances = Glances(self.template)
        self._pieces_of = lru_cache(maxsize=CONTEXTS)(self._new_pieces)
        try:
            self._pieces = self._pieces_of(EMPTY)
        except TemplateRefusal as error:
            raise UserError(f"model.chat_template cannot show a user and an assistant message: {error}") from error
        self._parts = Parts(self.template, self._pieces.base.stops)
        self.stop_token_ids = self._stop_token_ids()
        """Tokens that end a turn; never empty."""

    def with_kwargs(self, **kwargs: bool) -> "Chat":
        """The same chat whose template gets `kwargs` besides its own; made once for each choice of them."""
        return self._with_kwargs(**kwargs) if kwargs else self

    def see(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as all else here takes them: with a `Medium` for each image and video. Raises UserError."""
        return self.processor.see(messages)

    def prompt(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Ids of the messages and the generation prompt. Raises UserError when the template cannot show them."""
        if tools and not self.template.shows_tools:
            raise UserError(
                f"model.chat_template: this template does not show tools to the model; set it to {READY_MADE} "
                "(ChatML models) or to one that renders `tools`"
            )
        try:
            return self.template.encode_prompt(self.template.render(messages, tools, generation=True))
        except TemplateRefusal as error:
            raise UserError(f"model.chat_template cannot show this conversation: {error}") from error

    def parse(self, ids: Sequence[int], tools: Tools = None, *, lead: Sequence[int] = ()) -> Reply:
        """One sampled turn. Never raises: what the model got wrong is in `Call.error`.

        With `tools`, formats without types of their own (glm, qwen3_coder) read values by the tools' schemas. `lead`:
        the ids before the turn, or the last few: they tell whether the turn begins inside a think block.
        """
        closed = bool(ids) and ids[-1] in self.stop_token_ids
        text = self.template.decode(ids[:-1] if closed else ids)
        return self.read(text, closed=closed, tools=tools, lead=self.template.decode(lead[-LEAD:]) if lead else None)

    def read(self, text: str, *, closed: bool = True, tools: Tools = None, lead: str | None = None) -> Reply:
        """`parse` for text. Without `lead` a think block that the generation prompt opens after a user is believed."""
        opening = self._begins_in_thought(text, lead)
        if opening:
            text = f"{opening}\n{text}"
        parsed = self._parser(text, tools)
        message: Message = {"role": "assistant", "content": parsed.content}
        broken = any(call.error for call in parsed.calls)
        if parsed.reasoning is not None and self.template.reads_reasoning:
            message["reasoning_content"] = parsed.reasoning
            message["content"] = text.removeprefix(parsed.preamble) if broken else parsed.content
        else:
            message["content"] = text if broken else parsed.preamble + parsed.content
        if parsed.calls and not broken:
            message["tool_calls"] = [as_tool_call(call) for call in parsed.calls]
        return Reply(message, parsed.calls, closed)

    def observation(
        self,
        messages: Sequence[Message],
        *,
        closed: bool,
        tools: Tools = None,
        last: int | None = None,
        history: Sequence[Message] = (),
    ) -> list[Piece]:
        """Tokens to append after an assistant turn: the rest of its end, the messages, the generation prompt.

        `closed`: the turn ended with a stop token, which the ledger holds already; otherwise the whole end of the
        turn is among the tokens. `last` is the ledger's last id: it matters only to templates whose turns end
        with the next role's header. `history`: the conversation up to that turn, the turn included; it and `tools`
        matter to templates that look back at them. Raises UserError when the template refuses the messages.
        """
        try:
            if len(history) > 1 and self.looks_back:
                pieces = self._pieces_of(self._glances.context([], tools))
                return pieces.observed(messages, closed=closed, last=last, before=history[:-1])
            return self._pieces_for(history, tools).observed(messages, closed=closed, last=last)
        except TemplateRefusal as error:
            roles = "/".join(dict.fromkeys(message["role"] for message in messages))
            raise UserError(
                f"model.chat_template cannot show {roles} messages: {error}; set it to a template that does, such as "
                f"{READY_MADE}"
            ) from error

    def continuation(
        self, ids: Sequence[int], messages: Sequence[Message], tools: Tools = None, memory: Memory | None = None
    ) -> Append | Split:
        """What the template would show now, against what the ledger holds.

        Append where the ledger's text is a beginning of the template's, even if the model sampled another
        tokenization of that text; Split where history reads differently. A template that refuses the
        conversation for something the model wrote cannot rewrite it: the ledger goes on with the new messages.
        With the same `memory` at each turn of a conversation, only what is new is encoded and decoded.
        """
        memory = memory or Memory()
        new = _new_messages(messages)
        try:
            text = self.template.render(messages, tools, generation=True)
        except TemplateRefusal:
            closed, history = ids[-1] in self.stop_token_ids, messages[: len(messages) - len(new)]
            return Append(self.observation(new, closed=closed, tools=tools, last=ids[-1], history=history))
        pieces = self._pieces_for(messages, tools)
        rest = self.template.beyond(text, self._parts.decode(ids, memory))
        if rest is not None:
            return Append(pieces.continued(self.template.encode_after(ids[-1], rest), new))
        whole = self._parts.encode(text, memory)
        if whole[: len(ids)] == list(ids):
            return Append(pieces.continued(whole[len(ids) :], new))
        self._parts.restart(text, memory)
        return Split(whole)

    def transcript(
        self, messages: Sequence[Message], tools: Tools = None, *, given: int = 0, verbatim: bool = False
    ) -> Ledger:
        """A finished conversation as a training sample: mask 1 on assistant tokens and their end-of-turn.

        The first `given` messages are the prompt, examples of assistant turns among them included. An assistant message
        with `loss_mask: 0` is read and not trained on (mask 0). `verbatim`: what the assistant says stands as it is
        written, where the template would only trim it or put an empty think block before it. Log-probs are 0.0 and
        weight versions 0. Raises UserError when no assistant message follows a prompt.
        """
        try:
            return transcript(self, messages, tools, given, verbatim=verbatim)
        except TemplateRefusal as error:
            raise UserError(f"model.chat_template cannot show this conversation: {error}") from error

    def base_for(self, history: Sequence[Message], tools: Tools) -> FixedBase:
        """What the template writes around the turns of a conversation that begins with `history`."""
        return self._pieces_for(history, tools).base

    def check_trajectory(self, messages: Sequence[Message], ids: Sequence[int], tools: Tools = None) -> Mismatch | None:
        """Compare a whole ledger with the template's render of the messages up to the last assistant turn.

        The report names the turns that read differently. None when all agree, or when the mode is "disable".
        """
        return checking.check_trajectory(
            self.template, self.base_for(messages, tools), messages, ids, tools, self.check
        )

    @property
    def looks_back(self) -> bool:
        """Whether the template numbers turns or calls: then what it shows of one depends on all before."""
        return self._glances.counts

    def unread(self) -> str | None:
        """Why calls in the template's own form are not read as calls, with what to do; None: they are read."""
        if any(parser_for(name) is self._parser for name in self.readers):
            return None
        if not self.template.shows_calls:
            return (
                f"{FORMAT}: this chat template shows no tool calls, so {self.format} is what the model is expected to "
                f"write; set model.chat_template={READY_MADE} (ChatML models) to show them"
            )
        if self.readers:
            return (
                f"{FORMAT}={self.format} does not read the calls that this chat template writes; "
                f"{self.readers[0]} does: set that, or leave the key out"
            )
        return (
            f"{FORMAT}: no format reads the calls that this chat template writes; write a parser for them "
            f"(docs/chat.md), or set model.chat_template={READY_MADE} (ChatML models)"
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        return self.template.decode(ids)

    def _other_ends(self, stop_token_ids: Sequence[int]) -> list[str]:
        """What may end a turn besides what the template writes after one without calls."""
        template = self.template
        calls = call_ends(template, self._parser) or [
            end for name in self.readers[:1] for end in call_ends(template, parser_for(name))
        ]
        model = [template.added_tokens[i] for i in stop_token_ids if i in template.added_tokens]
        known = [end for end in (*format_stops(self.format), *DOCUMENT_ENDS) if template.token_id(end) is not None]
        return [*calls, *model, *known]

    def _pieces_for(self, history: Sequence[Message], tools: Tools) -> Pieces:
        """By the part of the history that the template looks at."""
        try:
            return self._pieces_of(self._glances.context(history, tools))
        except TemplateRefusal:
            return self._pieces

    def _new_pieces(self, context: Context) -> Pieces:
        return Pieces(FixedBase(self.template, self._stops, context))

    def _begins_in_thought(self, text: str, lead: str | None) -> str:
        """The tag with which the prompt opened the think block that `text` goes on with; "" where it did not."""
        opening = left_open(self._pieces.base.opening if lead is None else lead)
        if not opening or begins_with(text) == opening:
            return ""
        return opening if lead is not None or BLOCKS[opening] in text or self._always_opens else ""

    @cached_property
    def _always_opens(self) -> bool:
        """Whether turns after a tool's result begin in a think block as well: DeepSeek's have no generation prompt."""
        try:
            after_tool = self._pieces.base.after([{"role": "tool", "content": "x", "name": "x"}]).text
        except TemplateRefusal:
            return True
        return bool(left_open(after_tool))

    def _stop_token_ids(self) -> tuple[int, ...]:
        kinds = [self._pieces, self._pieces_for([], [MARKED_TOOL])] if self.template.named else [self._pieces]
        ends = {end for pieces in kinds for end in self._ends(pieces)}
        if not ends:
            raise UserError("tokenizer: it has no end-of-sequence token and the chat template ends turns with none")
        return tuple(sorted(ends))

    def _ends(self, pieces: Pieces) -> set[int]:
        base, ends = pieces.base, set(pieces.end_ids)
        # gpt-oss ends a turn of the past with <|end|>, which a turn in the making writes after its thinking:
        # only what ends the last turn stops the model.
        if base.explicit and base.turn_end and not base.closing.startswith(base.turn_end):
            ends.discard(self.template.token_id(base.turn_end) or -1)
        return ends


def _new_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages after the last assistant turn."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    return list(messages[last + 1 :])
