"""gpt-oss (harmony): a turn is messages in channels; analysis is thinking, final is content, "to=" is a call.

A turn begins inside a header, since the generation prompt is <|start|>assistant.
"""

import re

from agentrl.chat.message import Call, Parsed
from agentrl.chat.parsers.calls import Malformed, broken, read_whole_json, typed_call
from agentrl.chat.template import Tools

EXPECTED = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>"
MARKERS = ("<|channel|>", "<|message|>", "<|start|>")
_SEGMENT_END = re.compile(r"<\|(?:end|call|return)\|>")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def parse(text: str, tools: Tools = None) -> Parsed:
    """See `agentrl.chat.parsers`."""
    if not any(marker in text for marker in MARKERS):
        return Parsed(text)
    parsed = Parsed("")
    contents: list[str] = []
    thoughts: list[str] = []
    for segment in text.split("<|start|>"):
        header, message, body = segment.partition("<|message|>")
        body = _SEGMENT_END.split(body, maxsplit=1)[0]
        if (recipient := _RECIPIENT.search(header)) is not None:
            parsed.calls.append(_read(recipient[1], body, bool(message), len(parsed.calls)))
            continue
        thought = message and _channel(header) == "analysis"
        (thoughts if thought else contents).append(body if message else header)
    parsed.content = "\n".join(piece for piece in contents if piece.strip())
    parsed.reasoning = "\n".join(thoughts) if thoughts else None
    return parsed


def _channel(header: str) -> str:
    found = _CHANNEL.search(header)
    return found[1] if found else ""


def _read(name: str, body: str, has_message: bool, index: int) -> Call:
    try:
        if not has_message:
            raise Malformed("<|message|> is missing after its header")
        return typed_call(name, read_whole_json(body), f"{name}{body}", index)
    except Malformed as error:
        return broken(str(error), f"{name}{body}", index, expected=EXPECTED, name=name)
