"""Calls as JSON between two tags: Hermes, Nemotron-Nano-v2, Phi-4-mini, Apertus, Command."""

import re
from functools import partial
from typing import Any

from agentrl.chat.parsers.blocks import Tags, parse_blocks, read_lists, read_named
from agentrl.chat.parsers.calls import Malformed, make_call, typed_call
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed, Tools

CALL = '{"name": ..., "arguments": {...}}'
HERMES = Tags(("<tool_call>",), "</tool_call>", f"<tool_call>{CALL}</tool_call>", signs=('"name"',))
NEMOTRON = Tags(("<TOOLCALL>",), "</TOOLCALL>", f"<TOOLCALL>[{CALL}]</TOOLCALL>", signs=('"name"',))
PHI = Tags(("<|tool_call|>",), "<|/tool_call|>", f"<|tool_call|>{CALL}<|/tool_call|>", signs=('"name"',))
PHI_LIST = Tags(("functools[",), "", f"functools[{CALL}]", begins=re.compile(r"functools(?=\[)"))
APERTUS = Tags(
    ("<|tools_prefix|>",),
    "<|tools_suffix|>",
    '<|tools_prefix|>[{"NAME": {...}}]<|tools_suffix|>',
    noise=("<|inner_suffix|>",),
    signs=("{",),
)
COMMAND = Tags(
    ("<|START_ACTION|>",),
    "<|END_ACTION|>",
    '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>',
    channels=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    signs=('"tool_name"',),
)


@tool_parser("hermes", "qwen")
def hermes(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of Hermes or Qwen, with a call in each block."""
    return parse_blocks(text, HERMES, read_named)


@tool_parser("nemotron_v2")
def nemotron_v2(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of Nemotron-Nano-v2, with a list of calls."""
    return parse_blocks(text, NEMOTRON, read_lists())


@tool_parser("phi4_mini")
def phi4_mini(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of Phi-4-mini, with calls between tags, or functools[{...}, ...] with no end."""
    if PHI_LIST.open[0] in text and PHI.open[0] not in text:
        return parse_blocks(text, PHI_LIST, read_lists())
    return parse_blocks(text, PHI, read_lists())


@tool_parser("apertus")
def apertus(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of Apertus, whose calls also end its thinking."""
    return parse_blocks(text, APERTUS, read_lists(_make_keyed))


@tool_parser("command")
def command(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of Command R7B or Command A."""
    return parse_blocks(text, COMMAND, read_lists(partial(make_call, key="tool_name")))


def _make_keyed(item: Any, seed: str, index: int) -> Call:
    if not isinstance(item, dict) or len(item) != 1:
        raise Malformed("each call is an object with one key, the tool's name")
    ((name, arguments),) = item.items()
    return typed_call(name, arguments, seed, index)
