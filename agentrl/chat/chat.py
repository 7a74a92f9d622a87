"""From messages to tokens and back, one `Chat` per run.

Invariants:
- nothing the engine sampled is ever re-encoded: a turn's ids go in through `parse` and only text comes out;
- what `observation` returns is encoded as one text that begins with the turn's end, so it equals the same
  stretch of a one-shot tokenization wherever the template is append-only;
- `transcript` is made of the same pieces as a rollout: prompt, assistant text, observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from agentrl.chat import check as checking
from agentrl.chat.check import Mismatch
from agentrl.chat.fixed_base import DOCUMENT_ENDS, FixedBase, common_length
from agentrl.chat.ledger import Ledger, Source
from agentrl.chat.message import TOOL_ROLES, Message, Reply, as_tool_call
from agentrl.chat.parsers import format_stops, parser_for
from agentrl.chat.template import Template, TemplateRefusal, Tools
from agentrl.chat.transcript import transcript
from agentrl.errors import UserError

Piece = tuple[Source, list[int]]
"""Tokens to append to a ledger, and who they come from."""

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
    ) -> None:
        """`chat_template` is Jinja text or a file; `template_kwargs` reach the template (enable_thinking, say).

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
        self.template = Template(tokenizer, chat_template, template_kwargs)
        eos = [tokenizer.eos_token] if tokenizer.eos_token else []
        ends = [end for end in (*format_stops(format), *DOCUMENT_ENDS) if self.template.token_id(end) is not None]
        try:
            self._base = FixedBase(self.template, [*eos, *ends])
        except TemplateRefusal as error:
            raise UserError(f"model.chat_template cannot show a user and an assistant message: {error}") from error
        self._closing_ids = self.template.encode(self._base.closing)
        self._end_ids = frozenset(i for i in map(self.template.token_id, self._base.stops) if i is not None)
        self.stop_token_ids = self._stop_token_ids()
        """Tokens that end a turn; never empty."""

    def prompt(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Ids of the messages and the generation prompt. Raises UserError when the template cannot show them."""
        if tools and not self.template.shows_tools:
            raise UserError(
                f"model.chat_template: this template does not show tools to the model; set it to {READY_MADE} "
                "(ChatML models) or to one that renders `tools`"
            )
        return self.template.encode(self._render(messages, tools))

    def parse(self, ids: Sequence[int], tools: Tools = None) -> Reply:
        """One sampled turn. Never raises: what the model got wrong is in `Call.error`.

        With `tools`, formats without types of their own (glm, qwen3_coder) read values by the tools' schemas.
        """
        closed = bool(ids) and ids[-1] in self.stop_token_ids
        text = self.template.decode(ids[:-1] if closed else ids)
        return self.read(text, closed=closed, tools=tools)

    def read(self, text: str, *, closed: bool = True, tools: Tools = None) -> Reply:
        """`parse` for text."""
        if self._begins_in_thought(text):
            text = f"<think>\n{text}"
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
        base = self._base
        try:
            suffix = base.after(messages)
        except TemplateRefusal as error:
            roles = "/".join(dict.fromkeys(message["role"] for message in messages))
            raise UserError(
                f"model.chat_template cannot show {roles} messages: {error}; set it to a template that does, such as "
                f"{READY_MADE}"
            ) from error
        ids = self.template.encode(suffix.text[suffix.end :])
        lead = [] if closed else self.template.encode(suffix.text[: suffix.end])
        closing = self._closing_ids
        ended = max(common_length(ids, closing), int(base.explicit and bool(ids) and ids[0] in self._end_ids))
        skip = int(closed and bool(ids) and ids[0] in self._end_ids and (base.explicit or last in (None, ids[0])))
        pieces = [(Source.TEMPLATE, lead + ids[skip:ended]), *self._labelled(ids[max(skip, ended) :], messages)]
        return [(source, piece) for source, piece in pieces if piece]

    def continuation(self, ids: Sequence[int], messages: Sequence[Message], tools: Tools = None) -> Append | Split:
        """What the template would show now, against what the ledger holds.

        Append where the ledger's text is a beginning of the template's, even if the model sampled another
        tokenization of that text; Split where history reads differently.
        """
        text = self._render(messages, tools)
        known = self.template.decode(ids)
        if text.startswith(known):
            rest = self.template.encode_after(ids[-1], text[len(known) :])
            return Append(self._continued(rest, _new_messages(messages)))
        whole = self.template.encode(text)
        if whole[: len(ids)] == list(ids):
            return Append(self._continued(whole[len(ids) :], _new_messages(messages)))
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

    def _begins_in_thought(self, text: str) -> bool:
        """Whether the generation prompt opened the think block that `text` goes on with."""
        base = self._base
        if not base.opens_thinking or text.lstrip().startswith("<think>"):
            return False
        return base.always_opens_thinking or "</think>" in text

    def _render(self, messages: Sequence[Message], tools: Tools) -> str:
        try:
            return self.template.render(messages, tools, generation=True)
        except TemplateRefusal as error:
            raise UserError(f"model.chat_template cannot show this conversation: {error}") from error

    def _continued(self, ids: list[int], messages: Sequence[Message]) -> list[Piece]:
        """Label what a re-render added; `ids` begin after the stop token, or before it where a turn has none."""
        closing = self._closing_ids
        head = common_length(ids, closing) or common_length(ids, closing[1:])
        pieces = [(Source.TEMPLATE, ids[:head]), *self._labelled(ids[head:], messages)]
        return [(source, piece) for source, piece in pieces if piece]

    def _labelled(self, ids: list[int], messages: Sequence[Message]) -> list[Piece]:
        """Split ids of messages and generation prompt by who wrote them."""
        prompt = self._base.generation_ids
        n = len(ids) - len(prompt) if prompt and ids[-len(prompt) :] == prompt else len(ids)
        return [*self._by_role(ids[:n], messages), (Source.TEMPLATE, ids[n:])]

    def _by_role(self, ids: list[int], messages: Sequence[Message]) -> list[Piece]:
        groups = [(source, list(group)) for source, group in groupby(messages, key=_source)]
        if len(groups) == 1:
            return [(groups[0][0], ids)]
        pieces, start = [], 0
        shown: list[Message] = []
        for source, group in groups[:-1]:
            shown += group
            full = self._suffix_ids(shown)
            # The suffix begins with the turn's end, which `ids` have already lost.
            offset = next((k for k in range(len(full)) if full[k : k + 3] == ids[:3]), 0)
            end = max(start, common_length(full[offset:], ids))
            pieces.append((source, ids[start:end]))
            start = end
        return [*pieces, (groups[-1][0], ids[start:])]

    def _suffix_ids(self, messages: Sequence[Message]) -> list[int]:
        """A beginning of a longer suffix. Empty where the template refuses to stop there: labels only, no tokens."""
        try:
            suffix = self._base.after(messages, generation=False)
        except TemplateRefusal:
            return []
        return self.template.encode(suffix.text[suffix.end :])

    def _stop_token_ids(self) -> tuple[int, ...]:
        base, token_id, ends = self._base, self.template.token_id, set(self._end_ids)
        # gpt-oss ends a turn of the past with <|end|>, which a turn in the making writes after its thinking:
        # only what ends the last turn stops the model.
        if base.explicit and base.turn_end and not base.closing.startswith(base.turn_end):
            ends.discard(token_id(base.turn_end) or -1)
        if not ends:
            raise UserError("tokenizer: it has no end-of-sequence token and the chat template ends turns with none")
        return tuple(sorted(ends))


def _source(message: Message) -> Source:
    return Source.TOOL if message["role"] in TOOL_ROLES else Source.USER


def _new_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages after the last assistant turn."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    return list(messages[last + 1 :])
