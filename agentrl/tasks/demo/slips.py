"""Arithmetic demonstrations with deliberate mistakes.

A warm-up on faultless demonstrations would leave reinforcement learning little to do on a task this easy. So each
demonstration shows the format faithfully (call, result, answer), while each of three slips happens by chance:
operator (another of + - *), operand (a digit changed, or a subtraction turned round), copy (the answer stated is not
the tool's result), parrot (the answer stated is a number out of the question). With chance p each, about (1 - p)^k of
the demonstrations with k kinds of slips are right at the first attempt.
"""

import random
import re
from dataclasses import dataclass

from agentrl.tasks.demo.base import Script, call, say

SLIPS = ("operator", "operand", "copy", "parrot")
OPERATORS = "+-*"


@dataclass(frozen=True)
class Slips:
    """Kinds of slips, each with `chance`, and the share of wrong answers that get a second, right attempt."""

    kinds: tuple[str, ...]
    chance: float
    retries: float

    def script(self, expression: str, truth: str, rng: random.Random) -> Script:
        """One attempt at the sum `expression`, or two where the checker objects to the first."""
        sent = self._sent(expression, rng)
        result = yield call("calculator", 0, expression=sent)
        stated = _miscopied(result, sent, rng) if self._happens("copy", rng) else result
        if self._happens("parrot", rng):
            stated = rng.choice(re.findall(r"\d+", expression))
        yield say(f"The answer is {stated}.")
        if stated != truth and rng.random() < self.retries:
            result = yield call("calculator", 1, expression=expression)
            yield say(f"The answer is {result}.")

    def _sent(self, expression: str, rng: random.Random) -> str:
        if self._happens("operator", rng):
            expression = _other_operator(expression, rng)
        if self._happens("operand", rng):
            expression = _other_operand(expression, rng)
        return expression

    def _happens(self, kind: str, rng: random.Random) -> bool:
        return kind in self.kinds and rng.random() < self.chance


def _other_operator(expression: str, rng: random.Random) -> str:
    spot = rng.choice([match.start() for match in re.finditer(r"[-+*]", expression)])
    operator = rng.choice([other for other in OPERATORS if other != expression[spot]])
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
