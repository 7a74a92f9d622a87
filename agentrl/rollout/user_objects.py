"""Objects of the caller's that take the place of files which the settings would name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.trajectory.row import Row


@dataclass(frozen=True)
class UserObjects:
    """What a run gets as Python objects; None leaves a part to the settings."""

    tools: Sequence[Any] | None = None
    """Tools, tool classes, functions, and paths of YAML or Python files; see `agentrl.tools.load_tools`."""
    interactions: Sequence[Any] | None = None
    """Interactions, interaction classes, functions, and paths of YAML files."""
    reward: Callable[..., Any] | None = None
    """The reward function; arguments as for `reward.custom_reward_function`."""
    rows: Sequence[Row] | None = None
    """Training rows."""
    validation: Sequence[Row] | None = None
    """Validation rows."""


NO_OBJECTS = UserObjects()
"""The settings name everything."""
