"""Tool-call formats: how a model writes calls, one file each.

A parser is a function `(text, tools=None) -> Parsed`. It never raises and swallows no text: a call it cannot
read comes back as a `Call` with an `error` that tells the model where it went wrong and what was expected.
"""

from collections.abc import Callable

from agentrl.chat.message import Parsed
from agentrl.chat.parsers import deepseek, glm, gpt_oss, hermes, kimi, llama3_json, mistral, pythonic, qwen3_coder
from agentrl.errors import UserError

Parser = Callable[..., Parsed]

PARSERS: dict[str, Parser] = {
    "hermes": hermes.parse,
    "qwen": hermes.parse,
    "llama3_json": llama3_json.parse,
    "mistral": mistral.parse,
    "pythonic": pythonic.parse,
    "qwen3_coder": qwen3_coder.parse,
    "glm": glm.parse,
    "deepseek": deepseek.parse,
    "kimi": kimi.parse,
    "gpt_oss": gpt_oss.parse,
}
"""The value of rollout.multi_turn.format -> its parser."""

STOPS: dict[str, tuple[str, ...]] = {
    "llama3_json": ("<|eot_id|>", "<|eom_id|>"),
    "pythonic": ("<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>"),
    "glm": ("<|user|>", "<|observation|>"),
    "gpt_oss": ("<|return|>", "<|call|>"),
}
"""Tokens at which a format's models stop besides end-of-sequence and end-of-turn, where the vocabulary has them."""


def parser_for(format: str) -> Parser:
    """Raises UserError for a name that is none of the formats."""
    if format not in PARSERS:
        raise UserError(f"rollout.multi_turn.format: {format!r} is unknown; use one of {', '.join(PARSERS)}")
    return PARSERS[format]


def format_stops(format: str) -> tuple[str, ...]:
    """Stop tokens of a format; they count only where they are single tokens of the vocabulary."""
    return STOPS.get(format, ())
