"""Runs a solution inside the sandbox and reports values, never verdicts; sent there as text, together with solution.py.

Standard input holds 16 digits, a JSON request of that many bytes, and then a token. The request is {"fn", "args"},
{"calls"} as the referee makes them, or {"script", "report"}: test code that hands values to the function of that name.
The reply goes to what was standard output, which the solution no longer has: its own prints go to standard error.

Nothing here is secret from a determined solution, as both share a process. So expected values never come here, and
the token, which proves that a script ran to its end, is read only there.
"""

import ast
import builtins
import json
import os
import sys
import traceback
import types
from typing import Any

from agentrl.rewards.code.callee import Callee
from agentrl.rewards.code.plain import encode, receive, send
from agentrl.rewards.code.runners import Runners, clean

# Names that solutions take for granted where only a function is asked for; builtins late, so that they are not hidden.
STARS = "string re datetime collections heapq bisect copy math random statistics itertools functools operator io"
MODULES = "json math random re string sys typing collections heapq bisect copy itertools functools operator"
PRELUDE = [f"from {name} import *" for name in STARS.split()]
PRELUDE += ["from builtins import *", "from typing import *", f"import {', '.join(MODULES.split())}"]


def form(value: Any) -> Any:
    """Its encoding, or {"opaque": type}."""
    try:
        return encode(value)
    except Exception:
        return {"opaque": type(value).__name__}


def reported(index: int, value: Any, other: tuple[Any, ...] = (), verdict: Any = None) -> list[Any]:
    """The report of check `index`: the value, and the other side where that is no literal either."""
    forms = [form(side) for side in (value, *other)]
    if len(forms) == 2 and all(isinstance(side, dict) and "opaque" in side for side in forms):
        forms = [bool(verdict(value, other[0]))]
    return [index, *forms]


def load(module: types.ModuleType, prelude: list[str]) -> None:
    """Run the solution as the main module; the prelude's names are behind its own, like built-in ones."""
    names: dict[str, Any] = {}
    for line in prelude:
        exec(line, names)
    # Where a test patches a built-in function, the solution shall see it.
    module.__dict__["__builtins__"] = vars(builtins) | names if names else builtins
    with open("solution.py", encoding="utf-8", errors="surrogateescape") as file:
        code = file.read()
    exec(compile(code, "solution.py", "exec"), module.__dict__)


def answer(request: dict[str, Any], names: dict[str, Any], requests: int) -> dict[str, Any]:
    """The reply to a request."""
    if "fn" in request:
        kind, _, name = request["fn"].rpartition(".")
        function = None if kind else names.get(name)
        if function is None:
            function = getattr(names["Solution"](), name)
        return {"value": form(function(*request["args"]))}
    if "calls" in request:
        callee = Callee(names)
        return {"answers": [callee.answer(call) for call in request["calls"]]}
    reports: list[list[Any]] = []
    names[request["report"]] = lambda *given: reports.append(reported(*given))
    run_script(request["script"], names)
    return {"reports": reports, "token": receive(requests, 1 << 10).decode()}


def does(statement: ast.stmt) -> bool:
    """Whether a statement does more than define something."""
    acts = isinstance(statement, ast.Expr | ast.Assert | ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Raise)
    return acts and not isinstance(getattr(statement, "value", None), ast.Constant)


def run_script(script: str, names: dict[str, Any]) -> None:
    """Run test code; raises where it, or a test runner that it uses, says that the solution is wrong."""
    runners = Runners(script, sys.modules["__main__"], [*names])
    os._exit = sys.exit  # type: ignore[assignment]
    try:
        exec(compile(script, "tests.py", "exec"), names)
        if not any(map(does, ast.parse(script).body)):
            runners.run_defined()
    except SystemExit as stop:
        frames = traceback.extract_tb(stop.__traceback__)
        if not clean(stop) or any(frame.filename == "solution.py" for frame in frames):
            raise
    if not runners.passed:
        raise AssertionError("a test runner saw a failure")


def main(leave: Any = os._exit) -> None:
    """Hide the pipes from the solution, run it, reply, and exit before its exit handlers run."""
    requests, channel = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    request = json.loads(receive(requests, int(receive(requests, 16))))
    module = types.ModuleType("__main__")
    module.__file__ = "solution.py"
    sys.modules["__main__"] = module
    sys.argv = ["solution.py"]
    failed = 1
    try:
        load(module, PRELUDE if "fn" in request else [])
        send(channel, answer(request, module.__dict__, requests))
        failed = 0
    except BaseException:
        traceback.print_exc()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        leave(failed)


if __name__ == "__main__":
    main()
