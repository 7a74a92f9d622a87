"""What an examination finds."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    level: Level
    """problem: training would stop or teach the wrong thing; warning: it may, or it wastes something."""
    text: str
    mend: str = ""
    """What to do about it; empty where all is well."""


def ok(text: str) -> Finding:
    """All is well."""
    return Finding("ok", text)


def warning(text: str, mend: str) -> Finding:
    """Worth a look."""
    return Finding("warning", text, mend)


def problem(text: str, mend: str) -> Finding:
    """Would break training."""
    return Finding("problem", text, mend)
