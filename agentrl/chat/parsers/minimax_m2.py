"""MiniMax-M2: <minimax:tool_call><invoke name="NAME"><parameter name="KEY">value</parameter>...</invoke>..."""

import re

from agentrl.chat.parsers.blocks import Tags
from agentrl.chat.parsers.tagged_arguments import Grammar, parse_spelled
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed

GRAMMAR = Grammar(
    Tags(
        ("<minimax:tool_call>",),
        "</minimax:tool_call>",
        '<minimax:tool_call>\\n<invoke name="NAME">\\n<parameter name="KEY">VALUE</parameter>\\n</invoke>\\n'
        "</minimax:tool_call>",
        signs=("<invoke name=",),
    ),
    header=re.compile(r'\s*+<invoke name="([^"\n]{1,256}+)">'),
    argument=re.compile(r'\s*+<parameter name="([^"\n]{1,256}+)">'),
    value_end=re.compile(r"</parameter>(?=\s*+(?:<parameter name=|</invoke>))"),
    footer=re.compile(r"\s*+</invoke>"),
    several=True,
)


@tool_parser("minimax_m2", "minimax")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn; `tools` tell numbers from text that looks like one."""
    return parse_spelled(text, GRAMMAR, tools)
