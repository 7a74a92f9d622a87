"""gpt-oss (harmony): a turn is messages in channels; analysis is thinking, final is content, "to=" is a call.

A turn begins inside a header, since the generation prompt is <|start|>assistant.
"""

import re
from dataclasses import dataclass, field

from agentrl.chat.parsers.calls import Malformed, broken, read_whole_json, too_many, typed_call
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed, Tools

EXPECTED = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>"
START, MESSAGE, CHANNEL = "<|start|>", "<|message|>", "<|channel|>"
HEADER_LENGTH = 1024
"""Characters of a header that are read."""
MAX_MESSAGES = 4096
"""Messages of a turn that are read; what follows them is text of the last one."""
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]{1,256}+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*+(\w{1,64}+)")


@dataclass
class _Turn:
    calls: list[Call] = field(default_factory=list)
    contents: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)

    def add(self, segment: str) -> None:
        """Take one message in."""
        header, message, body = segment.partition(MESSAGE)
        recipient = _RECIPIENT.search(header, 0, HEADER_LENGTH) if "to=" in header else None
        if recipient is not None:
            self.calls.append(_read(recipient[1], _ended(body), bool(message), len(self.calls)))
        elif message and _channel(header) == "analysis":
            self.thoughts.append(_ended(body))
        else:
            self.contents.append(_ended(body) if message else header)

    def parsed(self) -> Parsed:
        """The turn as a whole."""
        content = "\n".join(piece for piece in self.contents if piece.strip())
        thought = "\n".join(self.thoughts) if self.thoughts else None
        if not self.calls and not content and thought and MESSAGE in thought:
            reason = (
                "it is inside the analysis channel, so it was not run: end that with <|end|><|start|>assistant first"
            )
            self.calls.append(broken(reason, thought, 0, expected=EXPECTED))
        return Parsed(content, self.calls, thought)


@tool_parser("gpt_oss", "gpt-oss", stops=("<|return|>", "<|call|>"))
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    if not any(marker in text for marker in (START, MESSAGE, CHANNEL)):
        return Parsed(text)
    turn = _Turn()
    for segment in text.split(START, MAX_MESSAGES):
        if (last := too_many(turn.calls, EXPECTED)) is not None:
            turn.calls.append(last)
            break
        turn.add(segment)
    return turn.parsed()


def _ended(body: str) -> str:
    ends = [at for at in (body.find(end) for end in _ENDS) if at >= 0]
    return body[: min(ends)] if ends else body


def _channel(header: str) -> str:
    found = _CHANNEL.search(header, 0, HEADER_LENGTH)
    return found[1] if found else ""


def _read(name: str, body: str, has_message: bool, index: int) -> Call:
    try:
        if not has_message:
            raise Malformed("<|message|> is missing after its header")
        return typed_call(name, read_whole_json(body), f"{name}{body}", index)
    except Malformed as error:
        return broken(str(error), f"{name}{body}", index, expected=EXPECTED, name=name)
