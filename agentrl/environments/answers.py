"""Answers from outside, read in a bounded size and checked: one that is not what was promised is an InfraError, and
never the model's mistake."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.core.foreign import read_json

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
        raise InfraError(f"{who} gave the {name} {_shown(value)}")
    return kind() if value is None else value


def number(value: Any, name: str, who: str) -> float:
    """A finite number. Raises InfraError."""
    if (found := _finite(value)) is None:
        raise InfraError(f"{who} gave the {name} {_shown(value)}")
    return found


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among the values, as metrics."""
    read = {name: _finite(value) for name, value in values.items()}
    return {name: value for name, value in read.items() if value is not None}


async def read_line(reader: asyncio.StreamReader, who: str) -> Json | None:
    """The object of a line; None at the end. Raises InfraError."""
    try:
        line = await reader.readline()
    except ValueError:  # of asyncio, where a line is longer than the reader's limit
        raise InfraError(f"{who} answered more than {LONGEST >> 20} MiB") from None
    except OSError:
        return None
    return parsed(line, who) if line else None


def _finite(value: Any) -> float | None:
    try:
        found = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."
