"""Mistakes in users' classes and YAML that show before anything of theirs is called.

Invariant: what verl accepts is accepted. A plugin's `config` is its own, so of its keys only those are refused that
differ by a letter or two from one that agentrl reads, and that the plugin's own file does not mention.
"""

import dis
import inspect
import sys
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from types import FunctionType
from typing import Any

from agentrl.core.errors import UserError

NEAR = 0.8
"""Share of common letters from which on a key is taken for a misspelt one."""


def check_keys(given: Iterable[Any], known: Collection[str], where: str) -> None:
    """Raises UserError for a key that nothing reads."""
    for key in given:
        if key not in known:
            near = nearest(key, known, 0.6)
            hint = f"did you mean {near}?" if near else f"write one of {', '.join(known)}"
            raise UserError(f"{where}: unknown key {key!r}: {hint}")


def check_spelling(
    given: Iterable[Any], known: Collection[str], where: str, *, section: str, kind: type | None = None
) -> None:
    """Raises UserError for a key that is nearly one of `known`, unless the file of the class `kind` mentions it."""
    for key in given:
        near = nearest(key, known, NEAR)
        if near is not None and not mentions(kind, key):
            raise UserError(
                f"{where}: {section}.{key}: did you mean {near}? agentrl reads that, and nothing reads {key}"
            )


def nearest(key: Any, known: Collection[str], least: float) -> str | None:
    """The known key that `key` is like; None where it is like none, or is one."""
    if not isinstance(key, str) or key in known:
        return None
    return next(iter(get_close_matches(key.lower().replace("-", "_"), known, 1, least)), None)


def check_method(kind: type, name: str, given: tuple[str, ...], where: str, example: str) -> None:
    """Raises UserError where the method cannot be called with as many arguments as `given` names.

    `example`: how it is written.
    """
    fn = _bound(kind, name)
    if fn is None:
        return
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise UserError(f"{where}: {kind.__name__}.{name} has a `yield`: return the answer instead")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # not written in Python
        return
    try:
        signature.bind_partial(*given)
    except TypeError:
        raise UserError(
            f"{where}: {kind.__name__}.{name}{signature} cannot be called with {' and '.join(given)}: write `{example}`"
        ) from None


def check_has(made: Any, methods: Iterable[str], where: str, base: str) -> None:
    """Raises UserError where an object lacks methods, which it would inherit from `base`."""
    missing = [name for name in methods if not callable(getattr(made, name, None))]
    if missing:
        raise UserError(f"{where} lacks {', '.join(missing)}: derive it from {base}")


def check_answers(fn: Any, where: str, what: str) -> None:
    """Raises UserError where a function never returns anything; `what` it should return."""
    if returns_nothing(fn):
        name = getattr(fn, "__qualname__", fn)
        raise UserError(f"{where}: {name} never returns anything: return {what}")


def returns_nothing(fn: Any) -> bool:
    """Whether no `return` of a Python function has a value."""
    fn = inspect.unwrap(getattr(fn, "__func__", fn))
    if not isinstance(fn, FunctionType) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        return False
    before, ends = None, []
    for step in dis.get_instructions(fn):
        if step.opname == "RETURN_CONST":
            ends.append(step.argval is None)
        elif step.opname == "RETURN_VALUE":
            ends.append(before is not None and before.opname.startswith("LOAD_CONST") and before.argval is None)
        before = step
    return bool(ends) and all(ends)


def inherits(kind: type, method: str) -> bool:
    """Whether a class has `BaseTool.execute`, say, from the base class, agentrl's or verl's, alone."""
    owner, _, name = method.partition(".")
    return getattr(getattr(kind, name, None), "__qualname__", "") == f"{owner}.{name}"


def own_parameters(kind: type, name: str) -> list[str]:
    """Names of a method's parameters, without `self`."""
    fn = _bound(kind, name)
    try:
        return [] if fn is None else list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return []


def _bound(kind: type, name: str) -> Callable[..., Any] | None:
    """A method as calls see it, without `self`, of a class that may cost much to make an object of."""
    try:
        found = inspect.getattr_static(kind, name)
    except AttributeError:
        return None
    bound = found.__get__(object(), kind) if hasattr(found, "__get__") else found
    return bound if callable(bound) else None


def mentions(kind: type | None, key: str) -> bool:
    """Whether the files of a class, and of those that it derives from, have the word."""
    if kind is None:
        return False
    modules = {base.__module__ for base in kind.__mro__ if base is not object}
    return any(key in _source(sys.modules.get(module)) for module in modules)


def _source(module: Any) -> str:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""
