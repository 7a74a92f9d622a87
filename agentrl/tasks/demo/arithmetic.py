"""Short word problems whose numbers are too large for a small model's head: it needs the calculator.

The model calls `calculator(expression)`, reads the result, and states it: "The answer is 2146." A checker then says
whether that is right, and the model may try again.
"""

import random
from pathlib import Path
from typing import ClassVar

import yaml

from agentrl.core.errors import UserError
from agentrl.core.points import task
from agentrl.tasks.demo.base import Option, Problem, Script, Task
from agentrl.tasks.demo.slips import SLIPS, Slips

TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Names, items, and pairs of a question and the expression that solves it, by their slots."""
DIFFICULTIES = ("tiny", "easy", "normal")
DEFAULT_SLOPPINESS = 0.3
DEFAULT_SLIPS = ("operator", "operand", "copy")


@task("arithmetic")
class Arithmetic(Task):
    """Word problems over + - * for the calculator tool."""

    HELP = "short word problems over + - *, solved with the calculator tool"
    OPTIONS: ClassVar[dict[str, Option]] = {
        "difficulty": Option(
            "tiny: bare sums of two 2-digit numbers; easy: word problems over two 2-digit numbers; normal: two or "
            "three numbers, up to 3 digits",
            default="normal",
            choices=DIFFICULTIES,
        ),
        "sloppiness": Option(
            "demonstrations: chance of each slip; a warm-up on them teaches the format and only part of the skill",
            default=DEFAULT_SLOPPINESS,
            type=float,
            metavar="P",
        ),
        "slips": Option(
            "demonstrations: the slips to make, joined by commas: operator (a wrong one), operand (a wrong one), "
            "copy (the result is miscopied), parrot (a number of the question is stated instead of the result)",
            default=",".join(DEFAULT_SLIPS),
            metavar="LIST",
        ),
        "retries": Option(
            "demonstrations: share of the wrong ones in which the checker objects and a second attempt is right",
            default=0.25,
            type=float,
            metavar="P",
        ),
    }
    DATA_SOURCE = "agentrl/arithmetic"
    ABILITY = "math"
    TOOLS = "tools/calculator.yaml"
    INTERACTION = "interactions/checker.yaml"

    def __init__(self, *, difficulty: str, sloppiness: float, slips: str, retries: float) -> None:
        kinds = tuple(slips.split(",")) if slips else ()
        if unknown := set(kinds) - set(SLIPS):
            raise UserError(f"--slips {', '.join(sorted(unknown))}: choose from {', '.join(SLIPS)}")
        if not (0 <= sloppiness <= 1 and 0 <= retries <= 1):
            raise UserError("--sloppiness and --retries are chances: between 0 and 1")
        self.difficulty = difficulty
        self.slips = Slips(kinds, sloppiness, retries)

    def draw(self, rng: random.Random) -> Problem:
        """A wording with numbers drawn for it; the answer is never below zero."""
        text, formula = rng.choice(self._wordings(rng))
        numbers = self._numbers(rng, formula)
        while evaluate(formula, numbers) < 0:
            numbers = self._numbers(rng, formula)
        question = text.format(name=rng.choice(TEXTS["names"]), item=rng.choice(TEXTS["items"]), **numbers)
        truth = str(evaluate(formula, numbers))
        extra_info = {
            "answer": truth,
            "tool_selection": ["calculator"],
            "interaction_kwargs": {"name": "checker", "ground_truth": truth, "hint": "Try again."},
        }
        return Problem(question, truth, extra_info, solution=formula.format(**numbers))

    def demonstrate(self, problem: Problem, rng: random.Random) -> Script:
        """One attempt, or two; see `Slips` for what may go wrong."""
        return self.slips.script(problem.solution, problem.ground_truth, rng)

    def _wordings(self, rng: random.Random) -> list[list[str]]:
        if self.difficulty == "tiny":
            return list(TEXTS["tiny"])
        two = self.difficulty == "easy" or rng.random() < 0.5
        return list(TEXTS["two_operands" if two else "three_operands"])

    def _numbers(self, rng: random.Random, formula: str) -> dict[str, int]:
        largest = 999 if self.difficulty == "normal" and "*" not in formula else 99
        return {slot: rng.randint(12, largest) for slot in "abc"}


def evaluate(formula: str, numbers: dict[str, int]) -> int:
    """The value of one of this task's formulas, such as "{a} * {b} - {c}"."""
    return int(eval(formula.format(**numbers), {"__builtins__": {}}))
