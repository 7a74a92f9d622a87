"""The solution's side of a test: makes the referee's calls one by one, and answers in plain data.

Sent into the sandbox as text. A call is [what, arguments, named arguments]; `what` is {"name"} of the solution,
{"ref"}, an object that an earlier answer named so, or {"do"}, an operation of DOING. An answer is {"value"} or
{"raised", "text"}, and where they apply "args", arguments as the call left them, and "printed".
"""

import contextlib
import io
import itertools
import operator
from collections.abc import Callable
from typing import Any

from agentrl.rewards.code.plain import ALL_READERS, decode, encode, standard

BINARY = "eq ne lt le gt ge add sub mul truediv floordiv mod pow and_ or_ xor matmul contains getitem delitem"
CHUNK = 1024
"""Items taken from an iterator at a time."""
DOING: dict[str, Callable[..., Any]] = {name: getattr(operator, name) for name in [*BINARY.split(), "setitem", "neg"]}
DOING |= {"len": len, "str": str, "repr": repr, "int": int, "float": float, "bool": bool, "iter": iter, "abs": abs}
DOING |= {"getattr": getattr, "setattr": setattr, "value": lambda value: value}
DOING["take"] = lambda items, most=CHUNK: list(itertools.islice(items, most))
MUTABLE = ("list", "dict", "set", "array")
PRINTED = 1 << 16


class Callee:
    """Keeps results of calls that have no plain form."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.calls = 0
        self.objects: dict[str, Any] = {}
        self.references: dict[int, str] = {}
        """By id: one object has one reference."""
        objects = {"ref": lambda name, _: self.objects[name], "do": lambda name, _: DOING[name]}
        self.readers = {**ALL_READERS, **objects, "name": self.named}

    def answer(self, call: list[Any]) -> dict[str, Any]:
        """Make one call."""
        what, args, named = call
        printed, reply = io.StringIO(), dict[str, Any]()
        self.calls += 1
        try:
            given = [decode(arg, self.readers) for arg in args]
            keywords = {name: decode(arg, self.readers) for name, arg in named.items()}
            with contextlib.redirect_stdout(printed):
                reply["value"] = self.form(decode(what, self.readers)(*given, **keywords))
            reply["args"] = self.changed(args, given)
        except BaseException as error:
            reply = {"raised": [kind.__name__ for kind in type(error).__mro__], "text": _text(error)}
        return reply | {"printed": printed.getvalue()[:PRINTED]}

    def named(self, name: str, _: Any) -> Any:
        """What the solution calls so."""
        if name not in self.names:
            raise NameError(f"name {name!r} is not defined")
        return self.names[name]

    def form(self, value: Any) -> Any:
        """The plain form of a value, with references to objects that have none."""
        try:
            return encode(value, self.part)
        except Exception:
            return self.kept(value)

    def part(self, value: Any) -> Any:
        """The form of what is no built-in value."""
        try:
            return standard(value)
        except Exception:
            return self.kept(value)

    def kept(self, value: Any) -> Any:
        """A reference to an object."""
        reference = self.references.setdefault(id(value), f"{self.calls}.{len(self.objects)}")
        self.objects[reference] = value
        return {"ref": reference}

    def changed(self, forms: list[Any], values: list[Any]) -> list[Any]:
        """[[which, form]] of the lists, mappings and sets that the call has changed."""
        found = []
        for index, (before, value) in enumerate(zip(forms, values, strict=True)):
            if not isinstance(before, dict) or next(iter(before)) not in MUTABLE:
                continue
            with contextlib.suppress(Exception):
                after = encode(value, self.part)
                if after != before:
                    found.append([index, after])
        return found


def _text(error: BaseException) -> str:
    try:
        return "".join(str.__iter__(str(error)))[:1000]
    except BaseException:
        return ""
