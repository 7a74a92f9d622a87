"""The contract of a task format, which prepares a row's container and scores the agent's work in it.

Invariants: the verifier's files come into the container only after the agent has ended; a failure of the container
or of the verifier, or one that takes too long, is an InfraError; a test that fails is a reward of 0.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agentrl.containers import Container, ContainerSpec
from agentrl.core.errors import InfraError


@dataclass(frozen=True)
class Verdict:
    """The result of a task's verification."""

    reward: float
    scores: dict[str, float] = field(default_factory=dict)
    """Its parts, where the task has several."""
    output: str = ""
    """The end of what the verifier wrote."""


SET_UP_TIMEOUT = 600.0
VERIFY_TIMEOUT = 3600.0


class TookTooLong(InfraError):
    """A phase exceeded its limit."""

    def __init__(self, what: str, limit: float) -> None:
        super().__init__(f"{what} took longer than its {limit:g} s")


class TaskFormat(Protocol):
    """A row's task, made from the mapping `extra_info["task"]` of the row; one object for each try of a trajectory.

    It may have `set_up_timeout` and `verify_timeout`, in seconds: more than that is an infrastructure error; and
    `further`, a sequence of ContainerSpec: containers that `verify` starts, whose images are prepared with its own.
    A class that takes the keyword `pass_env` gets `rollout.containers.pass_env`.

    A task of several steps, each with an agent of its own in the same container, has `steps`: objects with `name`,
    `prompt` (messages), `agent_timeout`, `set_up` and `verify`; after `verify`, `passed` says whether the next step
    comes. Its own `set_up` comes first, and `total()` is the verdict on the steps that were verified. It may have
    `offers`, a mapping for the agent: `mcp_servers`, `skills`.
    """

    @property
    def spec(self) -> ContainerSpec:
        """The container that it needs."""

    @property
    def agent_timeout(self) -> float | None:
        """Seconds for the agent; None: `rollout.trajectory_timeout`."""

    async def set_up(self, container: Container) -> None:
        """Prepare a started container, before the agent. Raises InfraError."""

    async def verify(self, container: Container, logs: Path) -> Verdict | None:
        """Score the container after the agent's end; `logs` is an empty folder that is kept. None: the run's reward
        function scores it. Raises InfraError."""


async def through_steps(task: Any, work: Callable[[Any], Awaitable[Verdict | None]]) -> Verdict | None:
    """The verdict on a task, or on its steps up to the first that does not pass. `work` has one done and verified;
    None ends the task without a verdict."""
    steps = getattr(task, "steps", ())
    for step in steps:
        if await work(step) is None:
            return None
        if not step.passed:
            break
    return task.total() if steps else await work(task)


TaskArguments = dict[str, Any]
"""`extra_info["task"]`: `format`, and what else the format reads."""
