"""Functionary. v3.1: <function=NAME>{...}</function>; v3.2: >>>NAME and, on the next line, {...}; >>>all for an answer.

A turn of v3.2 begins inside a header, since the generation prompt ends in >>>.
"""

import re

from agentrl.chat.parsers.blocks import Tags, parse_blocks, read_headed
from agentrl.chat.parsers.reasoning import calls_in_thinking, split_thinking
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed, Tools

TAGS = Tags(("<function=",), "</function>", "<function=NAME>{...}</function>", signs=("{",))
START = ">>>"
ANSWER = f"{START}all\n"
_NAME = re.compile(r"(?P<name>[\w.\-]{1,256}+)>")
_HEADER = re.compile(r"(?P<name>[A-Za-z_][\w.\-]{0,255}+)\n(?=\s*+\{)")
HEADED = Tags(
    (START,), "", f"{START}NAME\\n{{...}}", channels=(ANSWER,), begins=re.compile(rf"{START}(?={_HEADER.pattern})")
)


@tool_parser("functionary", stops=("<|eot_id|>", "<|eom_id|>"))
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    if TAGS.open[0] in text:
        return parse_blocks(text, TAGS, read_headed(_NAME, "no NAME> after <function="))
    parsed, answer = split_thinking(text)
    whole = answer if answer.startswith(START) else f"{START}{answer}"
    read = parse_blocks(whole, HEADED, read_headed(_HEADER, ""))
    parsed.content = read.content if read.calls or whole.startswith(ANSWER) else answer
    parsed.calls = read.calls or calls_in_thinking(parsed, answer, (START,), HEADED.expected)
    return parsed
