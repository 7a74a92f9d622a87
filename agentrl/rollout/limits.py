"""The limits of one trajectory."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Lengths in tokens; None is no limit."""

    prompt_length: int
    response_length: int
    """All tokens after the first prompt, over all turns, from any source."""
    model_length: int
    """Longest sequence the engine takes."""
    truncation: str = "error"
    """Side of an overlong prompt that is cut: left, right, middle; error refuses it."""
    images: int = sys.maxsize
    """Images and videos of one conversation, including those of tools."""
    assistant_turns: int | None = None
    user_turns: int | None = None
    parallel_calls: int = 8
    consecutive_errors: int = 4
    """Turns in a row with nothing but bad tool calls."""
