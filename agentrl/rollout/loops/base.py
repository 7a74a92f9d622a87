"""The contract of an agent loop.

A loop fills its trajectory and returns nothing, so that a partial trajectory remains after a timeout or a failure. It
never scores, retries or catches errors: the scheduler does, the same way for every loop.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from agentrl.containers import ContainerSpec
from agentrl.engines.engine import Sampling
from agentrl.rollout.episode import Episode, RolloutContext
from agentrl.tools import ToolSet
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

__all__ = ["AgentLoop", "RolloutContext"]


class AgentLoop(ABC):
    """Drives one trajectory; each trajectory has its own object."""

    uses_tools: ClassVar[bool] = True
    """Whether the prompt shows the run's tools, which count towards its length."""

    def __init__(self, env: RolloutContext) -> None:
        self.env = env

    @classmethod
    def container_spec(cls, spec: ContainerSpec) -> ContainerSpec:
        """A row's container as this loop needs it: as the row describes it, unless a loop says otherwise."""
        return spec

    @classmethod
    def prompt_tools(cls, row: Row, tools: ToolSet) -> list[dict[str, Any]]:
        """Schemas of the tools in a row's prompt: the run's, unless a loop has others. Raises UserError."""
        return tools.schemas(row.tool_selection) if cls.uses_tools else []

    @abstractmethod
    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        """Fill `trajectory`. May raise InfraError; asyncio.CancelledError must pass."""

    def episode(
        self, trajectory: Trajectory, sampling: Sampling, schemas: list[dict[str, Any]], *, side: int | None = None
    ) -> Episode:
        """An episode, which keeps tokens, messages and limits in step; with several of them each has its `side`."""
        return Episode(trajectory, self.env, sampling, schemas, side=side)
