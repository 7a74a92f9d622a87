"""Functions of the user's own beside the built-in ones: by their path, or registered under a name.

Such a function keeps the contract of those in its table. Its signature is checked when it is found, and what it
returns whenever it is called; what is wrong with it becomes a UserError of one line.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from agentrl.core.errors import UserError
from agentrl.core.plugins import load_attribute
from agentrl.core.user_errors import reported_as

Function = TypeVar("Function", bound=Callable[..., Any])


def named_by_path(name: str) -> bool:
    """Whether a name is a path: file.py:function or package.module.function."""
    return ":" in name or "." in name


def function_of(name: str, table: Mapping[str, Function], key: str) -> Function | Callable[..., Any]:
    """The function that the value of the setting `key` means: one of `table`, or one that a path names.

    Raises UserError where there is none.
    """
    if name in table:
        return table[name]
    if not named_by_path(name):
        known = ", ".join(table)
        raise UserError(
            f"{key} {name!r} does not exist; it is one of {known}, the path of a function (file.py:function), or a "
            "name that model.external_lib registers"
        )
    path, _, attribute = name.rpartition(":") if ":" in name else name.rpartition(".")
    found = load_attribute(path, attribute, what=key)
    if not callable(found) or isinstance(found, type) or inspect.iscoroutinefunction(found):
        raise UserError(f"{key}: {name} is no plain function: write it with def")
    return found


def check_signature(
    function: Callable[..., Any], columns: Sequence[str], offered: Sequence[str], *, where: str
) -> None:
    """That `function` takes `columns` in their order, and as keywords no more than is `offered`. Raises UserError."""
    parameters = list(inspect.signature(function).parameters.values())
    order = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(order) != len(columns) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise UserError(
            f"{where}: it takes ({', '.join(p.name for p in order)}): write def name({', '.join(columns)}, *, ...), "
            "with what else it reads after the star"
        )
    needed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if unknown := [name for name in needed if name not in offered]:
        raise UserError(f"{where}: nothing gives it {unknown[0]!r}; after the star it may name {', '.join(offered)}")


def keywords_of(function: Callable[..., Any]) -> frozenset[str]:
    """What it reads besides its columns: its keyword-only parameters."""
    return frozenset(p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY)


def checked_column(values: Any, like: Tensor, mask: Tensor, *, where: str, what: str) -> Tensor:
    """`values` as f32 like the column `like` [T], 0 off the mask. Raises UserError for another shape or NaN."""
    if not isinstance(values, Tensor) or values.shape != like.shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise UserError(f"{where}: its {what} are {got}; they must be a tensor of the shape {tuple(like.shape)}")
    values = torch.where(mask, values.float(), 0.0)
    if bad := int((~values.detach().isfinite()).sum()):
        raise UserError(f"{where}: its {what} are NaN or infinite at {bad} of {int(mask.sum())} model tokens")
    return values


def blamed(function: Callable[..., Any], where: str) -> Callable[..., Any]:
    """`function`, whose exceptions become a UserError of one line that names `where`."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with reported_as(where):
            return function(*args, **kwargs)

    return call
