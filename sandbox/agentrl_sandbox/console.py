"""Colours on a terminal, plain text elsewhere."""

import os
from typing import TextIO

BOLD, DIM, RED, GREEN, YELLOW = "\033[1m", "\033[2m", "\033[31m", "\033[32m", "\033[33m"
_RESET = "\033[0m"


class Console:
    """Prints lines of parts; a part is a text, or (text, style)."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.colours = stream.isatty() and "NO_COLOR" not in os.environ

    def print(self, *parts: str | tuple[str, str]) -> None:
        """Write one line, with spaces between the parts."""
        self.stream.write(" ".join(map(self._styled, parts)).rstrip() + "\n")
        self.stream.flush()

    def _styled(self, part: str | tuple[str, str]) -> str:
        if isinstance(part, str):
            return part
        text, style = part
        return f"{style}{text}{_RESET}" if self.colours else text
