"""Code as verl scores it: by the rules of APPS, or with a sandbox server (reward.sandbox_fusion.url) by its own.

Only the comparisons are verl's; programs run in agentrl's sandbox, and asserts are judged outside of the solution.
`agentrl.rewards.code:compute_score` is the better judge: a program is not rewritten, a function may print.
"""

import ast
import json
from dataclasses import replace
from math import inf, isfinite
from typing import Any

from agentrl.core.foreign import read_json
from agentrl.core.sandbox import Sandbox
from agentrl.rewards.code import FAILURES, FIRST, OUTPUT_BYTES
from agentrl.rewards.code.cases import FENCE, extract_code, read_cases, text_of
from agentrl.rewards.code.grading import Function, Grader, Program, grade
from agentrl.rewards.code.trials import framed
from agentrl.rewards.code.values import MALFORMED, decode
from agentrl.rewards.code.verdict import Verdict

TIMEOUT, TOTAL = 10.0, 60.0
"""Seconds for a case, and for all."""
STARS = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json"
)
PRELUDE = "\n".join(
    [f"from {name} import *" for name in (*STARS.split(), "builtins", "typing")]
    + [f"import {name}" for name in STARS.split()]
)
"""What every solution can use without importing it."""
RELATIVE, ABSOLUTE = 1e-5, 1e-8
"""How far numbers may be apart."""


async def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, *, sandbox: Sandbox
) -> dict[str, float]:
    """Share of the first ten test cases that the program passes. Raises InfraError, UserError."""
    verdict = await judge(solution_str, ground_truth, sandbox, printed=bool(sandbox.url))
    if verdict is None:
        return {"score": 0.0, "no_code": 1.0} | dict.fromkeys(FAILURES, 0.0)
    return {"score": verdict.score, "no_code": 0.0} | {name: verdict.share(name) for name in FAILURES}


async def judge(
    solution: str,
    ground_truth: Any,
    sandbox: Sandbox,
    *,
    printed: bool,
    first: int | None = FIRST,
    timeout: float = TIMEOUT,
) -> Verdict | None:
    """The verdict on the code in a solution, None without any; `printed`: by the rules for a sandbox server.

    `first`: so many cases count (None: all), each for `timeout` seconds. Raises InfraError, UserError.
    """
    cases = read_cases(ground_truth)
    cases = cases if first is None else cases.first(first)
    code = extract_code(solution) if printed else last_block(solution)
    if code is None:
        return None
    limits = replace(sandbox.limits(timeout), output_bytes=OUTPUT_BYTES)
    program, function = (Program, PrintedFunction) if printed else (AppsProgram, AppsFunction)
    total = max(TOTAL, TOTAL * len(cases) / FIRST)
    graders: dict[str, type[Grader]] = {"program": program, "function": function}
    return await grade(sandbox.run, code, cases, language="python", limits=limits, total=total, **graders)


def last_block(solution: str) -> str:
    """The last block fenced as python; without one, everything before the first fence."""
    return solution.rpartition(f"{FENCE}python")[2].partition(FENCE)[0]


class AppsProgram(Program):
    """Runs as the body of a function, with the prelude's names; compared line by line and as numbers."""

    def __init__(self, code: str, cases: Any, language: str) -> None:
        super().__init__(as_function(code), cases, language)

    def passes(self, index: int, output: bytes) -> bool:
        return same_output(output.decode(errors="replace"), text_of(self.cases.outputs[index]))


class AppsFunction(Function):
    """A method of Solution where the code has that class, else a function; its value is compared as JSON."""

    def stdin(self, index: int) -> str:
        name = self.cases.fn_name
        wanted = f"Solution.{name}" if "class Solution" in self.code else name
        return framed({"fn": wanted, "args": keys_as_numbers(self.cases.arguments(index))})

    def passes(self, index: int, output: bytes) -> bool:
        try:
            return same_value(decode(read_json(output)["value"]), json.loads(self.cases.outputs[index]))
        except MALFORMED:
            return False


