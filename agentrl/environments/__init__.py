"""Environments with text in and out: Gymnasium, TextArena, and those of the user's own (docs/environments.md)."""

from typing import Any

from agentrl.environments.entry import read_entry
from agentrl.environments.observation import Observation

__all__ = ["Observation", "open_entry", "read_entry"]


def open_entry(path: str, name: str) -> Any:
    """An environment of `environments.yaml` in this process, one at a time: `reset(seed)` and `step(action)` give an
    Observation. For demonstrations and tests; TextArena's games seed Python's random numbers. Raises UserError."""
    return read_entry(path, name).make()
