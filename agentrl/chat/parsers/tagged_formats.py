"""Formats that spell each argument out between tags: Qwen3-Coder, Seed-OSS, GLM, Hunyuan, MiniMax-M2, DeepSeek-V3.2."""

import re
from typing import Any

from agentrl.chat.parsers.blocks import Tags
from agentrl.chat.parsers.calls import Malformed, read_value
from agentrl.chat.parsers.tagged_arguments import NAME, Grammar, ReadValue, by_schema, parse_spelled, without_newlines
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed, Tools


def _function_tags(tag: str, line: str, read_value: ReadValue) -> Grammar:
    """<function=NAME><parameter=KEY>value</parameter>...</function>; `line`: what stands around a value."""
    example = f"<function=NAME>\\n<parameter=KEY>{line}VALUE{line}</parameter>\\n</function>"
    return Grammar(
        Tags((f"<{tag}>",), f"</{tag}>", f"<{tag}>\\n{example}\\n</{tag}>", signs=("<function=", "<parameter=")),
        header=re.compile(rf"\s*+<function=({NAME})>"),
        argument=re.compile(rf"\s*+<parameter=({NAME})>"),
        value_end=re.compile(r"</parameter>(?=\s*+(?:<parameter=|</function>))"),
        footer=re.compile(r"\s*+</function>"),
        read_value=read_value,
    )


def _argument(suffix: str) -> re.Pattern[str]:
    """<arg_key>KEY</arg_key><arg_value>, each tag with a suffix."""
    return re.compile(rf"\s*+<arg_key{suffix}>({NAME})</arg_key{suffix}>\s*+<arg_value{suffix}>")


def _argument_end(suffix: str) -> re.Pattern[str]:
    return re.compile(rf"</arg_value{suffix}>(?=\s*+(?:<arg_key{suffix}>|</tool_call{suffix}>))")


def _hunyuan(suffix: str) -> Grammar:
    block, call, key, value = (f"{name}{suffix}" for name in ("tool_calls", "tool_call", "arg_key", "arg_value"))
    example = f"<{call}>NAME<tool_sep{suffix}>\\n<{key}>KEY</{key}>\\n<{value}>VALUE</{value}>\\n</{call}>"
    header = rf"\s*+<{call}>\s*+({NAME})(?:<tool_sep{suffix}>|(?=\s*+(?:<{key}>|</{call}>)))"
    whole, signs = f"<{block}>\\n{example}\\n</{block}>", (f"<{key}>", f"<{call}>")
    return Grammar(
        Tags((f"<{block}>",), f"</{block}>", whole, signs=signs, several=True),
        header=re.compile(header),
        footer=re.compile(rf"\s*+</{call}>"),
        argument=_argument(suffix),
        value_end=_argument_end(suffix),
    )


def _invocations(block: str, mark: str = "", kind: str = "", shown: str = "", read: ReadValue = by_schema) -> Grammar:
    """<invoke name="NAME"><parameter name="KEY">value</parameter>...</invoke>, with a mark before each name.

    `kind`: the pattern of what follows a parameter's name, for messages as `shown`."""
    invoke, parameter, quoted = f"{mark}invoke", f"{mark}parameter", r'"([^"\n]{1,256}+)"'
    example = f'<{invoke} name="NAME">\\n<{parameter} name="KEY"{shown}>VALUE</{parameter}>\\n</{invoke}>'
    whole = f"<{block}>\\n{example}\\n</{block}>"
    return Grammar(
        Tags((f"<{block}>",), f"</{block}>", whole, signs=(f"<{invoke}",), several=True),
        header=re.compile(rf"\s*+<{invoke} name={quoted}>"),
        argument=re.compile(rf"\s*+<{parameter} name={quoted}{kind}>"),
        value_end=re.compile(rf"</{parameter}>(?=\s*+(?:<{parameter} name=|</{invoke}>))"),
        footer=re.compile(rf"\s*+</{invoke}>"),
        read_value=read,
    )


def _typed(argument: re.Match[str], value: str) -> dict[str, Any]:
    """Text or JSON, as the call itself says."""
    if argument[2] == "true":
        return {argument[1]: value}
    try:
        return {argument[1]: read_value(value)}
    except Malformed as error:
        raise Malformed(f'the argument "{argument[1]}" says string="false" and is no JSON: {error}') from error


def marked_invocations(language: str, block: str) -> Grammar:
    """DSML: ｜DSML｜ before each name, string="true" marks text as it is, string="false" JSON."""
    mark, blank = f"｜{language}｜", " " if block.startswith(" ") else ""
    kind, shown = ' string="(true|false)"', ' string="true|false"'
    return _invocations(f"{mark}{block}", f"{mark}{blank}", kind, shown, _typed)


QWEN3_CODER = _function_tags("tool_call", "\\n", without_newlines)
SEED_OSS = _function_tags("seed:tool_call", "", by_schema)
GLM = Grammar(
    Tags(
        ("<tool_call>",),
        "</tool_call>",
        "<tool_call>NAME\\n<arg_key>KEY</arg_key>\\n<arg_value>VALUE</arg_value>\\n</tool_call>",
        signs=("<arg_key>",),
    ),
    header=re.compile(rf"\s*+({NAME})\s*+(?=<arg_key>|</tool_call>)"),
    footer=re.compile(""),
    argument=_argument(""),
    value_end=_argument_end(""),
)
HUNYUAN = {suffix: _hunyuan(suffix) for suffix in (":opensource", "")}
MINIMAX_M2 = _invocations("minimax:tool_call")
DSML = {block: marked_invocations("DSML", block) for block in ("tool_calls", "function_calls", " calls")}


@tool_parser("qwen3_coder")
def qwen3_coder(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of Qwen3-Coder or Qwen3.5; `tools` tell numbers from text that looks like one."""
    return parse_spelled(text, QWEN3_CODER, tools)


@tool_parser("seed_oss", "seed")
def seed_oss(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of Seed-OSS; `tools` tell numbers from text that looks like one."""
    return parse_spelled(text, SEED_OSS, tools)


@tool_parser("glm", stops=("<|user|>", "<|observation|>"))
def glm(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of GLM 4.5 or 4.6; `tools` tell numbers from text that looks like one."""
    return parse_spelled(text, GLM, tools)


@tool_parser("hunyuan")
def hunyuan(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of Hunyuan 3, whose released tokenizer spells its tags with a suffix: <tool_call:opensource>."""
    written = next((suffix for suffix, grammar in HUNYUAN.items() if grammar.tags.open[0] in text), "")
    return parse_spelled(text, HUNYUAN[written], tools)


@tool_parser("minimax_m2", "minimax")
def minimax_m2(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of MiniMax-M2; `tools` tell numbers from text that looks like one."""
    return parse_spelled(text, MINIMAX_M2, tools)


@tool_parser("deepseek_v4")
def deepseek_v4(text: str, tools: Tools = None) -> Parsed:
    """Read a turn of DeepSeek-V3.2, whose blocks are function_calls, of V4 (tool_calls) or V4.1 (a blank before each
    name)."""
    written = next((block for block in DSML if f"｜DSML｜{block}>" in text), "tool_calls")
    return parse_spelled(text, DSML[written], tools)
