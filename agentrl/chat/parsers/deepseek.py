"""DeepSeek. V3 and R1 name the kind and fence the JSON; V3.1 writes NAME and bare JSON."""

import re

from agentrl.chat.parsers.blocks import Tags, parse_tagged
from agentrl.chat.parsers.calls import Malformed, read_json, skip_space, typed_call
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed

TAGS = Tags(
    ("<｜tool▁call▁begin｜>",),
    "<｜tool▁call▁end｜>",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\\n```json\\n{...}\\n```<｜tool▁call▁end｜> "
    "or <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>, as your instructions say",
    noise=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    signs=("<｜tool▁sep｜>",),
)
_FENCED = re.compile(r"\s*+function<｜tool▁sep｜>([^\n<>]{1,256}+)\n```json\n")
_BARE = re.compile(r"\s*+([^\n<>]{1,256}+)<｜tool▁sep｜>")
_FENCE = "```"


@tool_parser("deepseek")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    return parse_tagged(text, TAGS, _read)


def _read(text: str, body: int, index: int) -> tuple[Call, int]:
    fenced = _FENCED.match(text, body)
    header = fenced or _BARE.match(text, body)
    if header is None:
        raise Malformed("no name and <｜tool▁sep｜> after its opening tag")
    value, end = read_json(text, header.end())
    if fenced:
        fence = skip_space(text, end)
        if not text.startswith(_FENCE, fence):
            raise Malformed("the ``` after its JSON is missing")
        end = fence + len(_FENCE)
    return typed_call(header[1].strip(), value, text[body:end], index), end
