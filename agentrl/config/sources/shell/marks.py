"""Marks in a text for what only a machine knows.

Invariant: a text without a mark is exactly what bash would make of the same words.
"""

import re

MARK = re.compile("\x02(\\w+)\x03")


def mark(name: str) -> str:
    """A mark; `name` says what is missing: a variable's name, COMMAND, NUMBER, CONDITION."""
    return f"\x02{name if name.isidentifier() else f'ARG_{name}'}\x03"


def unsure(text: str) -> bool:
    """Whether some of a text is not known."""
    return "\x02" in text
