"""Tool-call formats: how a model writes calls, one file each.

A parser is a function `(text, tools=None) -> Parsed`. It never raises and swallows no text: a call it cannot
read comes back as a `Call` with an `error` that tells the model where it went wrong and what was expected.
It takes time in proportion to the text at most, and what it passes on is plain JSON that UTF-8 can say.
"""

from agentrl.chat.parsers import (
    apertus,
    command,
    deepseek,
    dsml,
    functionary,
    gemma4,
    gigachat,
    glm,
    gpt_oss,
    hermes,
    hunyuan,
    kimi,
    kimi_k3,
    llama3_json,
    minimax_m2,
    minimax_m3,
    mistral,
    nemotron_v2,
    phi4_mini,
    pythonic,
    qwen3_coder,
    seed_oss,
    solar,
)
from agentrl.chat.parsers.own import Parser, load_parser, named_by_path
from agentrl.core.errors import UserError

PARSERS: dict[str, Parser] = {
    "hermes": hermes.parse,
    "llama3_json": llama3_json.parse,
    "mistral": mistral.parse,
    "pythonic": pythonic.parse,
    "qwen3_coder": qwen3_coder.parse,
    "glm": glm.parse,
    "deepseek": deepseek.parse,
    "deepseek_v4": dsml.parse,
    "kimi": kimi.parse,
    "kimi_k3": kimi_k3.parse,
    "gpt_oss": gpt_oss.parse,
    "gemma4": gemma4.parse,
    "minimax_m2": minimax_m2.parse,
    "minimax_m3": minimax_m3.parse,
    "seed_oss": seed_oss.parse,
    "hunyuan": hunyuan.parse,
    "nemotron_v2": nemotron_v2.parse,
    "phi4_mini": phi4_mini.parse,
    "command": command.parse,
    "apertus": apertus.parse,
    "solar": solar.parse,
    "gigachat": gigachat.parse,
    "functionary": functionary.parse,
}
"""The value of rollout.multi_turn.format -> its parser."""

ALIASES: dict[str, str] = {
    "qwen": "hermes",
    "gpt-oss": "gpt_oss",
    "minimax": "minimax_m2",
    "seed": "seed_oss",
}
"""Further names, verl's among them -> the format; both are keys of PARSERS."""

PARSERS |= {alias: PARSERS[name] for alias, name in ALIASES.items()}

STOPS: dict[str, tuple[str, ...]] = {
    "llama3_json": ("<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>"),
    "pythonic": ("<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>"),
    "glm": ("<|user|>", "<|observation|>"),
    "gpt_oss": ("<|return|>", "<|call|>"),
    "gemma4": ("<turn|>", "<|tool_response>"),
    "functionary": ("<|eot_id|>", "<|eom_id|>"),
    "solar": ("<|calls|>", "<|flush|>"),
}
"""Tokens at which a format's models stop besides end-of-sequence and end-of-turn, where the vocabulary has them."""


def parser_for(format: str) -> Parser:
    """The parser by that name, or the user's own by its path. Raises UserError for what is neither."""
    if format in PARSERS:
        return PARSERS[format]
    if named_by_path(format):
        return load_parser(format)
    raise UserError(
        f"rollout.multi_turn.format: {format!r} is unknown; use one of {', '.join(PARSERS)}, or file.py:Class"
    )


def format_stops(format: str) -> tuple[str, ...]:
    """Stop tokens of a format; they count only where they are single tokens of the vocabulary."""
    if format not in PARSERS:
        return getattr(parser_for(format), "stops", ())
    return STOPS.get(ALIASES.get(format, format), ())
