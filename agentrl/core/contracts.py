"""Contracts of the objects behind settings, checked when one is found: before a run begins, without torch."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentrl.core.errors import UserError

Parameters = list[inspect.Parameter]


@dataclass(frozen=True)
class FunctionContract:
    """A plain function of `columns`, in their order, that names what else it reads as keywords."""

    columns: tuple[str, ...]
    offered: tuple[str, ...] = ()
    """Keywords that it may name."""

    @property
    def written(self) -> str:
        """The contract in a line of Python."""
        return f"def name({', '.join((*self.columns, *(('*', '...') if self.offered else ())))})"

    def is_made(self, found: Any) -> bool:
        """Whether an object that keeps the contract is used as it is, and not called for one."""
        return False

    def check(self, found: Any, where: str) -> None:
        """Raises UserError for an object that breaks the contract."""
        if not callable(found) or isinstance(found, type) or inspect.iscoroutinefunction(found):
            raise UserError(f"{where} is no plain function: write it with def")
        parameters = list(inspect.signature(found).parameters.values())
        order = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(order) != len(self.columns) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
            rest = ", with what else it reads after the star" if self.offered else ""
            raise UserError(f"{where}: it takes ({', '.join(p.name for p in order)}): write {self.written}{rest}")
        self._check_keywords(parameters, where)

    def _check_keywords(self, parameters: Parameters, where: str) -> None:
        needed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
        if unknown := [name for name in needed if name not in self.offered]:
            offers = f"after the star it may name {', '.join(self.offered)}" if self.offered else "leave it out"
            raise UserError(f"{where}: nothing gives it {unknown[0]!r}; {offers}")


@dataclass(frozen=True)
class ClassContract:
    """A class, made of `arguments`, whose objects have `methods`; or a function that makes such an object."""

    arguments: str | None
    """The arguments as in a call: "module, max_num_seqs="; None: the caller knows."""
    methods: tuple[str, ...]
    """Likewise: "async push(replicas)"."""
    functions: bool = True
    """Whether a function may stand in for the class."""
    optional: bool = False
    """Whether it may leave methods out."""

    @property
    def written(self) -> str:
        """The contract in a line of Python."""
        some = "any of " if self.optional else ""
        return f"class Name, made as Name({self.arguments or ''}), with {some}the methods {', '.join(self.methods)}"

    def check(self, found: Any, where: str) -> None:
        """Raises UserError for an object that breaks the contract."""
        made = self.is_made(found)
        if not made and not isinstance(found, type) and not (self.functions and callable(found)):
            lacks = "has none of its methods" if self.optional else "is no class"
            raise UserError(f"{where} {lacks}: write {self.written}")
        if self.arguments is not None and not made:
            require_call(found, self.arguments, where)
        kind = type(found) if made else found
        methods = self.methods if isinstance(kind, type) else ()
        if methods and self.optional:
            methods = tuple(method for method in methods if _own(kind, _name(method)))
            if not methods:
                raise UserError(f"{where} has none of its methods: write {self.written}")
        for method in methods:
            _check_method(kind, method, where)

    def is_made(self, found: Any) -> bool:
        """Whether an object has the methods: it is used as it is."""
        if isinstance(found, type) or inspect.isroutine(found):
            return False
        has = [hasattr(found, _name(method)) for method in self.methods]
        return any(has) if self.optional else all(has)


@dataclass(frozen=True)
class EitherContract:
    """An object of one contract, or of another."""

    one: "Contract"
    other: "Contract"
    second: Callable[[Any], bool]
    """Whether an object is to keep the other one."""

    @property
    def written(self) -> str:
        """The contract in a line of Python."""
        return f"{self.one.written}; or {self.other.written}"

    def check(self, found: Any, where: str) -> None:
        """Raises UserError for an object that breaks the contract."""
        self._of(found).check(found, where)

    def is_made(self, found: Any) -> bool:
        """Whether an object that keeps the contract is used as it is, and not called for one."""
        return self._of(found).is_made(found)

    def _of(self, found: Any) -> "Contract":
        return self.other if self.second(found) else self.one


Contract = FunctionContract | ClassContract | EitherContract
"""How an object is written that a registry accepts."""


def _own(kind: type, name: str) -> bool:
    """Whether a class has a method that is not agentrl's own."""
    found = getattr(kind, name, None)
    return found is not None and not str(found.__module__).startswith("agentrl.")


def _name(method: str) -> str:
    return method.partition("(")[0].split()[-1]


def _check_method(kind: type, written: str, where: str) -> None:
    """Raise UserError where a class lacks the method "async push(replicas)", say."""
    head, _, arguments = written.rstrip(")").partition("(")
    *marks, name = head.split()
    form = f"{'async ' if marks else ''}def {name}(self{arguments and ', '}{arguments})".replace("=", "=None")
    method = getattr(kind, name, None)
    if not callable(method):
        raise UserError(f"{where} has no method {name}: write `{form}`")
    if inspect.iscoroutinefunction(method) != bool(marks):
        raise UserError(f"{where}.{name} is {'not ' if marks else ''}async: write `{form}`")
    require_call(method, f"self, {arguments}" if arguments else "self", f"{where}.{name}")


def require_call(function: Any, arguments: str, where: str) -> None:
    """Raises UserError where `function` cannot be called with "replicas, timeout=", say."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not written in Python
        return
    given = arguments.split(", ") if arguments else []
    keywords = {name[:-1]: None for name in given if name.endswith("=")}
    try:
        signature.bind(*(name for name in given if not name.endswith("=")), **keywords)
    except TypeError as error:
        raise UserError(f"{where} cannot be called with ({arguments}): {error}") from None


def keywords_of(function: Callable[..., Any]) -> frozenset[str]:
    """Names of a function's keyword-only parameters: all that it reads besides its columns."""
    return frozenset(p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY)
