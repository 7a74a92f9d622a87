"""The two errors that callers distinguish, and messages of one line.

Any other error is a bug in agentrl and shows its traceback.
"""

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any


class OneLineError(Exception):
    """An error whose message says all that a person needs."""

    details: tuple[str, ...] = ()
    """Lines that the command line shows first: the last output of another program."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython and notebooks show in place of a traceback."""
        return [*self.details, f"{type(self).__name__}: {self}"]


class UserError(OneLineError):
    """Wrong input. The message is one line: what is wrong, then how to fix it.

    The command line prints it without a traceback and exits with code 2.
    """


class InfraError(OneLineError):
    """A tool, sandbox or engine failed through no fault of the model.

    The trajectory it hits is masked or sampled again, never scored 0.
    """


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


@contextmanager
def needing(package: str, install: str) -> Iterator[None]:
    """For the import of a package that not every run needs: an error says how to install it. Raises UserError."""
    try:
        yield
    except ImportError:
        raise UserError(f"{package} is not installed; run pip install {install}") from None


def one_line(error: BaseException) -> str:
    """The message of an error without line breaks."""
    return " ".join(str(error).split())


def shortened(value: Any, most: int = 60) -> str:
    """The text of a value in one line of at most `most` characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def located(error: BaseException) -> str:
    """The error and the place that raised it, in one line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join(traceback.format_exception_only(error)[-1].split())
    return f"{said} ({where.filename}:{where.lineno})"


def last_line(text: str) -> str:
    """The last line with text in it, without white space around it; "" without one."""
    return (text.strip().splitlines() or [""])[-1].strip()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean NEAREST? `, before further advice; "" where no known name is near."""
    near = get_close_matches(name, list(known), 1)
    return f"did you mean {near[0]}? " if near else ""


def plural(count: int, one: str, many: str | None = None) -> str:
    """ "1 turn", "2 turns", "0 turns"; `many` where the plural is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
