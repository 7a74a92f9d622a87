"""From messages to tokens and back, one `Chat` per run.

Invariants:
- nothing the engine sampled is ever re-encoded: a turn's ids go in through `parse` and only text comes out;
- what `observation` returns is encoded as one text that begins with the turn's end, so it equals the same
  stretch of a one-shot tokenization wherever the template is append-only;
- `transcript` is made of the same pieces as a rollout: prompt, assistant text, observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.chat import check as checking
from agentrl.chat.check import Mismatch
from agentrl.chat.fixed_base import DOCUMENT_ENDS, FixedBase
from agentrl.chat.ledger import Ledger
from agentrl.chat.message import Message, Reply, as_tool_call
from agentrl.chat.parsers import format_stops, parser_for
from agentrl.chat.parsers.thinking import MARKS, begins_with
from agentrl.chat.pieces import Piece, Pieces
from agentrl.chat.template import Template, TemplateRefusal, Tools
from agentrl.chat.transcript import transcript
from agentrl.errors import UserError
from agentrl.media import Processor

READY_MADE = "configs/templates/chatml_tools.jinja"


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
        format: str = "hermes",
        chat_template: str | None = None,
        inference_template: bool = False,
        check: str = "strict",
        template_kwargs: dict[str, Any] | None = None,
        processor: Processor | None = None,
    ) -> None:
        """`chat_template` is Jinja text or a file; `template_kwargs` reach the template (enable_thinking, say).
        `processor`: how the model sees images; None: it does not.

        Raises UserError for an unknown format or mode, or a template that cannot show a conversation.
        """
        self._parser = parser_for(format)
        if check not in checking.MODES:
            modes = ", ".join(checking.MODES)
            raise UserError(
                f"rollout.multi_turn.tokenization_sanity_check_mode: {check!r} is unknown; use one of {modes}"
            )
        self.tokenizer = tokenizer
        self.inference_template = inference_template
        self.check = check
        self.processor = processor or Processor()
        self.template = Template(tokenizer, chat_template, template_kwargs, self.processor)
        eos = [tokenizer.eos_token] if tokenizer.eos_token else []
        ends = [end for end in (*format_stops(format), *DOCUMENT_ENDS) if self.template.token_id(end) is not None]
        try:
            self._base = FixedBase(self.template, [*eos, *ends])
        except TemplateRefusal as error:
            raise UserError(f"model.chat_template cannot show a user and an assistant message: {error}") from error
        self._pieces = Pieces(self._base)
        self.stop_token_ids = self._stop_token_ids()
        """Tokens that end a turn; never empty."""

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

    def parse(self, ids: Sequence[int], tools: Tools = None) -> Reply:
        """One sampled turn. Never raises: what the model got wrong is in `Call.error`.

        With `tools`, formats without types of their own (glm, qwen3_coder) read values by the tools' schemas.
        """
        closed = bool(ids) and ids[-1] in self.stop_token_ids
        text = self.template.decode(ids[:-1] if closed else ids)
        return self.read(text, closed=closed, tools=tools)

    def read(self, text: str, *, closed: bool = True, tools: Tools = None) -> Reply:
        """`parse` for text."""
        opening = self._begins_in_thought(text)
        if opening is not None:
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
        self, messages: Sequence[Message], *, closed: bool, tools: Tools = None, last: int | None = None
    ) -> list[Piece]:
        """Tokens to append after an assistant turn: the rest of its end, the messages, the generation prompt.

        `closed`: the turn ended with a stop token, which the ledger holds already; otherwise the whole end of the
        turn is among the tokens. `last` is the ledger's last id: it matters only to templates whose turns end
        with the next role's header. Raises UserError when the template refuses the messages.
        """
        del tools  # what follows a turn does not depend on them
        try:
            return self._pieces.observed(messages, closed=closed, last=last)
        except TemplateRefusal as error:
            roles = "/".join(dict.fromkeys(message["role"] for message in messages))
            raise UserError(
                f"model.chat_template cannot show {roles} messages: {error}; set it to a template that does, such as "
                f"{READY_MADE}"
            ) from error

    def continuation(self, ids: Sequence[int], messages: Sequence[Message], tools: Tools = None) -> Append | Split:
        """What the template would show now, against what the ledger holds.

        Append where the ledger's text is a beginning of the template's, even if the model sampled another
        tokenization of that text; Split where history reads differently. A template that refuses the
        conversation for something the model wrote cannot rewrite it: the ledger goes on with the new messages.
        """
        new = _new_messages(messages)
        try:
            text = self.template.render(messages, tools, generation=True)
        except TemplateRefusal:
            return Append(self.observation(new, closed=ids[-1] in self.stop_token_ids, last=ids[-1]))
        known = self.template.decode(ids)
        if text.startswith(known):
            rest = self.template.encode_after(ids[-1], text[len(known) :])
            return Append(self._pieces.continued(rest, new))
        whole = self.template.encode(text)
        if whole[: len(ids)] == list(ids):
            return Append(self._pieces.continued(whole[len(ids) :], new))
        return Split(whole)

    def transcript(self, messages: Sequence[Message], tools: Tools = None) -> Ledger:
        """A finished conversation as a training sample: mask 1 on assistant tokens and their end-of-turn.

        Log-probs are 0.0 and weight versions 0. Raises UserError when no assistant message follows a prompt.
        """
        return transcript(self, self._base, messages, tools)

    def check_turn(self, messages: Sequence[Message], ids: Sequence[int], tools: Tools = None) -> Mismatch | None:
        """Compare one turn with the template's own render, over a fixed base: cost does not grow with history.

        `messages`: the assistant message and what was observed after it; `ids`: all tokens from the first sampled
        one to the end of the ledger. None when they agree, or when the mode is "disable".
        """
        del tools  # what a turn looks like does not depend on them
        return checking.check_turn(self.template, self._base, messages, ids, self.check)

    def check_trajectory(self, messages: Sequence[Message], ids: Sequence[int], tools: Tools = None) -> Mismatch | None:
        """Compare a whole ledger with the template's render of the messages up to the last assistant turn."""
        return checking.check_trajectory(self.template, self._base, messages, ids, tools, self.check)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        return self.template.decode(ids)

    def _begins_in_thought(self, text: str) -> str | None:
        """The tag with which the generation prompt opened the think block that `text` goes on with, if it did."""
        opening = self._base.opens_thinking
        if opening is None or begins_with(text) == opening:
            return None
        return opening if self._base.always_opens_thinking or MARKS[opening] in text else None

    def _stop_token_ids(self) -> tuple[int, ...]:
        base, token_id, ends = self._base, self.template.token_id, set(self._pieces.end_ids)
        # gpt-oss ends a turn of the past with <|end|>, which a turn in the making writes after its thinking:
        # only what ends the last turn stops the model.
        if base.explicit and base.turn_end and not base.closing.startswith(base.turn_end):
            ends.discard(token_id(base.turn_end) or -1)
        if not ends:
            raise UserError("tokenizer: it has no end-of-sequence token and the chat template ends turns with none")
        return tuple(sorted(ends))


def _new_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages after the last assistant turn."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    return list(messages[last + 1 :])
