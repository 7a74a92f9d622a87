"""Runs a test script in a sandbox where the solution never runs; this file is sent there as text.

The solution's names are remote objects: their calls are answered with the results of the same calls in the solution's
own sandbox. A call without a result yet returns an unknown value, and the run continues as a guess, to find more calls
that can be sent together; errors in a guess are ignored, and it decides nothing. The reply is {"state", "sure",
"calls"}.

Invariants: values from the solution are plain data, or references on which no operator acts, unless the test itself
made the object by calling a class; a verdict comes from a run in which every result belongs to exactly these calls in
exactly this order.
"""

import __future__

import ast
import builtins
import importlib
import json
import os
import random
import signal
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from agentrl.rewards.code.plain import ALL_READERS, STANDARD, Opaque, decode, encode, is_array, receive, send, standard
from agentrl.rewards.code.remote_objects import UNKNOWN, Named, Remote, Unknown
from agentrl.rewards.code.runners import Runners, clean

MOST_CALLS = 20_000
MOST_GUESSES = 5_000
REPEATS = 8
"""Equal calls without an answer, after which a guess stops."""
GUESSING_SECONDS = 0.5
PLAIN = (type(None), bool, int, float, str, bytes, complex)
SWALLOWED = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Loops take these for an end; a solution may not end a test's loop."""


class Pending(BaseException):
    """An unknown value cannot be sent; the guess continues after this statement."""


class Stop(BaseException):
    """The guess ends here."""


class Unsendable(BaseException):
    """The test passes something that has no plain form, such as a function."""


class Referee:
    """One run of a script."""

    def __init__(self, known: list[Any], exceptions: dict[str, type[BaseException]]) -> None:
        self.known = [(_key(call), answer) for call, answer in known]
        self.exceptions = exceptions
        self.readers = {**ALL_READERS, "ref": self.remote}
        self.calls: list[Any] = []
        self.exact = True
        """Every call so far is the one that was answered at its place."""
        self.guessing = False
        self.absorbed = 0
        self.reached = 0
        self.raised: BaseException | None = None
        """The last exception of the solution."""
        self.unsendable = False
        """Remembered, since a test runner catches every exception."""
        self.waiting: dict[str, int] = {}
        self.made: set[str] = set()
        """Objects that the test made by calling a class."""
        self.elsewhere: dict[str, list[Any]] = {}
        for key, answer in self.known:
            self.elsewhere.setdefault(key, []).append(answer)

    @property
    def sure(self) -> bool:
        return self.exact and not self.guessing

    def ask(self, what: Any, args: tuple[Any, ...] = (), named: dict[str, Any] | None = None) -> Any:
        """The result of a call of the solution, or UNKNOWN. Raises what it raised."""
        call = [what, [self.form(arg) for arg in args], {name: self.form(arg) for name, arg in (named or {}).items()}]
        if len(self.calls) >= MOST_CALLS:
            raise Stop
        number, key = len(self.calls), _key(call)
        self.calls.append(call)
        answer = self.answer(number, key)
        if answer is None:
            return self.guess(key)
        return self.outcome(what, args, answer)

    def answer(self, number: int, key: str) -> Any:
        """The answer of this very call; else, as a guess, of an equal one; else None."""
        self.exact = self.exact and number < len(self.known) and self.known[number][0] == key
        if self.exact:
            return self.known[number][1]
        found = self.elsewhere.get(key)
        if not found or '"ref"' in json.dumps([key, found[0]]):
            return None
        return found.pop(0) if len(found) > 1 else found[0]

    def guess(self, key: str) -> Unknown:
        """Go on without an answer."""
        if not self.guessing:
            self.guessing = True
            signal.signal(signal.SIGVTALRM, _stop)
            signal.setitimer(signal.ITIMER_VIRTUAL, GUESSING_SECONDS)
        self.waiting[key] = self.waiting.get(key, 0) + 1
        if self.waiting[key] > REPEATS:
            raise Stop
        return UNKNOWN

    def absorb(self) -> None:
        """Handle an exception in a guess."""
        self.absorbed += 1
        if not self.guessing or isinstance(sys.exc_info()[1], Stop) or self.absorbed > MOST_GUESSES:
            raise

    def reach(self) -> None:
        """An assert is about to be tested."""
        self.reached += 1

    def outcome(self, what: Any, args: tuple[Any, ...], answer: Any) -> Any:
        """The value of an answer, for the caller."""
        sys.stdout.write(answer.get("printed", ""))
        if "raised" in answer:
            self.raised = self.exception(answer["raised"], str(answer.get("text", "")))
            raise self.raised
        for index, form in answer.get("args", ()):
            _replace(args[index], decode(form, self.readers))
        made = isinstance(what, dict) and str(what.get("name", "")).lstrip("_")[:1].isupper()
        value = answer["value"]
        if made and what["name"] != "Solution" and isinstance(value, dict) and "ref" in value:
            self.made.add(str(value["ref"]))
        return decode(value, self.readers)

    def remote(self, reference: Any, _: Any) -> Remote:
        """An object that the solution keeps. Raises ValueError."""
        if not isinstance(reference, str):
            raise ValueError("a reference is text")
        return Remote(self.ask, {"ref": reference}, reference in self.made)

    def exception(self, kinds: list[str], text: str) -> BaseException:
        """The nearest class that the script can know."""
        for kind in map(str, kinds):
            found = self.exceptions.get(kind) or getattr(builtins, kind, None)
            if isinstance(found, type) and issubclass(found, BaseException) and not issubclass(found, SWALLOWED):
                try:
                    return found(text)
                except TypeError:
                    continue
        return RuntimeError(text)

    def form(self, value: Any) -> Any:
        """The plain form of an argument."""
        try:
            _check(value)
            return encode(value, _other)
        except (Opaque, RecursionError):
            if self.guessing:
                raise Pending from None
            self.unsendable = True
            raise Unsendable(type(value).__name__) from None


