"""verl's names of settings, and what keys of the same name mean there."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from agentrl.config.names import read_table
from agentrl.core.compatibility import Rename

FOLDER = Path(__file__).parent


@cache
def renames() -> Mapping[str, Rename]:
    """Every entry of names.yaml and engines.yaml by its name."""
    return {**read_table(FOLDER / "engines.yaml"), **read_table(FOLDER / "names.yaml")}


@cache
def meanings() -> Mapping[str, str]:
    """What differs from verl, by key or key=value."""
    found: Mapping[str, str] = yaml.safe_load((FOLDER / "meanings.yaml").read_text(encoding="utf-8"))
    return found
