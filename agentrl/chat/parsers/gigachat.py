"""GigaChat. 3: JSON in a message of the role "function call"; 3.5: GCML, as DeepSeek's DSML (tagged_formats.py)."""

from agentrl.chat.parsers.blocks import Tags, parse_blocks, read_named
from agentrl.chat.parsers.tagged_arguments import parse_spelled
from agentrl.chat.parsers.tagged_formats import marked_invocations
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed, Tools

END = "<|message_sep|>"
TAGS = Tags(
    ("function call<|role_sep|>", "<|function_call|>"),
    "",
    f'{END}\\n\\nfunction call<|role_sep|>\\n{{"name": ..., "arguments": {{...}}}}',
    noise=(END,),
)
GCML = marked_invocations("GCML", "tool_calls")


@tool_parser("gigachat")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    if "｜GCML｜" in text:
        return parse_spelled(text, GCML, tools)
    return parse_blocks(text, TAGS, read_named)
