"""Chores with files in a container: one command of a shell does each, and the container is checked afterwards.

Each row has a container with numbers in in.txt. The command of every chore runs on that file, so only the
check tells another chore's command from the right one.
"""

import random
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from agentrl.core.errors import UserError
from agentrl.core.points import task
from agentrl.tasks.demo.base import Option, Problem, Script, Task, call, say

Numbers = list[int]
DEFAULT_MISTAKES = 0.65


@dataclass(frozen=True)
class Chore:
    """Something to do with in.txt: wordings, the command, and the numbers that out.txt then holds."""

    wordings: tuple[str, ...]
    command: str
    result: Callable[[Numbers], Numbers]
    moves: bool = False
    """Whether in.txt is gone afterwards."""


CHORES = (
    Chore(
        ("copy in.txt to out.txt.", "make a copy of in.txt called out.txt.", "duplicate in.txt as out.txt."),
        "cp in.txt out.txt",
        lambda numbers: numbers,
    ),
    Chore(
        ("rename in.txt to out.txt.", "move in.txt to out.txt.", "change the name of in.txt to out.txt."),
        "mv in.txt out.txt",
        lambda numbers: numbers,
        moves=True,
    ),
    Chore(
        ("write the first line of in.txt to out.txt.", "put the top line of in.txt into out.txt."),
        "head -n 1 in.txt > out.txt",
        lambda numbers: numbers[:1],
    ),
    Chore(
        ("write the last line of in.txt to out.txt.", "put the bottom line of in.txt into out.txt."),
        "tail -n 1 in.txt > out.txt",
        lambda numbers: numbers[-1:],
    ),
    Chore(
        ("count the lines of in.txt into out.txt.", "write how many lines in.txt has to out.txt."),
        "wc -l < in.txt > out.txt",
        lambda numbers: [len(numbers)],
    ),
    Chore(
        ("sort in.txt into out.txt.", "write the numbers of in.txt in order to out.txt."),
        "sort -n in.txt > out.txt",
        sorted,
    ),
    Chore(
        ("reverse in.txt into out.txt.", "write the lines of in.txt backwards to out.txt."),
        "tac in.txt > out.txt",
        lambda numbers: numbers[::-1],
    ),
    Chore(
        ("write the largest number in in.txt to out.txt.", "find the maximum of in.txt and put it into out.txt."),
        "sort -n in.txt | tail -n 1 > out.txt",
        lambda numbers: [max(numbers)],
    ),
)
OPENINGS = ("Please ", "Now ", "Next, ", "Your task: ", "In this folder, ", "With the shell, ")
ENDINGS = ("", " Thanks.", " Do only that.", " Then stop.", " One command is enough.", " I need it soon.")


@task("terminal")
class Terminal(Task):
    """Chores with files for the tool bash."""

    HELP = "chores with files in a container, done with a shell and checked in the container"
    OPTIONS: ClassVar[dict[str, Option]] = {
        "mistakes": Option(
            "demonstrations: share of those that forget out.txt; a warm-up on them shows the form of a call and only "
            "part of the skill",
            default=DEFAULT_MISTAKES,
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
        question = rng.choice(OPENINGS) + rng.choice(chore.wordings) + rng.choice(ENDINGS)
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
