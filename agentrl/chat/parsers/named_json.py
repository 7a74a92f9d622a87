"""Calls as a tool's name and then JSON, between tags: DeepSeek to V3.1, Kimi K2, Solar Open."""

import re

from agentrl.chat.parsers.blocks import Tags, parse_blocks, read_headed
from agentrl.chat.parsers.calls import Malformed, skip_space
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed, Tools

DEEPSEEK = Tags(
    ("<｜tool▁call▁begin｜>",),
    "<｜tool▁call▁end｜>",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\\n```json\\n{...}\\n```<｜tool▁call▁end｜> "
    "or <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>, as your instructions say",
    noise=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    signs=("<｜tool▁sep｜>",),
)
_FENCED = re.compile(r"\s*+function<｜tool▁sep｜>(?P<name>[^\n<>]{1,256}+)\n```json\n")
_BARE = re.compile(r"\s*+(?P<name>[^\n<>]{1,256}+)<｜tool▁sep｜>")
_FENCE = "```"
KIMI = Tags(
    ("<|tool_call_begin|>",),
    "<|tool_call_end|>",
    "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>",
    noise=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    signs=("<|tool_call_argument_begin|>",),
)
_NUMBERED = re.compile(
    r"\s*+(?P<id>(?:functions\.)?(?P<name>[^<>:\s]{1,256}+):\d{1,9}+)\s*+<\|tool_call_argument_begin\|>"
)
SOLAR = Tags(
    ("<|tool_call:begin|>",),
    "<|tool_call:end|>",
    "<|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{...}<|tool_call:end|>",
    channels=("<|begin|>assistant", "<|content|>", "<|end|>", "<|tool_calls|>", "<|calls|>", "<|flush|>"),
    signs=("<|tool_call:args|>",),
)
_IDENTIFIED = re.compile(
    r"\s*+(?P<id>[\w\-]{0,64}+)\s*+<\|tool_call:name\|>\s*+(?P<name>[^<>\s]{1,256}+)\s*+<\|tool_call:args\|>"
)


@tool_parser("deepseek")
def deepseek(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of DeepSeek. V3 and R1 name the kind and fence the JSON; V3.1 writes NAME and bare JSON."""
    return parse_blocks(text, DEEPSEEK, _read_deepseek)


@tool_parser("kimi")
def kimi(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of Kimi K2, with numbered calls in a section."""
    missing = "no functions.NAME:NUMBER and <|tool_call_argument_begin|> after its opening tag"
    return parse_blocks(text, KIMI, read_headed(_NUMBERED, missing))


@tool_parser("solar", stops=("<|calls|>", "<|flush|>"))
def solar(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of Solar Open."""
    missing = "no <|tool_call:name|>NAME<|tool_call:args|> after its opening tag"
    return parse_blocks(text, SOLAR, read_headed(_IDENTIFIED, missing))


def _read_deepseek(text: str, body: int, index: int) -> tuple[list[Call], int]:
    fenced = _FENCED.match(text, body) is not None
    missing = "no name and <｜tool▁sep｜> after its opening tag"
    calls, end = read_headed(_FENCED if fenced else _BARE, missing)(text, body, index)
    fence = skip_space(text, end)
    if fenced and not text.startswith(_FENCE, fence):
        raise Malformed("the ``` after its JSON is missing", calls[0].name)
    return calls, fence + len(_FENCE) if fenced else end
