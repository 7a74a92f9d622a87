"""verl's names of settings, and what keys of the same name mean there."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from agentrl.config.names import read_table
from agentrl.core.compatibility import Rename
from agentrl.core.foreign import read_beside

FOLDER = Path(__file__).parent


@cache
def renames() -> Mapping[str, Rename]:
    """Every entry of names.yaml and engines.yaml by its name."""
    return {**read_table(FOLDER / "engines.yaml"), **read_table(FOLDER / "names.yaml")}


@cache
def meanings() -> Mapping[str, str]:
    """What differs from verl, by key or key=value."""
    found: Mapping[str, str] = read_beside(__file__, "meanings.yaml")
    return found
