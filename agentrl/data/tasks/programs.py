"""Small functions to write: the model tries a draft with the code interpreter and hands in a block of code.

The question has one example. The reward runs what was handed in on hidden inputs; neither they nor their outputs ever
come near the prompt or the tools.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from agentrl.data.stage import Script
from agentrl.data.tasks.base import Option, Problem, Task, call, say
from agentrl.errors import UserError

LARGEST = 20
"""Of the arguments."""


@dataclass(frozen=True)
class Step:
    """An operation on two numbers: in words, in Python, and done. `{x}` and `{y}` are what it works on."""

    words: str
    code: str
    value: Callable[[int, int], int]


FIRST = (
    Step("the sum of {x} and {y}", "{x} + {y}", lambda x, y: x + y),
    Step("{x} minus {y}", "{x} - {y}", lambda x, y: x - y),
    Step("the product of {x} and {y}", "{x} * {y}", lambda x, y: x * y),
    Step("the larger of {x} and {y}", "max({x}, {y})", max),
    Step("the smaller of {x} and {y}", "min({x}, {y})", min),
    Step("the distance of {x} and {y}", "abs({x} - {y})", lambda x, y: abs(x - y)),
    Step("{x} squared plus {y}", "{x} * {x} + {y}", lambda x, y: x * x + y),
    Step("the remainder of {x} by {y}", "{x} % {y}", lambda x, y: x % y),
)
THEN = (
    Step("{x}, plus {y}", "({x}) + {y}", lambda x, y: x + y),
    Step("{x}, minus {y}", "({x}) - {y}", lambda x, y: x - y),
    Step("{x}, times {y}", "({x}) * {y}", lambda x, y: x * y),
    Step("{y} minus {x}", "{y} - ({x})", lambda x, y: y - x),
)


@dataclass(frozen=True)
class Formula:
    """First one step on a and b, then another on its result and a number."""

    first: Step
    then: Step
    number: int

    @property
    def words(self) -> str:
        return self.then.words.format(x=self.first.words.format(x="a", y="b"), y=self.number)

    @property
    def code(self) -> str:
        """The function, as a model should write it."""
        result = self.then.code.format(x=self.first.code.format(x="a", y="b"), y=self.number)
        return f"def f(a, b):\n    return {result}\n"

    def __call__(self, a: int, b: int) -> int:
        return self.then.value(self.first.value(a, b), self.number)

    def mistaken(self, rng: random.Random) -> "Formula":
        """The same with one of its steps taken for another."""
        if rng.random() < 0.5:
            return Formula(rng.choice([step for step in FIRST if step != self.first]), self.then, self.number)
        return Formula(self.first, rng.choice([step for step in THEN if step != self.then]), self.number)


class Programs(Task):
    """Functions of two numbers for the code interpreter."""

    HELP = "small Python functions, tried with the code interpreter and scored by hidden test cases"
    OPTIONS: ClassVar[dict[str, Option]] = {
        "cases": Option("hidden test cases a row", default=6, type=int, metavar="N"),
        "mistakes": Option("demonstrations: share whose draft is wrong", default=0.5, type=float, metavar="P"),
        "corrections": Option(
            "demonstrations: share of the wrong drafts that are put right when the example does not come out",
            default=0.25,
            type=float,
            metavar="P",
        ),
    }
    DATA_SOURCE = "agentrl/programs"
    ABILITY = "code"
    TOOLS = "tools/code_interpreter.yaml"
    REWARD = "agentrl.rewards.code:compute_score"

    def __init__(self, *, cases: int, mistakes: float, corrections: float) -> None:
        if cases < 1:
            raise UserError(f"--cases {cases}: at least 1")
        if not (0 <= mistakes <= 1 and 0 <= corrections <= 1):
            raise UserError("--mistakes and --corrections are shares: between 0 and 1")
        self.cases, self.mistakes, self.corrections = cases, mistakes, corrections

    def draw(self, rng: random.Random) -> Problem:
        """A formula in words, with one example; the test cases are the ground truth."""
        formula = Formula(rng.choice(FIRST), rng.choice(THEN), rng.randint(2, 99))
        arguments = [(rng.randint(1, LARGEST), rng.randint(1, LARGEST)) for _ in range(self.cases + 1)]
        (a, b), *hidden = arguments
        tests = {
            "fn_name": "f",
            "inputs": [f"{x}\n{y}" for x, y in hidden],
            "outputs": [str(formula(x, y)) for x, y in hidden],
        }
        question = f"Write f(a, b): {formula.words}. f({a}, {b}) is {formula(a, b)}."
        extra_info = {"tool_selection": ["code_interpreter"]}
        return Problem(question, json.dumps(tests), extra_info, solution=(formula, f"print(f({a}, {b}))"))

    def demonstrate(self, problem: Problem, rng: random.Random) -> Script:
        """A draft is tried, perhaps put right, and handed in."""
        formula, example = problem.solution
        draft = formula.mistaken(rng) if rng.random() < self.mistakes else formula
        yield call("code_interpreter", 0, code=draft.code + example)
        if draft != formula and rng.random() < self.corrections:
            draft = formula
            yield call("code_interpreter", 1, code=draft.code + example)
        yield say(f"```python\n{draft.code}```")
