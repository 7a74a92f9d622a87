"""Pythonic calls: [f(a=1), g(b="x")], alone (Llama 3.2/4) or between tags (Llama 4, LFM2)."""

import ast
import re
import warnings
from typing import Any

from agentrl.chat.message import Call, Parsed, call_id
from agentrl.chat.parsers.calls import Malformed, broken
from agentrl.chat.parsers.thinking import split_thinking
from agentrl.chat.template import Tools

EXPECTED = "[name(key=value, ...), ...] with Python literals as values"
TAG_PAIRS = (("<|python_start|>", "<|python_end|>"), ("<|tool_call_start|>", "<|tool_call_end|>"))
_LOOKS_LIKE_CALL = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")
_BUILTIN = re.compile(r"\s*[A-Za-z_]\w*\.call\(")
# Some templates print booleans and null as JSON does.
_CONSTANTS = {"true": True, "false": False, "null": None}


def parse(text: str, tools: Tools = None) -> Parsed:
    """See `agentrl.chat.parsers`."""
    parsed, answer = split_thinking(text)
    for start, end in TAG_PAIRS:
        before, tag, rest = answer.partition(start)
        if tag:
            return _parse_between(parsed, before, rest, end)
    parsed.content = answer
    if _LOOKS_LIKE_CALL.match(answer.lstrip()):
        parsed.content = ""
        parsed.calls = _read_list(answer)
    return parsed


def parse_builtin(text: str) -> Call | None:
    """Llama 3's built-in form, NAME.call(key="value"); None when `text` is not of that form."""
    if not _BUILTIN.match(text):
        return None
    call = _read_list(f"[{text.strip()}]")[0]
    call.name = call.name.removesuffix(".call")
    return call


def _parse_between(parsed: Parsed, before: str, rest: str, end: str) -> Parsed:
    body, closed, after = rest.rpartition(end)
    if not closed:
        body, after = rest, ""
    parsed.content = "\n".join(piece for piece in (before.rstrip(), after.strip()) if piece)
    parsed.calls = _read_list(body) if closed else [broken(f"{end} is missing at the end", body, 0, expected=EXPECTED)]
    return parsed


def _read_list(text: str) -> list[Call]:
    try:
        return [_read_call(node, text, i) for i, node in enumerate(_call_nodes(text.strip()))]
    except Malformed as error:
        return [broken(str(error), text, 0, expected=EXPECTED)]
    except RecursionError:
        return [broken("it is nested too deeply", text, 0, expected=EXPECTED)]


def _call_nodes(text: str) -> list[ast.expr]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # '\\d' in a model's string is its own affair
            tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise Malformed(f"invalid Python at line {error.lineno}, column {error.offset}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise Malformed(f"invalid Python: {error}") from error
    nodes = tree.elts if isinstance(tree, ast.List) else [tree]
    if not nodes:
        raise Malformed("the list of calls is empty")
    return nodes


def _read_call(node: ast.expr, text: str, index: int) -> Call:
    if not isinstance(node, ast.Call):
        raise Malformed(f"item {index + 1} of the list is not a call")
    name = ast.unparse(node.func)
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        return broken("every argument needs its name", text, index, expected=EXPECTED, name=name)
    try:
        arguments = {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    except Malformed as error:
        return broken(str(error), text, index, expected=EXPECTED, name=name)
    return Call(call_id(text, index), name, arguments)


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.Dict):
        if not all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys):
            raise Malformed("the keys of a dict must be strings")
        return {
            key.value: _literal(v)
            for key, v in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        }
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _negated(_literal(node.operand))
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    raise Malformed(f"{ast.unparse(node)[:30]!r} is not a literal")


def _negated(value: Any) -> Any:
    if not isinstance(value, int | float):
        raise Malformed("a minus sign needs a number")
    return -value
