"""Shows on stderr what a slow start waits for."""

import sys
from typing import Self

from rich.console import Console


class Waiting:
    """Context manager: `waiting("...")` replaces the line, or writes one every now and then without a terminal."""

    EVERY = 40

    def __init__(self, what: str) -> None:
        self.console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._status = self.console.status(what) if sys.stderr.isatty() else None
        self._calls = 0

    def __call__(self, line: str) -> None:
        """Show a new state."""
        if self._status is not None:
            self._status.update(line)
        elif self._calls % self.EVERY == 0:
            self.console.print(line, style="dim", markup=False)
        self._calls += 1

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._status is not None:
            self._status.stop()
        for line in getattr(error, "tail", []):  # what a server said before it gave up
            self.console.print(f"  | {line}", style="dim", markup=False)
