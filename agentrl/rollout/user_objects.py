"""The caller's Python objects, which take the place of files that the settings would name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.trajectory.row import Row


@dataclass(frozen=True)
class UserObjects:
    """Objects of a run; None leaves one to the settings."""

    tools: Sequence[Any] | None = None
    """Tools, tool classes, functions, and paths of YAML or Python files; see `agentrl.tools.load_tools`."""
    interactions: Sequence[Any] | None = None
    """Interactions, interaction classes, functions, and paths of YAML files."""
    reward: Callable[..., Any] | None = None
    """The reward function; arguments as for `reward.custom_reward_function`."""
    rewards: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Those of several reward functions that are objects, by their names in `reward.functions`."""
    rows: Sequence[Row] | None = None
    """Training rows."""
    validation: Sequence[Row] | None = None
    """Validation rows."""


NO_OBJECTS = UserObjects()
"""The settings name everything."""
