"""One result of a check."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One result of a check."""

    level: Level
    """problem: training would stop or learn the wrong thing; warning: it may, or it wastes something."""
    text: str
    fix: str = ""
    """How to fix it; empty if all is well."""


def ok(text: str) -> Finding:
    """All is well."""
    return Finding("ok", text)


def warning(text: str, fix: str) -> Finding:
    """Something that may harm training."""
    return Finding("warning", text, fix)


def problem(text: str, fix: str) -> Finding:
    """Something that breaks training."""
    return Finding("problem", text, fix)
