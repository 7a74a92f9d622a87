"""What a script knows at a point: variables, arguments, functions, the folder it stands in."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Literal

from agentrl.config.sources.shell.marks import mark, unsure
from agentrl.config.sources.shell.tree import Node

Status = Literal["ok", "failed", "unknown", "started"]
"""How a command ends. `started`: a program's, which is taken to work, but in a condition."""


class Leave(Exception):
    """`exit`, and what ends a function or a loop early."""

    def __init__(self, kind: str, status: str = "0") -> None:
        super().__init__(kind)
        self.kind, self.status = kind, status


@dataclass(frozen=True)
class Field:
    """A word as a command gets it, with the line that it was written on."""

    text: str
    line: int


Array = tuple[Field, ...]
Value = str | Array | dict[str, str]
"""A text, an array, or a table by name. Never changed in place."""


@dataclass
class State:
    """Copied where a script takes one of two ways."""

    variables: dict[str, Value]
    arguments: Array
    folder: str
    script: str
    """$0, the file that is read."""
    arguments_known: bool = True
    """Whether nobody knows the arguments: $1 is a mark then."""
    exported: frozenset[str] = frozenset()
    functions: dict[str, Node] = field(default_factory=dict)
    locals: tuple[dict[str, Value | None], ...] = ()
    """What the variables of each running function held before it."""
    status: str = "0"
    """$?"""
    nounset: bool = False
    """`set -u`: a variable that is not set ends the script."""

    def copy(self) -> "State":
        """One that changes on its own."""
        held = tuple(dict(names) for names in self.locals)
        return replace(self, variables=dict(self.variables), functions=dict(self.functions), locals=held)

    def get(self, name: str) -> Value | None:
        """A variable's value; None when it is not set."""
        if name.isdigit():
            return self._argument(int(name))
        if name in ("@", "*"):
            return self.arguments
        if name == "#":
            return str(len(self.arguments)) if self.arguments_known else mark("ARGS")
        if name in ("?", "$", "!", "-"):
            return self.status if name == "?" else mark("COMMAND")
        if name == "BASH_SOURCE":
            return (Field(self.script, 0),)
        if name == "PWD":
            return self.folder
        if name in ("RANDOM", "SECONDS", "HOSTNAME", "EPOCHSECONDS"):
            return mark(name)
        return self.variables.get(name)

    def _argument(self, number: int) -> str | None:
        if number == 0:
            return self.script
        if number <= len(self.arguments):
            return self.arguments[number - 1].text
        return None if self.arguments_known else mark(str(number))

    def scalar(self, name: str) -> str:
        """Its text: the first of an array, nothing when it is not set."""
        found = self.get(name)
        if isinstance(found, tuple):
            return found[0].text if found else ""
        return found.get("0", "") if isinstance(found, dict) else found or ""

    def put(self, name: str, value: Value | None) -> None:
        """Set a variable; None unsets it."""
        if value is None:
            self.variables.pop(name, None)
        else:
            self.variables[name] = value

    def make_local(self, name: str) -> None:
        """Keep what the variable held until the function returns."""
        if self.locals:
            self.locals[-1].setdefault(name, self.variables.get(name))


def merged(states: Sequence[State]) -> State:
    """What is known after one of several ways was taken: what differs between them is a mark."""
    first = states[0]
    for other in states[1:]:
        for name in {*first.variables, *other.variables}:
            ours, theirs = first.variables.get(name), other.variables.get(name)
            if ours != theirs:
                first.put(name, _either(name, ours, theirs))
        first.functions = other.functions | first.functions
        first.exported |= other.exported
        first.folder = first.folder if first.folder == other.folder else mark("PWD")
        if first.arguments != other.arguments:
            first.arguments, first.arguments_known = (), False
    return first


def _either(name: str, ours: Value | None, theirs: Value | None) -> Value:
    """Of arrays the elements that both begin with, and a mark."""
    if isinstance(ours, tuple) or isinstance(theirs, tuple):
        pairs = zip(_elements(ours), _elements(theirs), strict=False)
        common = takewhile(lambda pair: pair[0].text == pair[1].text, pairs)
        return (*(one for one, _ in common), Field(mark(name), 0))
    if isinstance(ours, str) and unsure(ours) and theirs is None:
        return ours
    return mark(name)


def _elements(value: Value | None) -> Array:
    return value if isinstance(value, tuple) else ()


def start(file: Path, environment: dict[str, str], arguments: Sequence[str] | None) -> State:
    """Before the first line of a script; without `arguments` nobody knows them."""
    fields = tuple(Field(text, 0) for text in arguments or ())
    return State(
        variables=dict(environment),
        arguments=fields,
        folder=str(Path.cwd()),
        script=str(file),
        arguments_known=arguments is not None,
        exported=frozenset(environment),
    )
