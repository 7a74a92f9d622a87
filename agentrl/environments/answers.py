"""Answers from outside, read in a bounded size and checked: one that is not what was promised is an InfraError, and
never the model's mistake."""

import asyncio
from collections.abc import Mapping
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.core.foreign import read_json
from agentrl.core.numbers import is_reward

LONGEST = 2**24
"""Bytes of an answer."""
LONGEST_TEXT = 2**21
"""Characters of an observation."""
SHORT = 300
"""Characters of an answer in a message."""

Json = dict[str, Any]


def parsed(text: str | bytes, who: str) -> Json:
    """The JSON object that an answer is. Raises InfraError."""
    if len(text) > LONGEST:
        raise InfraError(f"{who} answered more than {LONGEST >> 20} MiB")
    try:
        value = read_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        shown = text[:SHORT] if isinstance(text, str) else text[:SHORT].decode(errors="replace")
        raise InfraError(f"{who} answered no JSON object: {' '.join(shown.split()) or 'nothing'}")
    return value


def field(answer: Mapping[str, Any], name: str, kind: type, who: str) -> Any:
    """A field of an answer; an empty one where it is null or missing. Raises InfraError for one of another type."""
    value = answer.get(name)
    if not isinstance(value, kind | None):
        raise InfraError(f"{who} gave the {name} {value!r:.300}")
    return kind() if value is None else value


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among the values, as metrics."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float) and is_reward(value)}


async def read_line(reader: asyncio.StreamReader, who: str) -> Json | None:
    """The object of a line; None at the end. Raises InfraError."""
    try:
        line = await reader.readline()
    except ValueError:  # of asyncio, where a line is longer than the reader's limit
        raise InfraError(f"{who} answered more than {LONGEST >> 20} MiB") from None
    except OSError:
        return None
    return parsed(line, who) if line else None
