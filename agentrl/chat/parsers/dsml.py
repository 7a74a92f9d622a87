"""DeepSeek-V3.2 and V4 (DSML): <｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true">value...

string="true" marks text as it is, string="false" JSON. V3.2 calls the block function_calls, V4 tool_calls, V4.1 writes
a blank before each of its names. GigaChat 3.5 writes the same with GCML in place of DSML.
"""

import re
from typing import Any

from agentrl.chat.parsers.blocks import Tags
from agentrl.chat.parsers.calls import Malformed, constant, read_whole_json
from agentrl.chat.parsers.tagged_arguments import Grammar, parse_spelled
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed

BLOCKS = ("tool_calls", "function_calls", " calls")


def _typed(argument: re.Match[str], value: str) -> dict[str, Any]:
    """Text or JSON, as the call itself says."""
    if argument[2] == "true":
        return {argument[1]: value}
    known = constant(value)
    try:
        return {argument[1]: known[0] if known else read_whole_json(value)}
    except Malformed as error:
        raise Malformed(f'the argument "{argument[1]}" says string="false" and is no JSON: {error}') from error


def grammar(language: str, block: str) -> Grammar:
    """The grammar of a block by that name."""
    mark, blank = f"｜{language}｜", " " if block.startswith(" ") else ""
    invoke, parameter = f"{mark}{blank}invoke", f"{mark}{blank}parameter"
    example = f'<{invoke} name="NAME">\\n<{parameter} name="KEY" string="true|false">VALUE</{parameter}>\\n</{invoke}>'
    return Grammar(
        Tags(
            (f"<{mark}{block}>",),
            f"</{mark}{block}>",
            f"<{mark}{block}>\\n{example}\\n</{mark}{block}>",
            signs=(f"<{invoke}",),
        ),
        header=re.compile(rf'\s*+<{invoke} name="([^"\n]{{1,256}}+)">'),
        argument=re.compile(rf'\s*+<{parameter} name="([^"\n]{{1,256}}+)" string="(true|false)">'),
        value_end=re.compile(rf"</{parameter}>(?=\s*+(?:<{parameter} name=|</{invoke}>))"),
        footer=re.compile(rf"\s*+</{invoke}>"),
        read_value=_typed,
        several=True,
    )


GRAMMARS = {block: grammar("DSML", block) for block in BLOCKS}


@tool_parser("deepseek_v4")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    written = next((block for block in BLOCKS if f"｜DSML｜{block}>" in text), BLOCKS[0])
    return parse_spelled(text, GRAMMARS[written], tools)
