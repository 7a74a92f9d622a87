"""verl's names of settings, and what keys of the same name mean there."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from agentrl.core.compatibility import Rename

NAMES = Path(__file__).with_name("names.yaml")
MEANINGS = Path(__file__).with_name("meanings.yaml")


@cache
def renames() -> Mapping[str, Rename]:
    """Every entry of names.yaml by its name."""
    entries: dict[str, Rename] = {}
    for action, part in yaml.safe_load(NAMES.read_text(encoding="utf-8")).items():
        items = part.items() if isinstance(part, dict) else ((name, "") for name in part)
        entries |= {name: Rename(name, action, text) for names, text in items for name in _each(names)}
    return entries


def _each(names: str) -> list[str]:
    """`a|b.x` is a.x and b.x."""
    sections, dot, rest = names.partition(".")
    return [f"{section}{dot}{rest}" for section in sections.split("|")]


@cache
def meanings() -> Mapping[str, str]:
    """What differs from verl, by key or key=value."""
    found: Mapping[str, str] = yaml.safe_load(MEANINGS.read_text(encoding="utf-8"))
    return found
