"""Qwen3-Coder and Qwen3.5: <tool_call><function=NAME><parameter=KEY>value</parameter>...</function></tool_call>."""

import re

from agentrl.chat.message import Parsed
from agentrl.chat.parsers.tagged_arguments import Grammar, parse_spelled
from agentrl.chat.template import Tools

# A value ends at the closing tag that something known follows: values may speak of tags themselves.
GRAMMAR = Grammar(
    header=re.compile(r"\s*<function=([^<>\n]+)>"),
    argument=re.compile(
        r"\s*<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|</function>))", re.DOTALL
    ),
    footer=re.compile(r"\s*</function>\s*</tool_call>"),
    expected="<tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n</function>\\n</tool_call>",
)


def parse(text: str, tools: Tools = None) -> Parsed:
    """See `agentrl.chat.parsers`. `tools` tell numbers from text that looks like one."""
    return parse_spelled(text, GRAMMAR, tools)
