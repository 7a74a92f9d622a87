"""The border of the Python API: an error with a message of one line shows no frames of agentrl's.

The exception behind it stays in `__context__`; the environment variable AGENTRL_TRACEBACK=1 shows all of it.
"""

import os
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, ParamSpec, TypeVar, cast

from agentrl.core.errors import OneLineError

P = ParamSpec("P")
R = TypeVar("R")


def short_errors(function: Callable[P, R]) -> Callable[P, R]:
    """The function, or generator, whose UserError and InfraError have a short traceback."""
    if isgeneratorfunction(function):

        @wraps(function)
        def each(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            try:
                yield from cast(Iterator[Any], function(*args, **kwargs))
            except OneLineError as error:
                raise _short(error) from error.__cause__

        return cast(Callable[P, R], each)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except OneLineError as error:
            raise _short(error) from error.__cause__

    return call


def _short(error: OneLineError) -> OneLineError:
    if os.environ.get("AGENTRL_TRACEBACK") != "1":
        error.__context__, error.__cause__ = error.__cause__ or error.__context__, None
        error.__suppress_context__ = True
        error.__traceback__ = None
    return error
