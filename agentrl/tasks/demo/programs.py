"""Small functions to write: the model tries drafts with the code interpreter and hands in a block of code.

The question leaves open whether the last number counts; its example tells, by way of a draft that is run on it. The
reward runs what was handed in on hidden inputs; neither they nor their outputs ever come near the prompt or the tools.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from agentrl.core.errors import UserError
from agentrl.core.points import task
from agentrl.tasks.demo.base import Option, Problem, Script, Task, call, say


@dataclass(frozen=True)
class Step:
    """Something done to `{x}`, and perhaps to the number `{n}`: in words, in Python, and as a function."""

    words: str
    code: str
    value: Callable[..., int]


NUMBERS = (
    Step("the count of {x}", "len({x})", len),
    Step("the sum of {x}", "sum({x})", sum),
    Step("twice the sum of {x}", "2 * sum({x})", lambda xs: 2 * sum(xs)),
    Step("the sum of the squares of {x}", "sum(x * x for x in {x})", lambda xs: sum(x * x for x in xs)),
)
THEN = (
    Step("{x}, plus {n}", "{x} + {n}", lambda x, n: x + n),
    Step("{x}, minus {n}", "{x} - {n}", lambda x, n: x - n),
    Step("{x}, times {n}", "{x} * {n}", lambda x, n: x * n),
    Step("{n} minus {x}", "{n} - {x}", lambda x, n: n - x),
)
ENDS = ("b", "b + 1")
"""End of `range`: the last number is left out, as Python's habit is, or it counts."""
COUNTS = 0.75
"""Share of the questions in which it counts, so that the draft that comes to mind first is mostly wrong."""


@dataclass(frozen=True)
class Formula:
    """A function of the numbers from a to b, in one reading of "to"."""

    numbers: Step
    then: Step
    n: int
    end: str

    @property
    def words(self) -> str:
        """Its description, equal for every reading."""
        return self.then.words.format(x=self.numbers.words.format(x="the numbers from a to b"), n=self.n)

    @property
    def code(self) -> str:
        """The function, as a model should write it."""
        numbers = self.numbers.code.format(x=f"range(a, {self.end})")
        return f"def f(a, b):\n    return {self.then.code.format(x=numbers, n=self.n)}\n"

    def __call__(self, a: int, b: int) -> int:
        return self.then.value(self.numbers.value(range(a, b + ENDS.index(self.end))), self.n)


@task("programs")
class Programs(Task):
    """Functions of two numbers for the code interpreter."""

    HELP = "small Python functions, tried with the code interpreter and scored by hidden test cases"
    OPTIONS: ClassVar[dict[str, Option]] = {
        "cases": Option("hidden test cases a row", default=6, type=int, metavar="N"),
        "corrections": Option(
            "demonstrations: how often a draft that fails on the example is followed by another, and not handed in",
            default=0.25,
            type=float,
            metavar="P",
        ),
    }
    DATA_SOURCE = "agentrl/programs"
    ABILITY = "code"
    TOOLS = "tools/code_interpreter.yaml"
    REWARD = "agentrl.rewards.code:compute_score"

    def __init__(self, *, cases: int, corrections: float) -> None:
        if not 1 <= cases <= len(ARGUMENTS) - 1:
            raise UserError(f"--cases {cases}: between 1 and {len(ARGUMENTS) - 1}")
        if not 0 <= corrections <= 1:
            raise UserError(f"--corrections {corrections:g} is a share: between 0 and 1")
        self.cases, self.corrections = cases, corrections

    def draw(self, rng: random.Random) -> Problem:
        """A formula in words, with one example; the test cases are the ground truth."""
        parts = rng.choice(NUMBERS), rng.choice(THEN), rng.randint(2, 9)
        formula = Formula(*parts, ENDS[rng.random() < COUNTS])
        (a, b), *hidden = rng.sample(ARGUMENTS, self.cases + 1)
        tests = {
            "fn_name": "f",
            "inputs": [f"{x}\n{y}" for x, y in hidden],
            "outputs": [str(formula(x, y)) for x, y in hidden],
        }
        example = f"f({a}, {b}) == {formula(a, b)}"
        question = f"Write f(a, b): {formula.words}. {example}"
        extra_info = {"tool_selection": ["code_interpreter"]}
        drafts = [Formula(*parts, end).code for end in ENDS]
        return Problem(question, json.dumps(tests), extra_info, solution=(drafts, f"print({example})"))

    def demonstrate(self, problem: Problem, rng: random.Random) -> Script:
        """One reading after the other is tried, until one passes on the example or patience ends."""
        drafts, check = problem.solution
        for number, draft in enumerate(drafts):
            shown = yield call("code_interpreter", number, code=draft + check)
            if shown.strip() == "True" or rng.random() >= self.corrections:
                break
        yield say(f"```python\n{draft}```")


ARGUMENTS = [(a, b) for a in range(1, 10) for b in range(a + 1, a + 9)]
"""Pairs on which the two readings never agree."""
