"""Chores with files in a container: one command of a shell does each, and the container is checked afterwards.

Each row has a container of its own with a file of numbers. The commands of all chores take the same two files, so
another chore's command runs just as well, and only the check tells them apart.
"""

import random
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from agentrl.core.errors import UserError
from agentrl.core.points import task
from agentrl.tasks.demo.base import Option, Problem, Task, call, say
from agentrl.tasks.demo.stage import Script

NAMES = ("apple", "bread", "chair", "cloud", "crown", "eagle", "field", "flame", "grape", "honey", "house", "lemon",
         "ocean", "piano", "plant", "river", "stone", "table", "tiger", "train")  # fmt: skip
Numbers = list[int]
DEFAULT_SLOPPINESS = 0.6


@dataclass(frozen=True)
class Chore:
    """What to do with the file `a`, in words and as a command, and the numbers that `b` then holds."""

    text: str
    command: str
    result: Callable[[Numbers], Numbers]
    moves: bool = False
    """Whether `a` is gone afterwards."""


CHORES = (
    Chore("Copy {a} to {b}.", "cp {a} {b}", lambda a: a),
    Chore("Rename {a} to {b}.", "mv {a} {b}", lambda a: a, moves=True),
    Chore("Write the first line of {a} to {b}.", "head -n 1 {a} >{b}", lambda a: a[:1]),
    Chore("Write the last line of {a} to {b}.", "tail -n 1 {a} >{b}", lambda a: a[-1:]),
    Chore("Count the lines of {a}, and write the number to {b}.", "wc -l <{a} >{b}", lambda a: [len(a)]),
    Chore("Sort the numbers in {a}, and write them to {b}.", "sort -n {a} >{b}", sorted),
    Chore("Write the lines of {a} in reverse to {b}.", "tac {a} >{b}", lambda a: a[::-1]),
    Chore("Write the largest number in {a} to {b}.", "sort -n {a} | tail -n 1 >{b}", lambda a: [max(a)]),
)


@task("terminal")
class Terminal(Task):
    """Chores with files for the tool bash."""

    HELP = "chores with files in a container, done with a shell and checked in the container"
    OPTIONS: ClassVar[dict[str, Option]] = {
        "mistakes": Option(
            "demonstrations: share of those that run the command of another chore; a warm-up on them shows the form "
            "of a call and only part of the skill",
            default=DEFAULT_SLOPPINESS,
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
        """A chore with two files; the numbers are such that each command leaves another result."""
        chore, (a, b) = rng.choice(CHORES), (f"{name}.txt" for name in rng.sample(NAMES, 2))
        numbers = rng.sample(range(10, 100), rng.randint(3, 5))
        while not _distinct(numbers):
            rng.shuffle(numbers)
        extra_info = {
            "container": {"set_up": _written(numbers, a), "verify": _check(chore, numbers, a, b), "memory_mb": 512},
            "tool_selection": ["bash"],
        }
        command = chore.command.format(a=a, b=b)
        return Problem(chore.text.format(a=a, b=b), command, extra_info, solution=(chore, a, b))

    def demonstrate(self, problem: Problem, rng: random.Random) -> Script:
        """One command, then a word; by chance the command of another chore."""
        chore, a, b = problem.solution
        if rng.random() < self.mistakes:
            chore = rng.choice([other for other in CHORES if other is not chore])
        return _script(chore.command.format(a=a, b=b))


def _script(command: str) -> Script:
    yield call("bash", command=command)
    yield say("Done.")


def _distinct(numbers: Numbers) -> bool:
    results = {(tuple(chore.result(numbers)), chore.moves) for chore in CHORES}
    return len(results) == len(CHORES)


def _written(numbers: Numbers, file: str) -> str:
    return f"printf '%s\\n' {' '.join(map(str, numbers))} >{file}"


def _check(chore: Chore, numbers: Numbers, a: str, b: str) -> str:
    wanted = shlex.quote("\n".join(map(str, chore.result(numbers))))
    return f'test {"! " if chore.moves else ""}-e {a} && test "$(cat {b})" = {wanted}'
