"""The border of the Python API: an error with a message of one line shows no frames of agentrl's.

The exception behind it stays in `__context__`; the environment variable AGENTRL_TRACEBACK=1 shows all of it.
"""

import os
from contextlib import ContextDecorator
from types import TracebackType

from agentrl.core.errors import OneLineError


class ShortErrors(ContextDecorator):
    """Gives a UserError or InfraError of the body, or of a function, a short traceback."""

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, OneLineError) or os.environ.get("AGENTRL_TRACEBACK") == "1":
            return
        error.__context__ = error.__cause__ or error.__context__
        raise error.with_traceback(None) from None


short_errors = ShortErrors()
