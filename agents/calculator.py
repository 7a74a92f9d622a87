"""An agent in a separate process: it solves the demo's word problems with a calculator, through the `openai` client.

Shows: a plain script, which knows nothing of agentrl. It runs the tool, plays the user who objects to a wrong answer,
and keeps its own limits. It gets the row as JSON in its first argument.
"""

import ast
import json
import operator
import re
import sys
from collections.abc import Callable
from typing import Any

import openai

TURNS = 4
HINTS = 1
CALCULATOR: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Work out an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string",
                    "description": "Numbers, + - * / // % ** and parentheses, for example (2 + 3) * 4",
                }
            },
            "required": ["expression"],
        },
    },
}
OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, exponent: base ** min(exponent, 64),  # 9**9**9 would take minutes
}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def main() -> None:
    """Hold one conversation; it ends with a right answer, or at a limit."""
    row = json.loads(sys.argv[1])
    user = row["extra_info"]["interaction_kwargs"]
    client = openai.OpenAI()
    messages: list[Any] = row["prompt"]
    hints = 0
    for _ in range(TURNS):
        try:
            reply = client.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR]).choices[0]
        except openai.BadRequestError as error:  # the conversation has become too long
            print(error)
            return
        messages.append(reply.message)
        if reply.message.tool_calls:
            messages += [answered(call) for call in reply.message.tool_calls]
            continue
        objection = objected(reply.message.content or "", user)
        if objection is None or hints == HINTS or reply.finish_reason == "length":
            break
        hints += 1
        messages.append({"role": "user", "content": objection})
    print(reply.message.content)


def answered(call: Any) -> dict[str, str]:
    """The tool's message."""
    try:
        text = calculate(json.loads(call.function.arguments)["expression"])
    except (ValueError, KeyError, TypeError, SyntaxError, ArithmeticError, RecursionError) as error:
        text = f"Error: {error}"
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def objected(answer: str, user: dict[str, str]) -> str | None:
    """The user's reply to a wrong answer; None to a right one."""
    numbers = NUMBER.findall(answer.replace(",", ""))
    if not numbers:
        return f"There is no answer in what you wrote. {user['hint']}"
    return None if float(numbers[-1]) == float(user["ground_truth"]) else f"{numbers[-1]} is wrong. {user['hint']}"


def calculate(expression: str) -> str:
    """The value of an expression. Raises ValueError for anything but arithmetic."""
    result = value(ast.parse(expression.replace(",", "").strip(), mode="eval").body)
    return str(result) if isinstance(result, int) else f"{result:.10g}"


def value(node: ast.expr) -> int | float:
    """The value of a part of it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        result: int | float = OPERATIONS[type(node.op)](value(node.left), value(node.right))
        return result
    raise ValueError(f"{ast.unparse(node)!r} is not allowed: use numbers, + - * / // % ** and parentheses.")


if __name__ == "__main__":
    main()
