"""Finds the part of a conversation's history that changes the text after a turn.

With most templates no part does, and the text after a turn is rendered over a dummy conversation. In some, a word of
the system prompt or of the user turns thinking off, some number the calls of the whole conversation, and some show tool
results only where there are tools. Each is detected by rendering probes once, never by a model's name.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from jinja2 import Environment

from agentrl.chat.template import CALLING, MARK, MARKED_TOOL, TOOL_NAME, USER, Template, TemplateRefusal
from agentrl.core.grouping import grouped
from agentrl.trajectory.message import Call, Message, Tools, as_tool_call, text_of

PAST = "agentrlpast"
"""A word of the history: when it follows a turn, the template moved the history instead of reading it."""
ASSISTANT: Message = {"role": "assistant", "content": MARK}
ANSWER: Message = {"role": "assistant", "content": "x"}
SPEAKERS = ("system", "developer", "user")
"""Roles whose text may control how the model answers."""
CACHED_TEXTS = 4096


@dataclass(frozen=True)
class Context:
    """The part of a conversation that changes the text after its turns; hashable."""

    texts: tuple[tuple[str, str], ...] = ()
    """Role and text of messages."""
    tools: bool = False

    @property
    def messages(self) -> list[Message]:
        """The messages, each user's with an answer."""
        return [message for role, text in self.texts for message in _spoken(role, text)]


EMPTY = Context()


class HistoryProbe:
    """Detects which history one template reads. Thread-safe."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self._words_in = lru_cache(maxsize=CACHED_TEXTS)(
            lambda role, text: tuple(word for word in self.words.get(role, ()) if word in text)
        )

    def context(self, history: Sequence[Message], tools: Tools) -> Context:
        """The part of `history` and `tools` that the template reads later."""
        texts = []
        for message in history if self.system or self.words else ():
            role = message["role"]
            text = text_of(message).replace(MARK, "") if role in SPEAKERS else ""
            if (self.system and role == "system") or self._words_in(role, text):
                texts.append((role, text))
        return Context(_firsts_and_lasts(texts, self._words_in), bool(tools) and self.tools)

    @cached_property
    def counts(self) -> bool:
        """Whether the text after a turn depends on the number of turns and calls before it."""
        plain = self._follow(EMPTY.messages)
        pasts = ([*_round(1)], [*_round(1), *_round(2)], [USER, ANSWER], [USER, ANSWER, USER, ANSWER])
        return any(self._differs(plain, self._follow(past)) for past in pasts)

    @cached_property
    def tools(self) -> bool:
        """Whether it depends on the presence of tools."""
        plain = self._follow([])
        return self.template.named or self._differs(plain, self._follow([], [MARKED_TOOL]))

    @cached_property
    def system(self) -> bool:
        """Whether it depends on there being a system prompt."""
        return self._differs(self._follow([]), self._follow([{"role": "system", "content": PAST}]))

    @cached_property
    def words(self) -> dict[str, tuple[str, ...]]:
        """Role -> words whose presence in an earlier message matters."""
        candidates = sorted(set(_words(self.template)))
        found = {role: self._telling(role, candidates, []) for role in SPEAKERS}
        switched = [_spoken(role, words[0]) for role, words in found.items() if words]
        if not switched:
            return {}
        # A word may matter only in that it takes another one back.
        return {
            role: tuple({*words, *(w for past in switched for w in self._telling(role, candidates, past))})
            for role, words in found.items()
        }

    def _telling(self, role: str, candidates: Sequence[str], past: list[Message]) -> tuple[str, ...]:
        plain = self._follow([*past, *_spoken(role, PAST)])
        return tuple(
            w for w in candidates if self._differs(plain, self._follow([*past, *_spoken(role, f"{PAST} {w}")]))
        )

    def _follow(self, past: Sequence[Message], tools: Tools = None) -> list[str | None]:
        """The text after a turn that follows `past`: before a user message or a tool result, or without a turn."""
        result = {"role": "tool", "name": "x", "tool_call_id": "agentrl00", "content": "x"}
        followed = ([USER, ASSISTANT, USER], [USER, CALLING, result], [{"role": "user", "content": MARK}])
        return [self._after_mark([*past, *messages], tools) for messages in followed]

    def _after_mark(self, messages: Sequence[Message], tools: Tools) -> str | None:
        try:
            _, mark, after = self.template.render(messages, tools, generation=True).rpartition(MARK)
        except TemplateRefusal:
            return None
        return after if mark else None

    @staticmethod
    def _differs(plain: Sequence[str | None], other: Sequence[str | None]) -> bool:
        """Whether some text is another one, and not merely one to which the past was moved."""
        pairs = [(a, b) for a, b in zip(plain, other, strict=True) if a is not None and b is not None]
        return any(a != b and PAST not in b and TOOL_NAME not in b for a, b in pairs)


def _firsts_and_lasts(
    texts: Sequence[tuple[str, str]], words_in: Callable[[str, str], Hashable]
) -> tuple[tuple[str, str], ...]:
    """The first and the last of the messages with the same words: the others change nothing."""
    same = grouped(range(len(texts)), lambda i: (texts[i][0], words_in(*texts[i])))
    return tuple(texts[i] for i in sorted({i for found in same.values() for i in (found[0], found[-1])}))


def _spoken(role: str, text: str) -> list[Message]:
    message = {"role": role, "content": text}
    return [message, ANSWER] if role == "user" else [message]


def _round(number: int) -> list[Message]:
    """A question answered by way of a tool."""
    call_id = f"agentrl9{number}"
    calling: Message = {**CALLING, "tool_calls": [as_tool_call(Call(call_id, "x", {"x": "x"}))]}
    return [USER, calling, {"role": "tool", "name": "x", "tool_call_id": call_id, "content": "x"}, ANSWER]


def _words(template: Template) -> Iterator[str]:
    """Text constants of a template that it may look for in a message: what stands before `in`, and in calls."""
    for source in template.sources:
        tokens = [(kind, value) for _, kind, value in Environment().lex(source) if kind != "whitespace"]
        for before, (kind, value), after in zip(tokens, tokens[1:], tokens[2:], strict=False):
            looked_for = after[1] in ("in", "not") or before[1] in ("(", "=", "==")
            if kind == "string" and looked_for and value[1:-1].strip():
                yield value[1:-1].replace("\\n", "\n")
