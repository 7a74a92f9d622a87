"""Chores with files in a container: one command of a shell does each, and the container is checked afterwards.

Each row has a container with numbers in in.txt. The command of every chore runs on that file, so only the
check tells another chore's command from the right one.
"""

import random
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentrl.core.errors import UserError
from agentrl.core.foreign import read_beside
from agentrl.core.points import task
from agentrl.tasks.demo.base import Option, Problem, Script, Task, call, say

Numbers = list[int]


@dataclass(frozen=True)
class Chore:
    """Something to do with in.txt: wordings, the command, and the numbers that out.txt then holds."""

    wordings: Sequence[str]
    command: str
    result: Callable[[Numbers], Numbers]

    @property
    def moves(self) -> bool:
        """Whether in.txt is gone afterwards."""
        return self.command.startswith("mv ")


RESULTS: dict[str, Callable[[Numbers], Numbers]] = {
    "cp in.txt out.txt": lambda numbers: numbers,
    "mv in.txt out.txt": lambda numbers: numbers,
    "head -n 1 in.txt > out.txt": lambda numbers: numbers[:1],
    "tail -n 1 in.txt > out.txt": lambda numbers: numbers[-1:],
    "wc -l < in.txt > out.txt": lambda numbers: [len(numbers)],
    "sort -n in.txt > out.txt": sorted,
    "tac in.txt > out.txt": lambda numbers: numbers[::-1],
    "sort -n in.txt | tail -n 1 > out.txt": lambda numbers: [max(numbers)],
}
"""Command -> the numbers that out.txt then holds."""
TEXTS = read_beside(__file__, "terminal.yaml")
CHORES = [Chore(tuple(words), command, RESULTS[command]) for command, words in TEXTS["chores"].items()]


@task("terminal")
class Terminal(Task):
    """Chores with files for the tool bash."""

    HELP = "chores with files in a container, done with a shell and checked in the container"
    OPTIONS: ClassVar[dict[str, Option]] = {
        "mistakes": Option(
            "demonstrations: share of those that forget out.txt; a warm-up on them shows the form of a call and only "
            "part of the skill",
            default=0.65,
            type=float,
            metavar="P",
        ),
    }
    DATA_SOURCE = "agentrl/terminal"
    ABILITY = "terminal"
    TOOLS = "tools/terminal.yaml"
    CONTAINERS = "embedded"
    DEMOS_AT_ONCE = 8

    def __init__(self, *, mistakes: float) -> None:
        if not 0 <= mistakes <= 1:
            raise UserError(f"--mistakes {mistakes:g} is a share: between 0 and 1")
        self.mistakes = mistakes

    def draw(self, rng: random.Random) -> Problem:
        """A chore in one of many wordings; the numbers are such that each command leaves another result."""
        chore = rng.choice(CHORES)
        question = rng.choice(TEXTS["openings"]) + rng.choice(chore.wordings) + rng.choice(TEXTS["endings"])
        numbers = rng.sample(range(10, 100), rng.randint(3, 5))
        while not _distinct(numbers):
            rng.shuffle(numbers)
        extra_info = {
            "container": {"set_up": _written(numbers), "verify": _check(chore, numbers), "memory_mb": 512},
            "tool_selection": ["bash"],
        }
        return Problem(question, chore.command, extra_info, solution=chore)

    def demonstrate(self, problem: Problem, rng: random.Random) -> Script:
        """One command, then a word; by chance the command shows its result and leaves out.txt alone."""
        forgets = rng.random() < self.mistakes
        command = problem.solution.command
        return _script(command.removesuffix(" out.txt").removesuffix(" >") if forgets else command)


def _script(command: str) -> Script:
    yield call("bash", command=command)
    yield say("Done.")


def _distinct(numbers: Numbers) -> bool:
    results = {(tuple(chore.result(numbers)), chore.moves) for chore in CHORES}
    return len(results) == len(CHORES)


def _written(numbers: Numbers) -> str:
    return f"printf '%s\\n' {' '.join(map(str, numbers))} > in.txt"


def _check(chore: Chore, numbers: Numbers) -> str:
    wanted = shlex.quote("\n".join(map(str, chore.result(numbers))))
    return f'test {"! " if chore.moves else ""}-e in.txt && test "$(cat out.txt)" = {wanted}'
