"""Defines a task: a source of problems, each a dataset row, and perhaps demonstrations of how to solve them.

Invariant: everything a task draws comes from the `random.Random` it is handed, so equal seeds give equal files.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agentrl.core.errors import UserError
from agentrl.trajectory.message import Call, Message, as_tool_call

Script = Generator[Message, str, None]
"""Yields assistant messages; is sent what came back: the tool's response, or the user's reply."""


@dataclass(frozen=True)
class Option:
    """A command-line option of a task."""

    help: str
    default: Any
    type: Callable[[str], Any] = str
    choices: tuple[str, ...] | None = None
    metavar: str | None = None


@dataclass(frozen=True)
class Problem:
    """One question, with the data for its tools, interaction and reward."""

    question: str
    """Text that must differ between splits."""
    ground_truth: str
    """The ground truth of the reward function."""
    extra_info: dict[str, Any]
    """The row's extra_info, without split and index."""
    solution: Any = None
    """Private data for demonstrations; not written to rows."""

    @property
    def prompt(self) -> list[Message]:
        """The row's prompt."""
        return [{"role": "user", "content": self.question}]


class Task(ABC):
    """Generates problems. `__init__` takes its OPTIONS as keywords; raises UserError for wrong ones."""

    HELP: ClassVar[str]
    OPTIONS: ClassVar[dict[str, Option]] = {}
    VARIANT: ClassVar[str | None] = None
    """For a family of tasks: the name of an example. `__init__` takes the chosen one as `variant`."""
    DATA_SOURCE: str
    ABILITY: ClassVar[str]
    TOOLS: ClassVar[str | None] = None
    """YAML of the task's tools."""
    INTERACTION: ClassVar[str | None] = None
    """YAML of the task's interaction."""
    CONTAINERS: ClassVar[str | None] = None
    """Container provider that is enough for its rows; None without containers."""
    REWARD: ClassVar[str | None] = None
    """Ready-made reward function, "module:function"; None if tools, interaction or container give the score."""

    DEMOS_AT_ONCE: ClassVar[int] = 1
    """Demonstrations that are played at the same time. Above 1, `demonstrate` draws before the script's first turn."""

    @abstractmethod
    def draw(self, rng: random.Random) -> Problem:
        """A random problem; it may repeat an earlier one."""

    def demonstrate(self, problem: Problem, rng: random.Random) -> Script:
        """A script that solves `problem`, turn by turn."""
        raise UserError(f"the task {type(self).__name__} has no demonstrations; leave out --demos")

    def files(self, out: Path) -> dict[str, str]:
        """Further files for the folder `out`, by name, that the task's tools need."""
        return {}

    def tool_config(self, out: Path) -> str | None:
        """The YAML of the tools for rows in `out`."""
        return self.TOOLS


def row(task: Task, problem: Problem, split: str, index: int) -> dict[str, Any]:
    """A problem in verl's row layout."""
    return {
        "data_source": task.DATA_SOURCE,
        "prompt": problem.prompt,
        "ability": task.ABILITY,
        "reward_model": {"style": "rule", "ground_truth": problem.ground_truth},
        "extra_info": {"split": split, "index": index, "question": problem.question, **problem.extra_info},
    }


def call(name: str, number: int = 0, /, **arguments: Any) -> Message:
    """An assistant turn that calls one tool; `number` distinguishes the calls of a conversation."""
    made = as_tool_call(Call(f"call_{number}", name, arguments))
    return {"role": "assistant", "content": "", "tool_calls": [made]}


def say(text: str) -> Message:
    """An assistant turn in words."""
    return {"role": "assistant", "content": text}
