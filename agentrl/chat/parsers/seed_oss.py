"""Seed-OSS: <seed:tool_call><function=NAME><parameter=KEY>value</parameter>...</function></seed:tool_call>."""

from agentrl.chat.parsers.blocks import Tags
from agentrl.chat.parsers.qwen3_coder import ARGUMENT, FOOTER, HEADER, VALUE_END
from agentrl.chat.parsers.tagged_arguments import Grammar, parse_spelled
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed

GRAMMAR = Grammar(
    Tags(
        ("<seed:tool_call>",),
        "</seed:tool_call>",
        "<seed:tool_call>\\n<function=NAME>\\n<parameter=KEY>VALUE</parameter>\\n</function>\\n</seed:tool_call>",
        signs=("<function=", "<parameter="),
    ),
    HEADER,
    ARGUMENT,
    VALUE_END,
    FOOTER,
)


@tool_parser("seed_oss", "seed")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn; `tools` tell numbers from text that looks like one."""
    return parse_spelled(text, GRAMMAR, tools)
