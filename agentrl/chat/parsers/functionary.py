"""Functionary. v3.1: <function=NAME>{...}</function>; v3.2: >>>NAME and, on the next line, {...}; >>>all for an answer.

A turn of v3.2 begins inside a header, since the generation prompt ends in >>>.
"""

import re

from agentrl.chat.parsers.blocks import Tags, parse_tagged, read_headed, without
from agentrl.chat.parsers.calls import Malformed, broken, join_text, read_json, too_many, typed_call
from agentrl.chat.parsers.reasoning import calls_in_thinking, split_thinking
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed, Tools

TAGS = Tags(("<function=",), "</function>", "<function=NAME>{...}</function>", signs=("{",))
START = ">>>"
ANSWER = f"{START}all\n"
EXPECTED = f"{START}NAME\\n{{...}}"
_NAME = re.compile(r"(?P<name>[\w.\-]{1,256}+)>")
_HEADER = re.compile(rf"{START}([A-Za-z_][\w.\-]{{0,255}}+)\n(?=\s*+\{{)")


@tool_parser("functionary", stops=("<|eot_id|>", "<|eom_id|>"))
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    if TAGS.open[0] in text:
        return parse_tagged(text, TAGS, read_headed(_NAME, "no NAME> after <function="))
    parsed, answer = split_thinking(text)
    whole = answer if answer.startswith(START) else f"{START}{answer}"
    if not whole.startswith(ANSWER) and _HEADER.search(whole) is None:
        parsed.content = answer
        parsed.calls += calls_in_thinking(parsed, answer, (START,), EXPECTED)
        return parsed
    return _parse_headers(parsed, whole)


def _parse_headers(parsed: Parsed, text: str) -> Parsed:
    pieces, at = [], 0
    while (header := _HEADER.search(text, at)) is not None:
        if (last := too_many(parsed.calls, EXPECTED)) is not None:
            parsed.calls.append(last)
            break
        pieces.append(text[at : header.start()])
        call, at = _call(text, header, len(parsed.calls))
        parsed.calls.append(call)
    pieces = [without(piece, (ANSWER,)) for piece in (*pieces, text[at:])]
    parsed.content = join_text(pieces) if parsed.calls else pieces[0]
    return parsed


def _call(text: str, header: re.Match[str], index: int) -> tuple[Call, int]:
    try:
        value, end = read_json(text, header.end())
        return typed_call(header[1], value, text[header.start() : end], index), end
    except Malformed as error:
        following = _HEADER.search(text, header.end())
        end = following.start() if following else len(text)
        return broken(str(error), text[header.start() : end], index, expected=EXPECTED, name=header[1]), end
