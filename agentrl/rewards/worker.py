"""The process behind `ProcessManager`: loads one reward function, then answers calls until its input closes.

The function's output goes to standard error: standard output is for the answers.
"""

import asyncio
import inspect
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.plugins import load_attribute
from agentrl.rewards.function import SECTION
from agentrl.rewards.processes import LENGTH

Answer = tuple[str, Any]


def main() -> None:
    """Serve the parent on standard input and output. The first message is (path, name) of the function."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answer_to: Callable[[Any], Answer] = _guarded(_load)
    function: Callable[..., Any] | None = None
    while header := sys.stdin.buffer.read(LENGTH.size):
        message = pickle.loads(sys.stdin.buffer.read(*LENGTH.unpack(header)))
        outcome, value = answer_to(message)
        if function is None and outcome == "done":
            function, value = value, None
            answer_to = _guarded(_caller(function))
        body = _packed(outcome, value)
        answers.write(LENGTH.pack(len(body)) + body)
        answers.flush()


def _load(origin: tuple[str, str]) -> Callable[..., Any]:
    path, name = origin
    function: Callable[..., Any] = load_attribute(path, name, what=SECTION)
    return function


def _caller(function: Callable[..., Any]) -> Callable[[dict[str, Any]], Any]:
    def call(given: dict[str, Any]) -> Any:
        result = function(**given)
        return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result

    return call


async def _awaited(result: Any) -> Any:
    return await result


def _guarded(call: Callable[[Any], Any]) -> Callable[[Any], Answer]:
    """`call`, with its errors returned instead of raised: it is the user's code."""

    def answer(message: Any) -> Answer:
        try:
            return "done", call(message)
        except UserError as error:
            return "refused", str(error)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return "failed", f"{traceback.format_exception_only(error)[-1].strip()} ({where.filename}:{where.lineno})"

    return answer


def _packed(outcome: str, value: Any) -> bytes:
    try:
        return pickle.dumps((outcome, value))
    except Exception as error:  # the value cannot be pickled
        return pickle.dumps(("failed", f"its result cannot be sent to another process: {error}"))


if __name__ == "__main__":
    main()
