"""The objects that a setting may name: built in, registered, from a plug-in, or by their path.

Invariants:
- all of them keep one contract, which is checked whenever an object that is not built in is found;
- a registry holds what the modules imported into this process registered, and nothing else: each worker process
  imports `model.external_lib` and the plug-ins for itself;
- an object that the caller passes comes with its name (`GivenObject`), and is in no registry;
- names of built-in objects are known without importing them (`catalog`), and one is imported when it is first named.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, Self, TypeVar

from agentrl.core.catalog import Declared, declared
from agentrl.core.contracts import Contract, keywords_of
from agentrl.core.errors import UserError, did_you_mean, reported_as
from agentrl.core.extensions import load_plugins
from agentrl.core.plugins import load_attribute

T = TypeVar("T")
D = TypeVar("D")


class GivenObject(str):
    """The name of a Python object of the caller's, which carries the object itself: it stands for nothing else."""

    value: Any
    travels: bool
    """Whether other processes need the object."""

    def __new__(cls, name: str, value: Any, *, travels: bool = True) -> Self:
        """`name`: how the object is shown."""
        made = super().__new__(cls, name)
        made.value, made.travels = value, travels
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GivenObject) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (GivenObject, (str(self), self.value)) if self.travels else (str, (str(self),))

    def removeprefix(self, prefix: str, /) -> str:
        """The name is whole."""
        return self

    def removesuffix(self, suffix: str, /) -> str:
        """The name is whole."""
        return self


