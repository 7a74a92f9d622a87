"""From messages to tokens and back, one `Chat` per run.

Invariants:
- tokens that the engine sampled are never re-encoded: the ids of a turn go into `parse`, and only text comes out;
- `observation` encodes one text that begins with the turn's end, so its tokens equal those of a one-shot tokenization
  of the conversation wherever the template is append-only;
- `transcript` is made of the same parts as a rollout (prompt, assistant text, observation), so supervised and
  reinforcement training get the same tokens for the same conversation.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from agentrl.chat.check import MODES, Comparison, Mismatch, compare, ledger_text
from agentrl.chat.context import EMPTY, HistoryProbe
from agentrl.chat.fixed_base import FixedBase
from agentrl.chat.formats import FALLBACK, readers
from agentrl.chat.incremental import IncrementalCodec, RenderCache
from agentrl.chat.media.processor import Processor
from agentrl.chat.parsers import parser_for
from agentrl.chat.segments import Segment, Segmenter, Split
from agentrl.chat.stops import further_ends, turn_stops
from agentrl.chat.template import LEAD_TOKENS, MARKED_TOOL, Template, TemplateRefusal, showing
from agentrl.chat.transcript import shown_turn, turn_ids
from agentrl.chat.turn_reader import TurnReader
from agentrl.core.errors import UserError
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.medium import media_of
from agentrl.trajectory.message import Message, Reply, Tools

FORMAT_KEY = "rollout.multi_turn.format"
READY_MADE_TEMPLATE = "configs/templates/chatml_tools.jinja"
CACHED_CONTEXTS = 256
"""Contexts whose surrounding text is cached: a group of trajectories has one."""


class Chat:
    """Chat template, tool-call format and stop tokens of one model. Thread-safe, knows no trajectory."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        format: str | None = None,
        chat_template: str | None = None,
        check: str = "strict",
        template_kwargs: dict[str, Any] | None = None,
        processor: Processor | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """`chat_template` is Jinja text or a file; `template_kwargs` reach the template (enable_thinking, say).
        `format` None: the one that reads the template's own calls (formats.py). `processor`: of images and videos;
        None: the model takes none. `stop_token_ids`: the model's, besides those of tokenizer and template.

        Raises UserError for an unknown format or mode, or a template that cannot show a conversation.
        """
        given = None if format is None else parser_for(format)
        if check not in MODES:
            modes = ", ".join(MODES)
            raise UserError(
                f"rollout.multi_turn.tokenization_sanity_check_mode: {check!r} is unknown; use one of {modes}"
            )
        self.tokenizer = tokenizer
        remade = partial(Chat, tokenizer, format=format, chat_template=chat_template, check=check, processor=processor)
        self._with_kwargs = lru_cache(
            lambda **others: remade(
                template_kwargs={**(template_kwargs or {}), **others}, stop_token_ids=stop_token_ids
            )
        )
        self.check = check
        self.processor = processor or Processor()
        self.template = Template(tokenizer, chat_template, template_kwargs, self.processor)
        self.readers = readers(self.template, () if given is None or format is None else ((format, given),))
        """Formats that read the template's own calls, the best first."""
        self.format = format or next(iter(self.readers), FALLBACK)
        self._parser = given or parser_for(self.format)
        self._stops = further_ends(self.template, self._parser, self.format, self.readers, stop_token_ids)
        self._history = HistoryProbe(self.template)
        self._segmenter_of = lru_cache(maxsize=CACHED_CONTEXTS)(
            lambda context: Segmenter(FixedBase(self.template, self._stops, context))
        )
        with showing("a user and an assistant message"):
            self._segmenter = self._segmenter_of(EMPTY)
        self._codec = IncrementalCodec(self.template, self._segmenter.base.stops)
        self._reader = TurnReader(self.template, self._parser, self._segmenter.base)
        named = [self._segmenter_for([], [MARKED_TOOL])] if self.template.named else []
        self.stop_token_ids = turn_stops(self.template, [self._segmenter, *named])
        """Tokens that end a turn; never empty."""

    def with_kwargs(self, **kwargs: bool) -> "Chat":
        """A copy of the chat with further `kwargs` for the template; made once for each set of them."""
        return self._with_kwargs(**kwargs) if kwargs else self

    def see(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with a `Medium` for each image and video, as all other methods take them. Raises UserError."""
        return self.processor.see(messages)

    def prompt(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Ids of the messages and the generation prompt. Raises UserError when the template cannot show them."""
        if tools and not self.template.shows_tools:
            raise UserError(
                f"model.chat_template: this template does not show tools to the model; set it to {READY_MADE_TEMPLATE} "
                "(ChatML models) or to one that renders `tools`"
            )
        with showing("this conversation"):
            return self.template.prompt(messages, tools)

    def parse(self, ids: Sequence[int], tools: Tools = None, *, lead: Sequence[int] = ()) -> Reply:
        """Read one sampled turn. Never raises: mistakes of the model are in `Call.error`.

        With `tools`, formats without types (glm, qwen3_coder) read values by the tools' schemas; an empty list of them
        makes calls text. `lead`: the ids before the turn, or the last few: they say whether the turn begins in a think
        block.
        """
        closed = bool(ids) and ids[-1] in self.stop_token_ids
        text = self.template.decode(ids[:-1] if closed else ids)
        return self.read(
            text, closed=closed, tools=tools, lead=self.template.decode(lead[-LEAD_TOKENS:]) if lead else None
        )

    def read(self, text: str, *, closed: bool = True, tools: Tools = None, lead: str | None = None) -> Reply:
        """`parse` for text. Without `lead`, the turn begins in a think block if the generation prompt opens one."""
        return self._reader.read(text, closed=closed, tools=tools, lead=lead)

    def observation(
        self,
        messages: Sequence[Message],
        *,
        closed: bool,
        tools: Tools = None,
        last: int | None = None,
        history: Sequence[Message] = (),
    ) -> list[Segment]:
        """Tokens to append after an assistant turn: the rest of its end, the messages, the generation prompt.

        `closed`: the turn ended with a stop token, which is in the ledger already; otherwise the whole end of the turn
        is among the tokens. `last`: the last id of the ledger, for templates whose turns end with the next role's
        header. `history`: the conversation up to and with that turn; it and `tools` are for templates that look back
        at them. Raises UserError when the template refuses the messages.
        """
        roles = "/".join(dict.fromkeys(message["role"] for message in messages))
        with showing(f"{roles} messages", f"; set it to a template that does, such as {READY_MADE_TEMPLATE}"):
            if len(history) > 1 and self.looks_back:
                segmenter = self._segmenter_of(self._history.context([], tools))
                return segmenter.observed(messages, closed=closed, last=last, before=history[:-1])
            return self._segmenter_for(history, tools).observed(messages, closed=closed, last=last)

    def continuation(
        self, ids: Sequence[int], messages: Sequence[Message], tools: Tools = None, memory: RenderCache | None = None
    ) -> list[Segment] | Split:
        """Compare the template's rendering of the conversation with the ledger.

        Segments to append when the text of the ledger is a prefix of the rendering, even if the model sampled another
        tokenization of it; Split when the template rewrote the history. When the template refuses the conversation
        because of something that the model wrote, the new messages are appended to the ledger. With the same `memory`
        at each turn of a conversation, only new parts are encoded and decoded.
        """
        memory = memory or RenderCache()
        new = _new_messages(messages)
        try:
            text = self.template.render(messages, tools, generation=True, marked=True)
        except TemplateRefusal:
            closed, history = ids[-1] in self.stop_token_ids, messages[: len(messages) - len(new)]
            return self.observation(new, closed=closed, tools=tools, last=ids[-1], history=history)
        segmenter = self._segmenter_for(messages, tools)
        rest = self.template.beyond(text, self._codec.decode(ids, memory))
        if rest is not None:
            return segmenter.continued(self.template.encode_after(ids[-1], rest), new)
        whole = self._codec.encode(text, memory)
        if whole[: len(ids)] == list(ids):
            return segmenter.continued(whole[len(ids) :], new)
        self._codec.restart(text, memory)
        return Split(whole)

    def transcript(
        self, messages: Sequence[Message], tools: Tools = None, *, given: int = 0, verbatim: bool = False
    ) -> Ledger:
        """A finished conversation as a training sample: mask 1 on assistant tokens and their end-of-turn.

        The first `given` messages are the prompt, with any example turns of the assistant in them. An assistant message
        with `loss_mask: 0` has mask 0. `verbatim`: keep the assistant's text as written where the template would only
        trim it or put an empty think block before it. Log-probs are 0.0 and weight versions 0. Raises UserError when no
        assistant message follows a prompt.
        """
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= given]
        if not turns or turns[0] == 0:
            raise UserError("messages: a transcript needs a prompt and then an assistant message")
        ledger = Ledger()
        ledger.append_prompt(self.prompt(messages[: turns[0]], tools), media_of(messages[: turns[0]]))
        with showing("this conversation"):
            for turn, (at, end) in enumerate(zip(turns, [*turns[1:], len(messages)], strict=True)):
                self._append_turn(ledger, messages[:end], at, tools, turn, verbatim=verbatim)
                if end < len(messages):
                    self._append_observed(ledger, messages[:end], at, tools, turn)
        return ledger

    def _append_turn(
        self, ledger: Ledger, messages: Sequence[Message], at: int, tools: Tools, turn: int, *, verbatim: bool
    ) -> None:
        """Append the assistant message at index `at` as the model's turn number `turn`."""
        history, message = messages[:at], messages[at]
        base = self.base_for(history, tools)
        shown = shown_turn(base, history, message, tools, looks_back=self.looks_back)
        lead = self.decode(ledger.ids[-LEAD_TOKENS:])
        ids = turn_ids(base, shown, message, messages[at + 1 :], lead, verbatim=verbatim)
        if message.get("loss_mask", 1):
            ledger.append_model(ids, [0.0] * len(ids), turn=turn, version=0)
        else:  # an assistant message that is not trained on
            ledger.append_observation(ids, Source.USER, turn=turn)

    def _append_observed(self, ledger: Ledger, messages: Sequence[Message], at: int, tools: Tools, turn: int) -> None:
        """Append the messages after the assistant message at index `at`."""
        history, observed = messages[: at + 1], messages[at + 1 :]
        if not observed:
            raise UserError(f"messages: {at} and {at + 1} are both from the assistant; put a message between them")
        last = ledger.ids[-1]
        for source, segment in self.observation(observed, closed=True, tools=tools, last=last, history=history):
            ledger.append_observation(segment, source, turn=turn)
        ledger.media += media_of(observed)

    def base_for(self, history: Sequence[Message], tools: Tools) -> FixedBase:
        """The text that the template writes around the turns of a conversation that begins with `history`."""
        return self._segmenter_for(history, tools).base

    def check_trajectory(
        self,
        messages: Sequence[Message],
        ids: Sequence[int],
        tools: Tools = None,
        *,
        trace: bool = True,
        prompt: int = 0,
    ) -> Mismatch | None:
        """Compare a whole ledger with the template's render of the messages up to the last assistant turn.

        `prompt`: tokens of the ledger's prompt. The report names the turns that read differently; without `trace`,
        which renders the conversation twice a turn to find them, it has the first difference alone. None when all
        agree, or when the mode is "disable".
        """
        if self.check == "disable":
            return None
        base, text = self.base_for(messages, tools), ledger_text(self.template, ids, prompt)
        return compare(Comparison(self.template, base, messages, tools, text, self.check), trace=trace)

    @property
    def looks_back(self) -> bool:
        """Whether the template numbers turns or calls, so that each depends on all before it."""
        return self._history.counts

    def unread(self) -> str | None:
        """Why the format does not read the calls that the template writes, and the fix; None: it reads them."""
        if any(parser_for(name) is self._parser for name in self.readers):
            return None
        if not self.template.shows_calls:
            return (
                f"{FORMAT_KEY}: this chat template shows no tool calls, so {self.format} is what the model is expected "
                f"to write; set model.chat_template={READY_MADE_TEMPLATE} (ChatML models) to show them"
            )
        if self.readers:
            return (
                f"{FORMAT_KEY}={self.format} does not read the calls that this chat template writes; "
                f"{self.readers[0]} does: set that, or leave the key out"
            )
        return (
            f"{FORMAT_KEY}: no format reads the calls that this chat template writes; write a parser for them "
            f"(docs/chat.md), or set model.chat_template={READY_MADE_TEMPLATE} (ChatML models)"
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        return self.template.decode(ids)

    def _segmenter_for(self, history: Sequence[Message], tools: Tools) -> Segmenter:
        """The segmenter for the part of the history that the template looks at."""
        try:
            return self._segmenter_of(self._history.context(history, tools))
        except TemplateRefusal:
            return self._segmenter


def _new_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages after the last assistant turn."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    return list(messages[last + 1 :])
