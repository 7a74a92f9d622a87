"""Hunyuan 3: <tool_calls><tool_call>NAME<tool_sep><arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>.

The released tokenizer spells its tags with a suffix, <tool_call:opensource>.
"""

import re

from agentrl.chat.parsers.blocks import Tags
from agentrl.chat.parsers.tagged_arguments import NAME, Grammar, parse_spelled
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed

SUFFIX = ":opensource"


def _grammar(suffix: str) -> Grammar:
    close = f"</tool_call{suffix}>"
    argument = f"<arg_key{suffix}>KEY</arg_key{suffix}>\\n<arg_value{suffix}>VALUE</arg_value{suffix}>\\n"
    return Grammar(
        Tags(
            (f"<tool_calls{suffix}>",),
            f"</tool_calls{suffix}>",
            f"<tool_calls{suffix}>\\n<tool_call{suffix}>NAME<tool_sep{suffix}>\\n{argument}{close}\\n</tool_calls{suffix}>",
            signs=(f"<arg_key{suffix}>", f"<tool_call{suffix}>"),
        ),
        header=re.compile(
            rf"\s*+<tool_call{suffix}>\s*+({NAME})(?:<tool_sep{suffix}>|(?=\s*+(?:<arg_key{suffix}>|{close})))"
        ),
        argument=re.compile(rf"\s*+<arg_key{suffix}>({NAME})</arg_key{suffix}>\s*+<arg_value{suffix}>"),
        value_end=re.compile(rf"</arg_value{suffix}>(?=\s*+(?:<arg_key{suffix}>|{close}))"),
        footer=re.compile(rf"\s*+{close}"),
        several=True,
    )


GRAMMARS = {suffix: _grammar(suffix) for suffix in (SUFFIX, "")}


@tool_parser("hunyuan")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn; `tools` tell numbers from text that looks like one."""
    return parse_spelled(text, GRAMMARS[SUFFIX if GRAMMARS[SUFFIX].tags.open[0] in text else ""], tools)
