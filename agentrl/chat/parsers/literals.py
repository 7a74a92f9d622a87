"""Values as programs write them, read in one pass: Python's literals, and notations like them.

Not Python's own parser: it takes seconds for a megabyte and exponential time for some nestings.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat.parsers.calls import Malformed, near, skip_space
from agentrl.core.json_text import DEEPEST

MAX_LITERALS = 10_000
"""Values that are read of one turn in a notation other than JSON."""
MAX_DIGITS = 4300
_WORD = re.compile(r"[A-Za-z_]\w{0,127}")
_BARE_KEY = re.compile(r"[^\s:,{}\[\]\"'\\]{1,256}")
_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*+(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?")
# A string ends at a quote that a literal may end at: some templates write quotes within quotes as they are.
_AFTER = r"(?=\s*+(?:[,)\]}:]|$))"
_STRING = re.compile(
    rf"""[rRbBuU]{{0,2}}+(?:\'\'\'(?:[^'\\]++|\\.|'(?!''))*+\'\'\'|\"\"\"(?:[^"\\]++|\\.|"(?!""))*+\"\"\""""
    rf"""|'(?:[^'\\]++|\\.|'(?!{_AFTER}))*+'|"(?:[^"\\]++|\\.|"(?!{_AFTER}))*+")""",
    re.DOTALL,
)
_BARE_QUOTES = {quote: re.compile(rf"\\.|{quote}", re.DOTALL) for quote in "'\""}
_LINES = str.maketrans({"\n": "\\n", "\r": "\\r", "\0": "\\0"})
_CLOSE = {"[": "]", "(": ")", "{": "}"}

ReadString = Callable[[str, int], tuple[str, int] | None]
"""(text, position) -> the string that begins there and the position after it; None where none begins. May raise
Malformed."""


def python_string(text: str, at: int) -> tuple[str, int] | None:
    """A string literal; unlike in Python, bare newlines may stand in any."""
    found = _STRING.match(text, at)
    if found is None:
        if text[at : at + 1] in ("'", '"'):
            raise Malformed(f"a string is not closed {near(text, at)}")
        return None
    literal = found[0]
    if "\\" not in literal and literal[0] in "'\"" and literal[:3] not in ("'''", '"""'):
        return literal[1:-1], found.end()
    return _unescaped(literal, text, at), found.end()


def _unescaped(literal: str, text: str, at: int) -> str:
    try:
        value = ast.literal_eval(_closed(literal).translate(_LINES))
    except (SyntaxError, ValueError) as error:
        raise Malformed(f"a string with an escape that Python does not know {near(text, at)}") from error
    if not isinstance(value, str):
        raise Malformed(f"bytes are not text {near(text, at)}")
    return value


def _closed(literal: str) -> str:
    """The literal with its inner quotes escaped."""
    quote = literal[-1]
    start = literal.index(quote)
    if literal.startswith(quote * 3, start) and len(literal) - start >= 6:
        return literal
    inner = _BARE_QUOTES[quote].sub(
        lambda found: f"\\{quote}" if found[0] == quote else found[0], literal[start + 1 : -1]
    )
    return f"{literal[:start]}{quote}{inner}{quote}"


@dataclass(frozen=True)
class Notation:
    """How a format writes values."""

    read_string: ReadString = python_string
    constants: dict[str, Any] = field(
        # Some templates print booleans and null as JSON does.
        default_factory=lambda: {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
    )
    bare_keys: bool = False
    """Keys of objects may stand without quotes."""
    brackets: str = "[({"


@dataclass
class Values:
    """The values in one text."""

    text: str
    notation: Notation = Notation()
    count: int = 0

    def read(self, at: int, depth: int = 0) -> tuple[Any, int]:
        """The value at `at` (white space skipped) and the position after it. Raises Malformed."""
        self.count += 1
        if self.count > MAX_LITERALS:
            raise Malformed(f"it is too long: at most {MAX_LITERALS} values")
        if depth > DEEPEST:
            raise Malformed(f"it is nested too deeply: at most {DEEPEST} levels")
        at = skip_space(self.text, at)
        opening = self.text[at : at + 1]
        if opening and opening in self.notation.brackets:
            return self._object(at + 1, depth) if opening == "{" else self._list(at + 1, _CLOSE[opening], depth)
        string = self.notation.read_string(self.text, at)
        return string if string is not None else self._scalar(at)

    def _scalar(self, at: int) -> tuple[Any, int]:
        word = _WORD.match(self.text, at)
        if word is not None and word[0] in self.notation.constants:
            return self.notation.constants[word[0]], word.end()
        found = _NUMBER.match(self.text, at)
        if found is None:
            raise Malformed(f"{self.text[at : at + 30]!r} is not a literal")
        if len(found[0]) > MAX_DIGITS:
            raise Malformed(f"a number has more than {MAX_DIGITS} digits {near(self.text, at)}")
        whole = not any(sign in found[0] for sign in ".eE")
        return (int(found[0]) if whole else float(found[0])), found.end()

    def _list(self, at: int, close: str, depth: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while not self._closes(at, close):
            value, at = self.read(at, depth + 1)
            values.append(value)
            at = self.comma(at, close)
        return values, skip_space(self.text, at) + 1

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        while not self._closes(at, "}"):
            key, at = self._key(skip_space(self.text, at))
            at = self.require(":", at)
            values[key], at = self.read(at, depth + 1)
            at = self.comma(at, "}")
        return values, skip_space(self.text, at) + 1

    def _key(self, at: int) -> tuple[str, int]:
        string = self.notation.read_string(self.text, at)
        if string is not None:
            return string
        word = _BARE_KEY.match(self.text, at) if self.notation.bare_keys else None
        if word is None:
            raise Malformed(f"the keys of an object must be strings {near(self.text, at)}")
        return word[0], word.end()

    def _closes(self, at: int, close: str) -> bool:
        return self.text.startswith(close, skip_space(self.text, at))

    def comma(self, at: int, close: str) -> int:
        """The position after a comma, or of the closing bracket. Raises Malformed."""
        at = skip_space(self.text, at)
        return at if self.text.startswith(close, at) else self.require(",", at)

    def require(self, sign: str, at: int) -> int:
        """The position after `sign` (white space skipped). Raises Malformed."""
        at = skip_space(self.text, at)
        if not self.text.startswith(sign, at):
            raise Malformed(f"{sign!r} is missing {near(self.text, at)}")
        return at + len(sign)
