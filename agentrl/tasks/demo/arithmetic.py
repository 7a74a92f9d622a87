"""Short word problems whose numbers are too large for a small model's head: it needs the calculator.

The model calls `calculator(expression)`, reads the result, and states it: "The answer is 2146." A checker then says
whether that is right, and the model may try again.

A warm-up on faultless demonstrations would leave reinforcement learning little to do on a task this easy. So each
demonstration shows the format faithfully (call, result, answer), while each of three slips happens by chance:
operator (another of + - *), operand (a digit changed, or a subtraction turned round), copy (the answer stated is not
the tool's result), parrot (the answer stated is a number out of the question). With chance p each, about (1 - p)^k of
the demonstrations with k kinds of slips are right at the first attempt.
"""

import random
import re
from typing import ClassVar

from agentrl.core.errors import UserError
from agentrl.core.foreign import read_beside
from agentrl.core.points import task
from agentrl.tasks.demo.base import Option, Problem, Script, Task, call, say

TEXTS = read_beside(__file__, "arithmetic.yaml")
"""Names, items, and pairs of a question and the expression that solves it, by their slots."""
SLIPS = ("operator", "operand", "copy", "parrot")


@task("arithmetic")
class Arithmetic(Task):
    """Word problems over + - * for the calculator tool."""

    HELP = "short word problems over + - *, solved with the calculator tool"
    OPTIONS: ClassVar[dict[str, Option]] = {
        "difficulty": Option(
            "tiny: bare sums of two 2-digit numbers; easy: word problems over two 2-digit numbers; normal: two or "
            "three numbers, up to 3 digits",
            default="normal",
            choices=("tiny", "easy", "normal"),
        ),
        "sloppiness": Option(
            "demonstrations: chance of each slip; a warm-up on them teaches the format and only part of the skill",
            default=0.3,
            type=float,
            metavar="P",
        ),
        "slips": Option(
            "demonstrations: the slips to make, joined by commas: operator (a wrong one), operand (a wrong one), "
            "copy (the result is miscopied), parrot (a number of the question is stated instead of the result)",
            default="operator,operand,copy",
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
        self.slips = slips.split(",") if slips else []
        if unknown := set(self.slips) - set(SLIPS):
            raise UserError(f"--slips {', '.join(sorted(unknown))}: choose from {', '.join(SLIPS)}")
        if not (0 <= sloppiness <= 1 and 0 <= retries <= 1):
            raise UserError("--sloppiness and --retries are chances: between 0 and 1")
        self.difficulty, self.chance, self.retries = difficulty, sloppiness, retries

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
        """One attempt with slips by chance, or two where the checker objects to the first."""
        sent = self._sent(problem.solution, rng)
        result = yield call("calculator", 0, expression=sent)
        stated = _miscopied(result, sent, rng) if self._happens("copy", rng) else result
        if self._happens("parrot", rng):
            stated = rng.choice(re.findall(r"\d+", problem.solution))
        yield say(f"The answer is {stated}.")
        if stated != problem.ground_truth and rng.random() < self.retries:
            result = yield call("calculator", 1, expression=problem.solution)
            yield say(f"The answer is {result}.")

    def _sent(self, expression: str, rng: random.Random) -> str:
        if self._happens("operator", rng):
            expression = _other_operator(expression, rng)
        if self._happens("operand", rng):
            expression = _other_operand(expression, rng)
        return expression

    def _happens(self, kind: str, rng: random.Random) -> bool:
        return kind in self.slips and rng.random() < self.chance

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


def _other_operator(expression: str, rng: random.Random) -> str:
    spot = rng.choice([match.start() for match in re.finditer(r"[-+*]", expression)])
    operator = rng.choice([other for other in "+-*" if other != expression[spot]])
    return expression[:spot] + operator + expression[spot + 1 :]


def _other_operand(expression: str, rng: random.Random) -> str:
    turned = re.fullmatch(r"(\d+) - (\d+)", expression)
    if turned and rng.random() < 0.5:
        return f"{turned[2]} - {turned[1]}"
    number = rng.choice(list(re.finditer(r"\d+", expression)))
    return expression[: number.start()] + _other_digit(number[0], rng) + expression[number.end() :]


def _miscopied(result: str, expression: str, rng: random.Random) -> str:
    numbers = [number for number in re.findall(r"\d+", expression) if number != result]
    return rng.choice(numbers) if numbers and rng.random() < 0.5 else _other_digit(result, rng)


def _other_digit(number: str, rng: random.Random) -> str:
    """The number with one digit changed; never to 0, so that none begins with it."""
    spot = rng.choice([i for i, character in enumerate(number) if character.isdigit()])
    digit = rng.choice([d for d in "123456789" if d != number[spot]])
    return number[:spot] + digit + number[spot + 1 :]
