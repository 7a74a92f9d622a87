"""GLM 4.5/4.6: <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>."""

import re

from agentrl.chat.message import Parsed
from agentrl.chat.parsers.tagged_arguments import Grammar, parse_spelled
from agentrl.chat.template import Tools

# A value ends at the closing tag that something known follows: values may speak of tags themselves.
GRAMMAR = Grammar(
    header=re.compile(r"\s*([^<>\n]+)\s*(?=<arg_key>|</tool_call>)"),
    argument=re.compile(
        r"\s*<arg_key>([^<>]+)</arg_key>\s*<arg_value>(.*?)</arg_value>(?=\s*(?:<arg_key>|</tool_call>))", re.DOTALL
    ),
    footer=re.compile(r"\s*</tool_call>"),
    expected="<tool_call>NAME\\n<arg_key>KEY</arg_key>\\n<arg_value>VALUE</arg_value>\\n</tool_call>",
)


def parse(text: str, tools: Tools = None) -> Parsed:
    """See `agentrl.chat.parsers`. `tools` tell numbers from text that looks like one."""
    return parse_spelled(text, GRAMMAR, tools)
