"""Renders the text after an assistant turn over a fixed short conversation.

A dummy user turn and a dummy assistant turn replace the history, after the few messages of it that the template reads
(context.py): so the cost depends on the new messages only. The dummy turn ends in a known word; the ledger gets the
text after it, from the turn's end on. It is read from one render, and not by subtracting a stored base, since some
templates render the last turn differently from earlier ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentrl.chat.context import ASSISTANT, EMPTY, USER, Context
from agentrl.chat.template import MARK, MARKED_TOOL, Template, TemplateRefusal
from agentrl.core.prefixes import common_length
from agentrl.trajectory.message import TOOL_ROLES, Call, Message, as_tool_call

FOLLOWER = "agentrlfollower"
DOCUMENT_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>")
"""End-of-text tokens of base models: they end the turn of a chat model too."""
MARKED_USER: Message = {"role": "user", "content": MARK}


@dataclass(frozen=True)
class Suffix:
    """The text that follows an assistant turn."""

    text: str
    """From the end of the model's own text on."""
    end: int
    """Where in `text` the token begins with which the model ends its turn."""


class FixedBase:
    """The texts that a template writes around turns, learned once, and the text after each turn."""

    def __init__(self, template: Template, stops: Sequence[str], context: Context = EMPTY) -> None:
        self.template = template
        self.context = context
        self._before = context.messages
        self._tools = [MARKED_TOOL] if context.tools else None
        self.turn_end = self._turn_end()
        """The special token that ends an assistant turn in the middle of a conversation."""
        self.stops = tuple(dict.fromkeys([*([self.turn_end] if self.turn_end else []), *stops]))
        """Every token that may end a turn, `turn_end` first."""
        closing = self.render([USER, ASSISTANT])
        at = self._find_stop(closing)
        self.explicit = at is not None
        """False where a turn has no end and the next role's header stops the model (GLM)."""
        self.closing = closing[at or 0 :]
        """A finished turn's end, from the stop token on."""
        self.opening = self.render([MARKED_USER], generation=True)
        """From the end of a user's content to the model's first token."""
        self.generation_ids = self._generation_ids()
        """The generation prompt: the header of the assistant's turn."""
        self._shown: dict[str, bool] = {}

    def split_end(self, text: str) -> tuple[str, str]:
        """A last turn's text without its end, and the stop token there ("" when it has none)."""
        if self.closing and text.endswith(self.closing):
            return text.removesuffix(self.closing), self.stop_at_start(self.closing)
        stop = next((stop for stop in self.stops if text.endswith(stop)), "")
        return text.removesuffix(stop), stop

    def next_end(self, text: str, start: int) -> int | None:
        """Where the next turn has ended: behind the first stop token from `start` on; None without one."""
        ends = [(at, -len(stop)) for stop in self.stops if (at := text.find(stop, start)) >= 0]
        return min(ends)[0] - min(ends)[1] if ends else None

    def stop_at_start(self, text: str) -> str:
        """The stop token that `text` begins with, or ""."""
        return next((stop for stop in self.stops if text.startswith(stop)), "")

    def render(self, messages: Sequence[Message], *, generation: bool = False) -> str:
        """The text after the mark in these messages, rendered after the context. Raises TemplateRefusal."""
        text = self.template.render([*self._before, *messages], self._tools, generation=generation, marked=True)
        _, mark, after = text.partition(MARK)
        if not mark:
            raise TemplateRefusal("it does not show what an assistant or user wrote")
        return after

    def after(
        self, messages: Sequence[Message], *, generation: bool = True, before: Sequence[Message] = (USER,)
    ) -> Suffix:
        """The text that new messages add to a conversation which ends in an assistant turn, `before` in front of it.

        Raises TemplateRefusal when the template shows these messages after no assistant turn at all.
        """
        for message in messages:
            self._require_shown(message["role"])
        return self._after(messages, generation, before)

    def _after(self, messages: Sequence[Message], generation: bool, before: Sequence[Message]) -> Suffix:
        if messages[0]["role"] not in TOOL_ROLES:
            text = self.render([*before, ASSISTANT, *messages], generation=generation)
            return Suffix(text, self._find_stop(text) or 0)
        leading = next((i for i, m in enumerate(messages) if m["role"] not in TOOL_ROLES), len(messages))
        return self._after_calls(messages, leading, generation, before)

    def _require_shown(self, role: str) -> None:
        """Some templates drop messages of roles they do not know, without a word: the model would answer nothing."""
        if role not in self._shown:
            probe = {"role": role, "content": FOLLOWER, "name": "x", "tool_call_id": "agentrl00"}
            self._shown[role] = FOLLOWER in self._after([probe], True, [USER]).text
        if not self._shown[role]:
            raise TemplateRefusal("it drops them")

    def _after_calls(
        self, messages: Sequence[Message], calls: int, generation: bool, before: Sequence[Message]
    ) -> Suffix:
        """Some templates want one call per result, some refuse two calls, some know no calls."""
        refusal = None
        results = [_completed(m, i) if m["role"] in TOOL_ROLES else m for i, m in enumerate(messages)]
        for assistant in _calling_turns(messages[:calls]):
            try:
                text = self.render([*before, assistant, *results], generation=generation)
            except TemplateRefusal as error:
                refusal = refusal or error
                continue
            at = self._find_stop(text)
            if at is not None or not self.stops:
                return Suffix(text[at or 0 :], 0)
        raise refusal or TemplateRefusal("it shows no end of an assistant turn before a tool's result")

    def _find_stop(self, text: str) -> int | None:
        return min((at for stop in self.stops if (at := text.find(stop)) >= 0), default=None)

    def _turn_end(self) -> str | None:
        """The end-of-sequence token if the template writes it after a turn, else the first special token there."""
        try:
            after = self.render([USER, ASSISTANT, {"role": "user", "content": FOLLOWER}])
        except TemplateRefusal:
            after = self.render([USER, ASSISTANT])
        region = after.partition(FOLLOWER)[0]
        eos = self.template.tokenizer.eos_token
        if eos and eos in region:
            return str(eos)
        added = self.template.added_tokens
        return next((added[i] for i in self.template.encode(region) if i in added), None)

    def _generation_ids(self) -> list[int]:
        encode = self.template.encode_within
        with_prompt = encode(self.opening)
        without = encode(self.render([MARKED_USER]))
        return with_prompt[common_length(with_prompt, without) :]


def _completed(message: Message, index: int) -> Message:
    name = {"name": _name_of(message)} if message.get("name") else {}
    return {**message, "tool_call_id": _id_of(message, index), **name}


def _id_of(message: Message, index: int) -> str:
    return message.get("tool_call_id") or f"agentrl{index:02d}"


def _name_of(message: Message) -> str:
    """A model can write anything as a name; a stop token in there would be taken for the turn's end."""
    name = str(message.get("name") or "")
    return name if name.replace("_", "").replace("-", "").replace(".", "").isalnum() else "tool"


def _calling_turns(results: Sequence[Message]) -> Iterator[Message]:
    """Dummy turns that call tools, the most proper first; the last ones are for templates that drop calls."""
    calls = [as_tool_call(Call(_id_of(m, i), _name_of(m), {"x": MARK})) for i, m in enumerate(results)]
    yield {"role": "assistant", "content": None, "tool_calls": calls}
    yield {"role": "assistant", "content": None, "tool_calls": calls[:1]}
    yield ASSISTANT
