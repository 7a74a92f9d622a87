"""Turns errors of user code into one line that names its source."""

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.core.errors import UserError


@contextmanager
def reported_as(what: str) -> Iterator[None]:
    """Turn any exception of a user's code into a UserError of one line that begins with `what`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{what}: {error}") from error
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and "found neither" not in what
        fix = "; install it where agentrl is installed, or put its file beside this one" if missing else ""
        raise UserError(f"{what}: {type(error).__name__}: {one_line(error)}{fix}") from error


def one_line(error: BaseException) -> str:
    """The message of an error without line breaks."""
    return " ".join(str(error).split())
