"""Qwen3-Coder and Qwen3.5: <tool_call><function=NAME><parameter=KEY>value</parameter>...</function></tool_call>."""

import re

from agentrl.chat.parsers.blocks import Tags
from agentrl.chat.parsers.tagged_arguments import NAME, Grammar, parse_spelled, without_newlines
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed

HEADER = re.compile(rf"\s*+<function=({NAME})>")
ARGUMENT = re.compile(rf"\s*+<parameter=({NAME})>")
VALUE_END = re.compile(r"</parameter>(?=\s*+(?:<parameter=|</function>))")
FOOTER = re.compile(r"\s*+</function>")
GRAMMAR = Grammar(
    Tags(
        ("<tool_call>",),
        "</tool_call>",
        "<tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n</function>\\n</tool_call>",
        signs=("<function=", "<parameter="),
    ),
    HEADER,
    ARGUMENT,
    VALUE_END,
    FOOTER,
    without_newlines,
)


@tool_parser("qwen3_coder")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn; `tools` tell numbers from text that looks like one."""
    return parse_spelled(text, GRAMMAR, tools)
