"""The conversation of a request, as its client wrote it. Items that came before are not read again.

Invariants:
- marks of two requests are equal up to the last item that they share, byte for byte, and differ from there on;
- the cost of reading grows with the new items alone; items that are the same objects as before cost no comparison.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from agentrl.core.prefixes import common_length
from agentrl.gateway import canonical
from agentrl.gateway.canonical import Digest
from agentrl.http.refusals import Refused
from agentrl.trajectory.message import Message, text_of

REFERENCE = "reference"
"""Field of a message that stands for an item of an earlier answer: the item's id."""
THOUGHT = "thought"
"""Field of a message with the thinking that its client repeats: it tells equal answers apart, and is not rendered."""
Reader = Callable[[Sequence[Any], int], list[Message]]
"""Messages of items that the protocol writes from position `int` on. Raises Refused."""


class Marked(NamedTuple):
    """The items of a request, and their digests."""

    items: Sequence[Any]
    marks: list[Digest]


@dataclass(frozen=True)
class Conversation:
    """The history that a client sends."""

    head: list[Message]
    """Instructions that the protocol has in a separate field."""
    items: Sequence[Any]
    """The protocol's messages."""
    reader: Reader

    def marked(self, tools: Sequence[Mapping[str, Any]], last: "Marked | None" = None) -> "Marked":
        """A digest for each number of items, from none to all. `last`: of an earlier request, whose digests are used as
        far as the items are equal."""
        first = canonical.start([self.reader.__module__, *tools])
        for message in self.head:
            first = canonical.after(first, message)
        marks = [first]
        if last is not None and last.marks[0] == first:
            marks = last.marks[: common_length(self.items, last.items) + 1]
        for item in self.items[len(marks) - 1 :]:
            marks.append(canonical.mark(marks[-1], item))
        return Marked(self.items, marks)

    def since(self, first: int) -> list[Message]:
        """The messages of the items from `first` on. Raises Refused."""
        said = self.reader(self.items[first:], first)
        if said and said[-1]["role"] == "assistant":
            raise Refused("messages: the last one is the assistant's; end with one that it can answer")
        return said


def turns_joined(messages: Sequence[Message], between: str = "\n") -> list[Message]:
    """Assistant messages in a row as one: these protocols write a turn's thinking, its text and its calls apart."""
    whole: list[Message] = []
    for is_said, run in groupby(messages, lambda message: message["role"] == "assistant" and REFERENCE not in message):
        found = list(run)
        whole += [_joined(found, between)] if is_said and len(found) > 1 else found
    return [message for message in whole if "content" in message or REFERENCE in message]  # thinking of no turn


def _joined(said: Sequence[Message], between: str) -> Message:
    text = between.join(filter(None, map(text_of, said)))
    calls = [call for message in said for call in message.get("tool_calls", ())]
    thought = "\n".join(message[THOUGHT] for message in said if THOUGHT in message)
    return {"role": "assistant", "content": text} | optional(tool_calls=calls, thought=thought)


def optional(**fields: Any) -> Message:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value}


def rendered(messages: Sequence[Message]) -> list[Message]:
    """The messages as a template sees them."""
    return [{name: m[name] for name in m if name != THOUGHT} if THOUGHT in m else m for m in messages]


def dereferenced(messages: Sequence[Message], sent: Mapping[str, Message]) -> list[Message]:
    """The messages, with references replaced by the items that the gateway has sent, by their ids. Raises Refused."""
    names = [message[REFERENCE] for message in messages if REFERENCE in message]
    for name in names:
        if name not in sent:
            raise Refused(f"item_reference: this rollout has no item {name!r}; send the item itself", "lost")
    found = [sent[message[REFERENCE]] if REFERENCE in message else message for message in messages]
    return turns_joined(found) if names else found


def name_results(messages: Sequence[Message], names: dict[str, str]) -> None:
    """Give results of tools the names of their tools. `names`: those of earlier calls, by id; it gets the new ones."""
    for message in messages:
        names.update(called(message))
        if message["role"] == "tool" and not message.get("name") and message.get("tool_call_id") in names:
            message["name"] = names[message["tool_call_id"]]


def called(message: Message) -> dict[str, str]:
    """Names of the tools that a message calls, by the ids of the calls."""
    return {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}


def in_call_order(messages: Sequence[Message], names: Mapping[str, str]) -> list[Message]:
    """The messages, with results that follow each other in the order of their calls: templates show no ids. `names`: by
    the ids of all calls, in their order."""
    if not any(map(lambda one, other: _is_result(one) and _is_result(other), messages, messages[1:])):
        return list(messages)
    order = {id: i for i, id in enumerate(names)}
    runs = (list(run) for _, run in groupby(messages, _is_result))

    def rank(message: Message) -> int:
        return order.get(message.get("tool_call_id", ""), 0)

    return [message for run in runs for message in (sorted(run, key=rank) if _is_result(run[0]) else run)]


def _is_result(message: Message) -> bool:
    return message["role"] == "tool"
