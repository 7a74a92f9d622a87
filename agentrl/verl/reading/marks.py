"""Words of a command line, and marks in them for text that only the machine of a run knows."""

import re
from dataclasses import dataclass

MARK = re.compile("\x02(\\w+)\x03")


@dataclass(frozen=True)
class Word:
    """A word that a command gets, with the line that it is on."""

    text: str
    line: int = 0


def mark(name: str) -> str:
    """A mark; `name` is a variable's, ARG_1 for an argument, COMMAND for the output of a command."""
    return f"\x02{name}\x03"


def unsure(text: str) -> bool:
    """Whether some of a text is not known."""
    return "\x02" in text
