"""A task folder as an object, whichever of the formats it is written in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.containers import ContainerSpec

TESTS, SOLUTION, LOGS = "/tests", "/solution", "/logs"
"""Folders in the container that the format names."""


@dataclass(frozen=True)
class Healthcheck:
    """A command that says when a started container is ready, as Docker's HEALTHCHECK does."""

    command: str
    interval: float = 5.0
    timeout: float = 30.0
    start_period: float = 0.0
    """Seconds in which failures do not count."""
    start_interval: float = 5.0
    retries: int = 3


@dataclass(frozen=True)
class Copy:
    """A file, or a folder whose content is copied."""

    source: Path
    to: str = ""
    """Its place in the container; empty: the working folder."""


@dataclass(frozen=True)
class Script:
    """A script of the task and the files that go into the container with it."""

    files: tuple[Copy, ...]
    command: str
    env: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    """None: the agent's; empty: the image's."""
    timeout: float | None = None
    """Seconds; None: no limit."""


@dataclass(frozen=True)
class Separate:
    """A container of the verifier's own."""

    spec: ContainerSpec
    artifacts: tuple[str, ...] = ()
    """Files and folders that it gets from the agent's container, at the same paths."""
    collect: tuple[Script, ...] = ()
    """Commands in the agent's container before files are copied out of it."""


@dataclass(frozen=True)
class Task:
    """One task. All that is read from its folder."""

    folder: Path
    instruction: str
    spec: ContainerSpec
    tests: Script
    solution: Script | None
    agent_timeout: float | None = None
    healthcheck: Healthcheck | None = None
    files: tuple[Copy, ...] = ()
    """Files that no Dockerfile copies: they come before the agent."""
    separate: Separate | None = None
    """None: the tests run in the agent's container."""
    parser: str | None = None
    """Name of the parser of the tests' output; None: they leave the reward in a file."""
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Fields of the task that have no effect here."""
    offers: Mapping[str, Any] = field(default_factory=dict)
    """Servers and skills for the agent: `mcp_servers` as MCP clients read them, `skills`, a folder in the container."""
    name: str = ""
    """A step's name."""
    steps: tuple["Task", ...] = ()
    """Steps in one container, one after another; empty: the task is its only step."""
    least: Mapping[str, float] = field(default_factory=dict)
    """Numbers that a step's verdict must reach, or the next step does not come."""
    last_counts: bool = False
    """Whether the last step's reward is the task's; else the mean over the steps is."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, category and difficulty."""
        found = [self.metadata.get(key) for key in ("tags", "keywords", "category", "difficulty")]
        return tuple(str(one) for many in found for one in (many if isinstance(many, list) else [many]) if one)
