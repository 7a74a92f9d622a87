"""Llama 3 and 4: {"name": ..., "parameters": {...}}, alone, after <|python_tag|> or after an answer's text."""

import re

from agentrl.chat.parsers.blocks import read_list
from agentrl.chat.parsers.calls import Malformed, broken, make_call, read_json, skip_space, too_many
from agentrl.chat.parsers.pythonic import parse_builtin
from agentrl.chat.parsers.reasoning import calls_in_thinking, split_thinking
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed, Tools

TAG = "<|python_tag|>"
EXPECTED = '{"name": ..., "parameters": {...}}'
_LOOKS_LIKE_CALL = re.compile(r'\s*+\[?\s*+\{\s*+"(?:name|type)"\s*+:')
# Llama 4's template writes a turn's text, at times between these tags, and its calls without anything between them.
_AFTER_TEXT = re.compile(r'\{"name": "[^"\\\n]{1,256}+", "parameters": ')
_TEXT_TAGS = re.compile(r"<\|python_(?:start|end)\|>")
_SEPARATOR = re.compile(r"[\s;,]*+")


@tool_parser("llama3_json", stops=("<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>"))
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    parsed, answer = split_thinking(text)
    content, tag, body = answer.partition(TAG)
    after = _AFTER_TEXT.search(answer)
    ending = _objects(answer[after.start() :]) if after else []
    if tag:
        builtin = parse_builtin(body)
        parsed.content, parsed.calls = content.rstrip(), _objects(body) if builtin is None else [builtin]
    elif _LOOKS_LIKE_CALL.match(answer):
        parsed.calls = _objects(answer)
    # Calls end the turn; the same further up, say in an example, is text.
    elif after and not any(call.error for call in ending):
        parsed.content, parsed.calls = _TEXT_TAGS.sub("", answer[: after.start()]).rstrip(), ending
    else:
        parsed.content = answer
        parsed.calls += calls_in_thinking(parsed, answer, (TAG,), EXPECTED)
    return parsed


def _objects(body: str) -> list[Call]:
    """The calls of a text that has nothing else."""
    calls: list[Call] = []
    at = skip_space(body, 0, _SEPARATOR)
    while at < len(body):
        if (last := too_many(calls, EXPECTED)) is not None:
            return [*calls, last]
        try:
            value, end = read_json(body, at)
            calls += read_list(value, body[at:end], len(calls), make_call)
        except Malformed as error:
            return [*calls, broken(str(error), body[at:], len(calls), expected=EXPECTED)]
        at = skip_space(body, end, _SEPARATOR)
    return calls
