"""Environments: Gymnasium, TextArena, verifiers, servers, and those of the user's own (docs/environments.md)."""

from collections.abc import Sequence
from typing import Any

from agentrl.environments.answers import Observation
from agentrl.environments.entry import read_entry
from agentrl.trajectory.message import Message

__all__ = ["Observation", "open_entry", "read_entry", "task_prompts"]


def open_entry(path: str, name: str) -> Any:
    """An environment of `environments.yaml` in this process, one at a time: `reset(seed)` and `step(action)` give an
    Observation. For demonstrations and tests; TextArena's games seed Python's random numbers. Raises UserError."""
    return read_entry(path, name).make()


def task_prompts(path: str, name: str) -> Sequence[list[Message] | None]:
    """The prompts of an entry's training tasks, where the environment asks the model itself; None for a task whose
    conversation the environment begins. For demonstrations and tests. Raises UserError."""
    from agentrl.environments.outside import tasks_of

    entry = read_entry(path, name)
    return tasks_of(entry)[entry.first_seed : entry.first_seed + entry.rows]
