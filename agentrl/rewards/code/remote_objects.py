"""Remote objects: they replace the solution's names and objects in a test script; sent to its sandbox as text.

Invariant: what a stand-in gives is plain data or another stand-in. Operators act on no object of the solution's, unless
the test made it by calling a class: else an object that claims to equal everything would.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from agentrl.rewards.code.callee import BINARY, CHUNK

Ask = Callable[..., Any]
"""(what, arguments, named arguments), as the callee takes them -> the result."""


class Remote:
    """An object in the solution's sandbox."""

    def __init__(self, ask: Ask, form: dict[str, str], made: bool = False) -> None:
        """`form`: by which the callee knows it. `made`: the test made it by calling a class."""
        vars(self).update(_ask=ask, _form=form, _made=made)

    def _do(self, name: str, *args: Any) -> Any:
        return vars(self)["_ask"]({"do": name}, (self, *args))

    def __call__(self, *args: Any, **named: Any) -> Any:
        return vars(self)["_ask"](vars(self)["_form"], args, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._do("getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._do("setattr", name, value)

    def __iter__(self) -> Iterator[Any]:
        items = self._do("iter")
        while True:
            taken = items._do("take")
            yield from taken
            if not isinstance(taken, list) or len(taken) < CHUNK:
                return

    def __next__(self) -> Any:
        for item in self._do("take", 1):
            return item
        raise StopIteration

    def __getitem__(self, key: Any) -> Any:
        return self._do("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._do("setitem", key, value)

    __hash__ = object.__hash__


def _conversion(kind: type, name: str) -> Any:
    return lambda self: kind(self._do(name))


def _operator(name: str) -> Any:
    def act(self: Remote, other: Any) -> Any:
        mine, others = vars(self)["_made"], isinstance(other, Remote) and vars(other)["_made"]
        return self._do(name, other) if mine or others else NotImplemented

    return act


CONVERSIONS: dict[str, type] = {"len": int, "bool": bool, "str": str, "repr": str, "int": int, "float": float}
for _name, _kind in CONVERSIONS.items():
    setattr(Remote, f"__{_name}__", _conversion(_kind, _name))
for _name in BINARY.split():
    if _name not in ("getitem", "delitem", "contains"):
        setattr(Remote, f"__{_name.strip('_')}__", _operator(_name))


class Named(Remote):
    """A name that the solution defines; its value, where that is plain, is compared and read here."""

    def __init__(self, ask: Ask, name: str) -> None:
        super().__init__(ask, {"name": name})
        vars(self).update(__name__=name)

    def __eq__(self, other: object) -> bool:
        return self is other or bool(self._do("value") == other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __len__(self) -> int:
        return len(self._do("value"))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._do("value"))

    def __getitem__(self, key: Any) -> Any:
        return self._do("value")[key]

    def __bool__(self) -> bool:
        return True

    __hash__, __str__, __repr__ = object.__hash__, object.__repr__, object.__repr__


class Unknown:
    """The unknown result of a call in a guess: every assertion about it passes."""


def _always(value: Any) -> Any:
    def act(*_: Any, **__: Any) -> Any:
        if next(ASKED) > MAX_UNKNOWN_OPERATIONS:
            raise LookupError("a loop waits for what is unknown")
        return value

    return act


UNKNOWN = Unknown()
ASKED = itertools.count()
MAX_UNKNOWN_OPERATIONS = 20_000
"""Limit of operations on unknown values: a loop over one would never end."""
ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
SEEMS: dict[str, Any] = {"len": 0, "int": 0, "float": 0.0, "index": 0, "hash": 0, "str": "", "iter": iter(())}
SEEMS |= dict.fromkeys(["eq", "ne", "lt", "le", "gt", "ge", "contains", "bool"], True)
SEEMS |= dict.fromkeys(["call", "getattr", "getitem", "enter", "exit", "abs", "neg", "pos", "round"], UNKNOWN)
SEEMS |= dict.fromkeys([part + name for name in ARITHMETIC for part in ("", "r")], UNKNOWN)
for _name, _value in SEEMS.items():
    setattr(Unknown, f"__{_name}__", _always(_value))
