"""Demonstrations with deliberate mistakes.

A warm-up on faultless demonstrations would leave reinforcement learning little to do on a task this easy. So each
demonstration shows the format faithfully (call, result, answer), while each of three slips happens by chance:
operator (another of + - *), operand (a digit changed, or a subtraction turned round), copy (the answer stated is not
the tool's result). With chance p each, about (1 - p)^3 of the demonstrations are right. The tool's results are always
true to the expression that was sent.
"""

import random
import re
from dataclasses import dataclass

from agentrl.data.tasks.base import Message, tool_answer, tool_call

SLIPS = ("operator", "operand", "copy")
OPERATORS = "+-*"


def evaluate(expression: str) -> int:
    """The value of an expression of whole numbers, + - * and brackets. Only for expressions made here."""
    return int(eval(expression, {"__builtins__": {}}))


@dataclass(frozen=True)
class Slips:
    """Which slips happen, each with `chance`, and how often a wrong answer gets a second, right attempt."""

    kinds: tuple[str, ...]
    chance: float
    retries: float

    def conversation(self, question: str, expression: str, objection: str, rng: random.Random) -> list[Message]:
        """A user's question and one or two attempts at it; `objection` is what the checker says to a wrong one."""
        truth = str(evaluate(expression))
        sent, stated = self._attempt(expression, rng)
        messages: list[Message] = [{"role": "user", "content": question}, *_turns(sent, stated, number=0)]
        if stated != truth and rng.random() < self.retries:
            messages.append({"role": "user", "content": objection})
            messages += _turns(expression, truth, number=1)
        return messages

    def _attempt(self, expression: str, rng: random.Random) -> tuple[str, str]:
        if self._happens("operator", rng):
            expression = _other_operator(expression, rng)
        if self._happens("operand", rng):
            expression = _other_operand(expression, rng)
        result = str(evaluate(expression))
        return expression, _miscopied(result, expression, rng) if self._happens("copy", rng) else result

    def _happens(self, kind: str, rng: random.Random) -> bool:
        return kind in self.kinds and rng.random() < self.chance


def _turns(expression: str, stated: str, number: int) -> list[Message]:
    return [
        tool_call("calculator", {"expression": expression}, number),
        tool_answer("calculator", str(evaluate(expression)), number),
        {"role": "assistant", "content": f"The answer is {stated}."},
    ]


def _other_operator(expression: str, rng: random.Random) -> str:
    spot = rng.choice([m.start() for m in re.finditer(r"[-+*]", expression)])
    operator = rng.choice([o for o in OPERATORS if o != expression[spot]])
    return expression[:spot] + operator + expression[spot + 1 :]


def _other_operand(expression: str, rng: random.Random) -> str:
    turned = re.fullmatch(r"(\d+) - (\d+)", expression)
    if turned and rng.random() < 0.5:
        return f"{turned[2]} - {turned[1]}"
    number = rng.choice(list(re.finditer(r"\d+", expression)))
    return expression[: number.start()] + _other_digit(number[0], rng) + expression[number.end() :]


def _miscopied(result: str, expression: str, rng: random.Random) -> str:
    numbers = [n for n in re.findall(r"\d+", expression) if n != result]
    return rng.choice(numbers) if numbers and rng.random() < 0.5 else _other_digit(result, rng)


def _other_digit(number: str, rng: random.Random) -> str:
    """The number with one digit changed; the first digit never becomes 0, which Python could not read."""
    spot = rng.choice([i for i, character in enumerate(number) if character.isdigit()])
    digit = rng.choice([d for d in "123456789" if d != number[spot]])
    return number[:spot] + digit + number[spot + 1 :]
