"""What a task is: a source of problems, each a dataset row, and perhaps demonstrations of how to solve them.

Invariant: everything a task draws comes from the `random.Random` it is handed, so equal seeds give equal files.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agentrl.core.errors import UserError
from agentrl.tasks.demo.stage import Script
from agentrl.trajectory.trajectory import Message


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
    """One question with all that its tools, interaction and scorer need to know."""

    question: str
    """Text by which splits are kept disjoint."""
    ground_truth: str
    """What the reward function compares with."""
    extra_info: dict[str, Any]
    """The row's extra_info, without split and index."""
    solution: Any = None
    """The task's own notes on how to solve it, for demonstrations; not written."""

    @property
    def prompt(self) -> list[Message]:
        """The row's prompt."""
        return [{"role": "user", "content": self.question}]


class Task(ABC):
    """A problem generator. `__init__` takes its OPTIONS as keywords; raises UserError on bad ones."""

    HELP: ClassVar[str]
    OPTIONS: ClassVar[dict[str, Option]] = {}
    VARIANT: ClassVar[str | None] = None
    """For a family of tasks: the name of one, as an example. `__init__` then takes the chosen one as `variant`."""
    DATA_SOURCE: str
    ABILITY: ClassVar[str]
    TOOLS: ClassVar[str | None] = None
    """YAML of the tools that the task is solved with."""
    INTERACTION: ClassVar[str | None] = None
    """YAML of the interaction that its rows ask for."""
    REWARD: ClassVar[str | None] = None
    """Ready-made reward function, "module:function"; None where tools or interaction give the score."""

    @abstractmethod
    def draw(self, rng: random.Random) -> Problem:
        """A random problem; repetitions are the caller's business."""

    def demonstrate(self, problem: Problem, rng: random.Random) -> Script:
        """How an assistant may tackle `problem`, turn by turn."""
        raise UserError(f"the task {type(self).__name__} has no demonstrations; leave out --demos")

    def files(self, out: Path) -> dict[str, str]:
        """Further files for the folder `out`, by name, that the task's tools need."""
        return {}

    def tool_config(self, out: Path) -> str | None:
        """The YAML of the tools for rows that lie in `out`."""
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
    """An assistant turn that calls one tool; `number` tells the calls of a conversation apart."""
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }


def say(text: str) -> Message:
    """An assistant turn in words."""
    return {"role": "assistant", "content": text}