def _other(value: Any) -> Any:
    return vars(value)["_form"] if isinstance(value, Remote) else standard(value)


def _check(value: Any) -> None:
    """Raises Opaque where the type, which the solution would see, is lost on the way."""
    if type(value) in (list, tuple, set, frozenset):
        for item in value:
            _check(item)
    elif type(value) is dict:
        for item in [*value.keys(), *value.values()]:
            _check(item)
    elif not (isinstance(value, Remote) or type(value) in PLAIN or type(value) in STANDARD or is_array(value)):
        raise Opaque(type(value).__name__)


class Guard(ast.NodeTransformer):
    """Puts a guard around every statement, and a mark before every assert."""

    def visit(self, node: ast.AST) -> Any:
        node = self.generic_visit(node)
        bound = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Global)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            return None
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return node  # a docstring may hold tests
        if not isinstance(node, ast.stmt) or isinstance(node, (*bound, ast.Nonlocal)):
            return node
        body = [_call("reach"), node] if isinstance(node, ast.Assert) else [node]
        handler = ast.ExceptHandler(ast.Name("BaseException", ast.Load()), None, [_call("absorb")])
        return ast.copy_location(ast.Try(body, [handler], [], []), node)


def _call(method: str) -> ast.stmt:
    return ast.Expr(ast.Call(ast.Attribute(ast.Name("__referee__", ast.Load()), method, ast.Load()), [], []))


def _stop(*_: Any) -> None:
    raise Stop


def _key(call: Any) -> str:
    return json.dumps(_sorted(call))


def _sorted(form: Any) -> Any:
    """A form that is equal for equal sets, in any order."""
    if isinstance(form, list):
        return [_sorted(part) for part in form]
    if not isinstance(form, dict):
        return form
    parts = {kind: _sorted(content) for kind, content in form.items()}
    return {kind: sorted(content, key=json.dumps) if "set" in kind else content for kind, content in parts.items()}


def _replace(old: Any, new: Any) -> None:
    """Make a container equal to what the solution left of it."""
    if type(old) is not type(new) or not (isinstance(old, list | dict | set) or is_array(old)):
        raise ValueError("arguments keep their types")
    if is_array(old):
        old[...] = new
        return
    old.clear()
    (old.extend if isinstance(old, list) else old.update)(new)


def stand_in(name: str, referee: Referee) -> Any:
    """The object for a name that the script does not define."""
    module = {"np": "numpy"}.get(name, name)
    if module in sys.stdlib_module_names or module == "numpy":
        return importlib.import_module(module)
    if name in referee.exceptions:
        return referee.exceptions[name]
    return Named(referee.ask, name)


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """Run the script once."""
    kinds: dict[str, type[BaseException]] = {name: type(name, (Exception,), {}) for name in request["exceptions"]}
    referee = Referee(request["known"], kinds)
    module = types.ModuleType("__main__")
    vars(module).update({name: stand_in(name, referee) for name in request["names"]})
    vars(module).update(__referee__=referee, BaseException=BaseException)
    sys.modules["__main__"] = module
    runners = Runners(request["script"], module, [*vars(module)])
    os._exit = sys.exit  # type: ignore[assignment]  # a test's exit is a verdict, not the end of this program
    tree = ast.fix_missing_locations(Guard().visit(ast.parse(request["script"])))
    code = compile(tree, "tests.py", "exec", flags=__future__.annotations.compiler_flag)
    state = _run(lambda: exec(code, vars(module)), referee)
    if state == "passed" and not referee.calls:
        state = _run(runners.run_defined, referee)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    checked = referee.reached or referee.raised or not request["asserts"]
    if state == "passed" and not (referee.calls and checked and runners.passed):
        state = "failed"
    return {"state": "unsendable" if referee.unsendable else state, "sure": referee.sure, "calls": referee.calls}


def _run(work: Callable[[], object], referee: Referee) -> str:
    """How a script ends."""
    try:
        work()
    except AssertionError:
        return "failed"
    except SystemExit as stop:
        if stop is not referee.raised:
            return "passed" if clean(stop) else "failed"
        traceback.print_exc()
        return "error"
    except BaseException:
        traceback.print_exc()
        return "error"
    return "passed"


def main(leave: Any = os._exit) -> None:
    """Judge what standard input asks for; the script's own prints go to standard error."""
    requests, channel = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    request = json.loads(receive(requests, int(receive(requests, 16))))
    random.seed(0)
    if "numpy" in request["script"]:
        importlib.import_module("numpy").random.seed(0)
    reply = judge(request)
    send(channel, reply)
    sys.stderr.flush()
    leave(0)


if __name__ == "__main__":
    main()
