"""One dataset row, in verl's layout, unchanged."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Row:
    """A prompt with all that its tools, interaction and scorer need to know."""

    uid: str
    """Stable across epochs and restarts: "<file>:<line>"."""
    prompt: list[dict[str, Any]]
    """OpenAI-style messages."""
    data_source: str = "unknown"
    ability: str | None = None
    reward_model: dict[str, Any] = field(default_factory=dict)
    """`{"style": "rule" | "model", "ground_truth": ...}`."""
    extra_info: dict[str, Any] = field(default_factory=dict)
    agent_name: str | None = None
    """Agent loop for this row; None leaves it to `rollout.agent.default_agent_loop`."""
    others: dict[str, Any] = field(default_factory=dict)
    """Columns that agentrl itself does not read, for the user's agent loops and reward managers."""

    @property
    def ground_truth(self) -> Any:
        """The value that the reward function compares with; None when the row has none."""
        return self.reward_model.get("ground_truth")

    @property
    def tools_kwargs(self) -> dict[str, dict[str, Any]]:
        """Per tool name: create_kwargs, execute_kwargs, calc_reward_kwargs, release_kwargs."""
        return self.extra_info.get("tools_kwargs") or {}

    @property
    def interaction_kwargs(self) -> dict[str, Any] | None:
        """Arguments for the simulated user, with its `name`; None: no interaction for this row."""
        return self.extra_info.get("interaction_kwargs") or None

    @property
    def task(self) -> dict[str, Any] | None:
        """The arguments of its task's format, `format` among them; None for a row without a container.

        A row may describe its container without a task, in `extra_info.container`. Other values of these names, such
        as a task's name as text, are the user's own.
        """
        task, container = self.extra_info.get("task"), self.extra_info.get("container")
        if isinstance(task, dict) and isinstance(task.get("format"), str):
            return task
        return {"format": "container", **container} if isinstance(container, dict) else None

    @property
    def scores_itself(self) -> bool:
        """Whether its task gives the reward."""
        task = self.task
        return task is not None and (task["format"] != "container" or "verify" in task)

    @property
    def tool_selection(self) -> list[str] | None:
        """The tools this row may use; None: all."""
        return self.extra_info.get("tool_selection") or None