@dataclass(frozen=True)
class Entry(Generic[T]):
    """The object of a name."""

    value: T
    marks: Mapping[str, Any] = field(default_factory=dict)
    """Facts that its decorator states."""
    built_in: bool = False

    def call(self, where: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the object. What one of the user's own raises becomes a UserError that begins with `where`."""
        function: Any = self.value
        with nullcontext() if self.built_in else reported_as(where):
            return function(*args, **kwargs)


@dataclass(eq=False, kw_only=True, repr=False)
class Registry(Generic[T]):
    """Objects of one kind by name."""

    what: str = field(kw_only=False)
    """The kind: "a policy loss"."""
    places: tuple[str, ...]
    """Files and folders with the built-in ones, each under `decorator`."""
    contract: Contract
    marks: tuple[str, ...] = ()
    """Keywords that the decorator takes."""
    package: str = ""
    """A module whose classes need no path."""
    decorator: str = field(default="", init=False)
    """Its name as a decorator, which `agentrl.core.points` gives it."""
    loaded: dict[str, Entry[T]] = field(default_factory=dict, init=False)
    """Built-in objects that were imported."""
    registered: dict[str, Entry[T]] = field(default_factory=dict, init=False)
    """Objects that this process registered; they come before built-in ones."""

    def __call__(self, *names: str, **marks: Any) -> Callable[[D], D]:
        """A decorator that gives an object its name and aliases. Raises UserError for a name that is taken."""

        def decorate(value: D) -> D:
            for name in names:
                self.add(name, value, **marks)  # type: ignore[arg-type]
            return value

        return decorate

    def add(self, name: str, value: T, *, replace: bool = False, **marks: Any) -> None:
        """Give `value` a name. Raises UserError for a taken name, unless `replace`, and for an unknown mark."""
        if unknown := marks.keys() - set(self.marks):
            known = ", ".join(self.marks) or "none"
            raise UserError(f"@{self.decorator}({name!r}): unknown mark {min(unknown)!r}; it takes {known}")
        mine, held = self.declared.get(name), self.registered.get(name)
        if mine is not None and mine.module == getattr(value, "__module__", ""):
            self.loaded[name] = Entry(value, marks, built_in=True)
            return
        if not replace and (mine is not None or (held is not None and not _same(held.value, value))):
            raise UserError(f"@{self.decorator}({name!r}): {self.what} of that name is there already; choose another")
        self.registered[name] = Entry(value, marks)

    @property
    def declared(self) -> Mapping[str, Declared]:
        """Declarations of the built-in objects, by name."""
        return declared(self.decorator, self.places)

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the built-in ones, and of those that this process registered."""
        return tuple(dict.fromkeys((*self.declared, *self.registered)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __contains__(self, name: object) -> bool:
        return name in self.words

    def __getitem__(self, name: str) -> T:
        """The object that is built in or was registered under a name. Raises KeyError."""
        found = self._named(name)
        if found is None:
            raise KeyError(name)
        return found.value

    def get(self, name: str, key: str) -> T:
        """The object that the value `name` of the setting `key` means. Raises UserError."""
        return self.entry(name, key).value

    def entry(self, name: str, key: str) -> Entry[T]:
        """The entry of that object. Raises UserError where there is none, or none that keeps the contract."""
        name = name.removeprefix(f"{self.package}.")
        found = self._named(name) or self._by_path(name, key)
        if found is None:
            load_plugins()
            found = self._named(name)
        if found is None:
            raise UserError(f"{key}={name}: {self.missing(name)}")
        if not found.built_in:
            self.contract.check(found.value, f"{key}={name}")
        return found

    def make(self, name: str, key: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the object of that name with the arguments, unless it is made already. Raises UserError; so does one of
        the user's own that fails, with any exception."""
        entry: Entry[Any] = self.entry(name, key)
        if not entry.built_in and self.contract.is_made(entry.value):
            return entry.value
        return entry.call(f"{key}={name}", *args, **kwargs)

    def built_in(self, name: str) -> Entry[T]:
        """agentrl's own object of that name, whatever is registered under it. Raises KeyError."""
        if name not in self.loaded:
            import_module(self.declared[name].module)
        return self.loaded[name]

    def mark(self, name: str, mark: str, key: str) -> Any:
        """The value of a mark of its decorator; None where there is none. Imports nothing that is built in."""
        mine = self.declared.get(name := name.removeprefix(f"{self.package}."))
        plain = mine if name not in self.registered else None
        return plain.marks.get(mark) if plain else self.entry(name, key).marks.get(mark)

    def keywords(self, name: str, key: str) -> frozenset[str]:
        """Keywords that a function reads. Imports nothing that is built in."""
        mine = self.declared.get(name)
        return mine.keywords if mine and name not in self.registered else keywords_of(self.get(name, key))  # type: ignore[arg-type]

    def missing(self, name: str, words: tuple[str, ...] = ()) -> str:
        """Advice for an unknown name; `words`: the values that the setting takes, if not just the names."""
        words = words or self.words
        return f"{did_you_mean(name, words)}choose {', '.join((*words, 'or '))}{self.own_forms}".replace(
            "choose or", "choose"
        )

    @property
    def own_forms(self) -> str:
        """How an object of the user's own is named."""
        kind = "Class" if "class " in self.contract.written else "function"
        classes = f"a class of {self.package}, " * bool(self.package)
        return f"{classes}file.py:{kind}, or a name that model.external_lib registers"

    def _named(self, name: str) -> Entry[T] | None:
        if name in self.registered:
            return self.registered[name]
        return self.built_in(name) if name in self.declared else None

    def is_path(self, name: str) -> bool:
        """Whether a name needs no registration: it is a path, or a class of the package."""
        return is_path(name) or (
            bool(self.package) and isinstance(getattr(import_module(self.package), name, None), type)
        )

    def _by_path(self, name: str, key: str) -> Entry[T] | None:
        if isinstance(name, GivenObject):
            return self._entry_of(name.value)
        if not self.is_path(name):
            return None
        name = name if is_path(name) else f"{self.package}.{name}"
        path, _, attribute = name.rpartition(":" if ":" in name else ".")
        return self._entry_of(load_attribute(path, attribute, what=key))

    def _entry_of(self, value: T) -> Entry[T]:
        """An object's entry, with the marks of its decorator if it has one."""
        return next((entry for entry in self.registered.values() if entry.value is value), Entry(value))


def is_path(name: str) -> bool:
    """Whether a name is a path: file.py:name, package.module:name or package.module.name."""
    return ":" in name or "." in name


def _same(one: Any, other: Any) -> bool:
    """Whether both are one object, or come from one definition that was run again."""
    return one is other or _origin(one) == _origin(other) != (None, None)


def _origin(value: Any) -> tuple[str | None, str | None]:
    return getattr(value, "__module__", None), getattr(value, "__qualname__", None)
