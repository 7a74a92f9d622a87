"""Settings whose value is a Python object of the caller's.

The run gets the object itself beside the settings. The settings have a name for it, `<python: NAME>`, so that a run's
config.yaml shows it, and a resumed run notices another object.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from inspect import isroutine
from numbers import Number
from pathlib import Path
from typing import Any, TypeVar

from agentrl.config.choices import OPEN
from agentrl.config.keys import as_list, sections_of
from agentrl.core.errors import UserError
from agentrl.core.registry import GivenObject

S = TypeVar("S")

START, END = "<python: ", ">"
PLAIN = (str, bytes, Number, Path, Enum, Mapping, Sequence, type(None))
CONTROLLER = ("algorithm.filter_groups.keep", "data.row_sampler", "trainer.callbacks", "trainer.logger")
"""Keys whose objects are used in the process that takes the steps alone."""
KEYS = (*OPEN, "rollout.agent.default_agent_loop")
"""Keys that take objects."""


def given(name: str) -> str:
    """The value of a setting for an object called `name`."""
    return f"{START}{name}{END}"


def is_given(value: Any) -> bool:
    """Whether a setting stands for an object, which has no file."""
    return isinstance(value, str) and value.startswith(START) and value.endswith(END)


def file_named(value: str | None) -> str | None:
    """The file that a setting names; None where it names none, or stands for an object."""
    return None if is_given(value) else value


def plain(value: Any, other: Callable[[Any], Any] = lambda value: value) -> Any:
    """Paths as text and tuples as lists, at any depth; `other` of all else."""
    if isinstance(value, Mapping):
        return {str(key): plain(below, other) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, other) for item in value]
    return str(value) if isinstance(value, Path) else other(value)


class Objects:
    """The objects among settings that a caller passes, by the names that stand for them."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}

    def names_in(self, value: Any) -> Any:
        """`value` with a name for each object, at any depth."""
        return plain(value, lambda found: found if isinstance(found, PLAIN) else self._name(found))

    def settle(self, section: S, key: str = "") -> S:
        """A copy of settings with the objects in place of their names. Raises UserError for a key that takes none."""
        if is_dataclass(section) and not isinstance(section, type):
            prefix = key and f"{key}."
            names = [field.name for field in fields(section)]
            return replace(section, **{name: self.settle(getattr(section, name), prefix + name) for name in names})
        found: Any = section
        if isinstance(section, list):
            found = [self.settle(item, key) for item in section]
        elif isinstance(section, Mapping):
            found = {name: self.settle(below, f"{key}.{name}") for name, below in section.items()}
        elif isinstance(section, PLAIN):
            found = self._object(section, key) if section in self.named else deepcopy(section)
        else:
            found = self._object(self._name(section), key)
        return found

    def _name(self, value: Any) -> str:
        """The name of an object, and of no other."""
        named = value if isinstance(value, type) or isroutine(value) else type(value)
        names = (given(named.__name__ + (f" {number}" if number > 1 else "")) for number in range(1, 10_000))
        name = next(name for name in names if self.named.get(name, value) is value)
        self.named[name] = value
        return name

    def _object(self, name: Any, key: str) -> GivenObject:
        if key not in KEYS:
            raise UserError(
                f"{key}={name} is a Python object: write a value, or a name; {', '.join(KEYS)} take objects"
            )
        return GivenObject(name, self.named[name], travels=key not in CONTROLLER)


def given_objects(config: Any) -> Iterator[tuple[str, GivenObject]]:
    """The objects among settings, each with its key."""
    for path, section in sections_of(config):
        for name, value in vars(section).items():
            objects = (item for item in as_list(value) if isinstance(item, GivenObject))
            yield from ((f"{path}.{name}".lstrip("."), item) for item in objects)