class PrintedFunction(Program):
    """A function whose value is printed after anything that the solution prints itself; compared as text."""

    def __init__(self, code: str, cases: Any, language: str) -> None:
        super().__init__(f"{PRELUDE}\n{code}\n{CALL}_agentrl_run({cases.fn_name!r})\n", cases, language)


CALL = """
def _agentrl_call(name):
    said = sys.stdin.read()
    args = [json.loads(line) for line in said.split("\\n")] if said.strip() else []
    target = globals()[name] if name in globals() else getattr(globals()["Solution"](), name)
    value = target(*args)
    print(json.dumps(value) if value is None or isinstance(value, (dict, list, tuple, bool)) else str(value))

def _agentrl_run(name):
    try:
        _agentrl_call(name)
    except Exception as error:
        print(repr(error), file=sys.stderr)

"""


def as_function(code: str) -> str:
    """The program as the body of a function, its first imports aside; ending by sys.exit is no failure."""
    body, started = [], False
    for line in unguarded(code).split("\n"):
        imports = line.startswith(("from ", "import "))
        if not started and not imports:
            body += ["stdin = sys.stdin", "stdout = sys.stdout", "def code():"]
            started = True
        body.append(f"\t{line}" if started else line)
    start = ["import builtins", "builtins.exit = builtins.quit = None", PRELUDE, "sys.setrecursionlimit(6 * 10**5)"]
    return "\n".join([*start, "__name__ = 'tmp_sol'", *body, "try:", "\tcode()", "except SystemExit:", "\tpass", ""])


def unguarded(code: str) -> str:
    """Without the `if __name__ == "__main__":` around the last statements."""
    try:
        *before, last = ast.parse(code).body
        if isinstance(last, ast.If) and ast.unparse(last.test) == "__name__ == '__main__'":
            return "\n".join(map(ast.unparse, [*before, *last.body]))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass  # the sandbox finds out what is wrong with it
    return code


def same_output(printed: str, expected: str) -> bool:
    """Whether a program's output is right: as text but for white space at its ends, line by line, or number by number.

    Blank lines do not count, nor does white space around the expected lines.
    """
    lines = printed.splitlines()
    if expected.strip() in ("\n".join(lines).strip(), "\n".join(line.strip() for line in lines).strip()):
        return True
    wanted = [line.strip() for line in expected.split("\n") if line]
    said = [line for line in lines if line]
    return said == wanted or _same_numbers(said, wanted)


def same_value(value: Any, expected: Any) -> bool:
    """Whether a function's value is the expected one, or the only element of it."""
    expected = expected_value(expected)
    first = expected[0] if isinstance(expected, list) and expected else None
    said = list(value) if isinstance(value, tuple) else value
    if said == expected or (first is not None and said == first):
        return True
    tuples = isinstance(said, list) and bool(said) and isinstance(said[0], tuple)
    return tuples and [list(item) for item in said] == first


def expected_value(value: Any) -> Any:
    """JSON has text for a mapping's keys: numbers where they all are."""
    if isinstance(value, dict):
        value = keys_as_numbers([value])
    return keys_as_numbers(value) if isinstance(value, list) else value


def keys_as_numbers(values: list[Any]) -> list[Any]:
    """A list that begins with a mapping as that mapping alone, its keys as numbers; another list, or keys, as it is."""
    if not values or not isinstance(values[0], dict):
        return values
    try:
        return [{int(key): value for key, value in values[0].items()}]
    except ValueError:
        return values


def _same_numbers(said: list[str], wanted: list[str]) -> bool:
    if len(said) != len(wanted) or all(line.isdigit() for line in (*said, *wanted)):
        return False
    try:
        pairs = [(float(one), float(other)) for one, other in zip(said, wanted, strict=True)]
    except ValueError:
        return False
    return all(_near(one, other) for one, other in pairs)


def _near(one: float, other: float) -> bool:
    return one == other or (isfinite(one) and abs(one - other) <= ABSOLUTE + RELATIVE * abs(other) < inf)
