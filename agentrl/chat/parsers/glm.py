"""GLM 4.5/4.6: <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>."""

import re

from agentrl.chat.parsers.blocks import Tags
from agentrl.chat.parsers.tagged_arguments import NAME, Grammar, parse_spelled
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed

GRAMMAR = Grammar(
    Tags(
        ("<tool_call>",),
        "</tool_call>",
        "<tool_call>NAME\\n<arg_key>KEY</arg_key>\\n<arg_value>VALUE</arg_value>\\n</tool_call>",
        signs=("<arg_key>",),
    ),
    header=re.compile(rf"\s*+({NAME})\s*+(?=<arg_key>|</tool_call>)"),
    argument=re.compile(rf"\s*+<arg_key>({NAME})</arg_key>\s*+<arg_value>"),
    value_end=re.compile(r"</arg_value>(?=\s*+(?:<arg_key>|</tool_call>))"),
    footer=re.compile(""),
)


@tool_parser("glm", stops=("<|user|>", "<|observation|>"))
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn; `tools` tell numbers from text that looks like one."""
    return parse_spelled(text, GRAMMAR, tools)
