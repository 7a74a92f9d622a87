"""Words become texts: variables filled in, commands replaced by their output, split at blanks where bash splits.

Invariant: file names are not looked up: `*` and `?` stay as they are.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from agentrl.config.sources.shell import patterns
from agentrl.config.sources.shell.arithmetic import compute
from agentrl.config.sources.shell.marks import MARK, mark, unsure
from agentrl.config.sources.shell.state import Field, State, Value
from agentrl.config.sources.shell.tree import Word
from agentrl.config.sources.shell.words import Number, Output, Part, Text, Variable, braces, parts

OPERATION = re.compile(r"(:?[-=+?]|##?|%%?|//?|\^\^?|,,?|@|:)(.*)", re.DOTALL)


class Missing(Exception):
    """`${name:?}` of a name that is not set: the script ends."""


@dataclass(frozen=True)
class Piece:
    """Text that belongs to a word; None ends the word, as between the elements of `"${array[@]}"`."""

    text: str | None
    quoted: bool = False
    """Whether it stands for itself in a pattern."""
    splits: bool = False
    """Whether blanks in it end a word."""
    line: int | None = None


BREAK = Piece(None)


class Expander:
    """Expands against a state, which `${name:=text}` and `$((name=1))` change."""

    def __init__(self, state: Callable[[], State], output: Callable[[str], str]) -> None:
        self._state, self._output = state, output
        self.unset: set[str] = set()
        """Variables that were asked for and that nobody sets: a mark in a value, nothing in a condition."""

    @property
    def state(self) -> State:
        """Where the script is."""
        return self._state()

    def fields(self, words: Iterable[Word]) -> list[Field]:
        """The words that a command gets."""
        return [found for word in words for raw in braces(word.raw) for found in self._split(raw, word.line)]

    def text(self, raw: str, *, quoted: bool = False) -> str:
        """A word as one text, as an assignment has it."""
        raw = raw if quoted else self._home(raw)
        return "".join(" " if piece.text is None else piece.text for piece in self._pieces(parts(raw, quoted)))

    def pattern(self, raw: str, *, quoted: bool = False) -> str:
        """A word as a pattern: what is quoted stands for itself."""
        pieces = self._pieces(parts(self._home(raw), quoted))
        return "".join(
            patterns.protected(piece.text) if piece.quoted else piece.text for piece in pieces if piece.text is not None
        )

    def number(self, text: str) -> int | None:
        """The value of an arithmetic expression; None where it is not known."""
        return compute(self.text(text, quoted=True), self._operand, self.state.put)

    def known(self, text: str) -> str:
        """A text as a condition sees it: a variable that nobody sets is empty."""
        return MARK.sub(lambda found: "" if found[1] in self.unset else found[0], text)

    def _operand(self, name: str) -> str:
        return self._lacking(name) if self.state.get(name) is None else self.state.scalar(name)

    def _lacking(self, name: str) -> str:
        if self.state.nounset and self.state.arguments_known and name not in ("@", "*"):
            raise Missing(f"{name} is not set, and set -u ends the script")
        marked = mark(name)
        self.unset.add(marked[1:-1])
        return marked

    def _home(self, raw: str) -> str:
        found = re.match(r"~(?=/|$|:)", raw)
        return self.state.scalar("HOME") + raw[1:] if found and self.state.scalar("HOME") else raw

    def _split(self, raw: str, line: int) -> Iterator[Field]:
        """One word as bash splits it."""
        blanks = self.state.get("IFS")
        blanks = blanks if isinstance(blanks, str) and not unsure(blanks) else " \t\n"
        held: str | None = None
        place = line
        for piece in self._pieces(parts(self._home(raw))):
            if piece.text is None:
                if held is not None:
                    yield Field(held, place)
                held, place = None, line
                continue
            if not piece.splits:
                held, place = (held or "") + piece.text, piece.line or place
                continue
            cuts = re.split(f"[{re.escape(blanks)}]+", piece.text) if blanks else [piece.text]
            for number, cut in enumerate(cuts):
                if number and held is not None:
                    yield Field(held, place)
                    held = None
                if cut or (held is not None and not number):
                    held, place = (held or "") + cut, piece.line or place
        if held is not None:
            yield Field(held, place)

    def _pieces(self, found: Iterable[Part]) -> Iterator[Piece]:
        for part in found:
            match part:
                case Text():
                    yield Piece(part.text, part.quoted)
                case Output():
                    yield _filled(self._output(part.text), part.quoted)
                case Number():
                    number = self.number(part.text)
                    yield _filled(mark("NUMBER") if number is None else str(number), part.quoted)
                case Variable():
                    yield from self._variable(part)

    def _variable(self, part: Variable) -> Iterator[Piece]:
        operation = OPERATION.fullmatch(part.operation)
        value = self._value(part)
        if part.sign == "#":
            yield _filled(_length(value), part.quoted)
        elif operation and operation[1].lstrip(":") in ("-", "=", "+", "?"):
            yield from self._default(part, value, operation[1], operation[2])
        elif operation:
            yield from _many(part, self._changed(part, value, operation[1], operation[2]))
        elif value is None:
            yield _filled(self._lacking(part.name), part.quoted)
        else:
            yield from _many(part, value)

    def _value(self, part: Variable) -> Value | None:
        """What a variable holds: an array where all of it is meant, otherwise one text."""
        name, index, sign = part.name, part.index, part.sign
        if sign == "!" and index is None:
            name = self.state.scalar(name)
            if unsure(name) or not name:
                return mark(part.name)
        found = self.state.get(name)
        every = index in ("@", "*") or name in ("@", "*")
        if sign == "!" and every:
            return _indices(found)
        if every:
            return _elements(found)
        if isinstance(found, dict):
            return found.get(self.text(index or "0"))
        if isinstance(found, tuple):
            number = 0 if index is None else self.number(index)
            inside = number is not None and -len(found) <= number < len(found)
            return found[number].text if inside else mark(part.name) if number is None else None  # type: ignore[index]
        return found

    def _default(self, part: Variable, value: Value | None, sign: str, word: str) -> Iterator[Piece]:
        """`${name:-word}` and its kin."""
        lacks = value is None or (sign.startswith(":") and not _joined(value))
        kind = sign[-1]
        if lacks == (kind == "+"):
            yield from _many(part, value if kind != "+" else "")
            return
        if kind == "?":
            raise Missing(self.text(word, quoted=True))
        word = word if part.quoted else self._home(word)
        if kind == "=":
            self.state.put(part.name, self.text(word, quoted=part.quoted))
        if part.quoted:
            yield Piece("", True)
        for piece in self._pieces(parts(word, part.quoted)):
            yield replace(piece, splits=not piece.quoted and piece.text is not None)

    def _changed(self, part: Variable, value: Value | None, sign: str, word: str) -> Value:
        """`${name%word}` and its kin, for each element."""
        if isinstance(value, tuple) and sign == ":":
            return self._slice(value, word, first=int(part.name in ("@", "*")))
        if isinstance(value, tuple):
            return tuple(Field(self._cut(one.text, sign, word), one.line) for one in value)
        return self._cut(_joined(value), sign, word)

    def _slice(self, value: tuple[Field, ...], word: str, first: int) -> Value:
        """`${name[@]:start:count}`; `first` is the number of the first element."""
        at, _, count = word.partition(":")
        start, number = self.number(at), self.number(count) if count else len(value)
        if start is None or number is None:
            return value
        return value[start if start < 0 else max(start - first, 0) :][:number]

    def _cut(self, text: str, sign: str, word: str) -> str:
        if unsure(text):
            return mark("VALUE") if sign != "@" else text
        match sign:
            case "#" | "##":
                return patterns.without_prefix(text, self.pattern(word), longest=len(sign) == 2)
            case "%" | "%%":
                return patterns.without_suffix(text, self.pattern(word), longest=len(sign) == 2)
            case "/" | "//":
                old, new = _halves(word)
                return patterns.replaced(text, self.pattern(old), self.text(new), every=len(sign) == 2)
            case "^" | "^^" | "," | ",,":
                change = str.upper if sign[0] == "^" else str.lower
                return change(text) if len(sign) == 2 else change(text[:1]) + text[1:]
            case ":":
                first, _, count = word.partition(":")
                start, number = self.number(first), self.number(count) if count else len(text)
                if start is None or number is None:
                    return mark("NUMBER")
                return text[start:][:number] if number >= 0 else text[start:number]
        return text


def _filled(text: str, quoted: bool) -> Piece:
    return Piece(text, quoted, splits=not quoted)


def _many(part: Variable, value: Value | None) -> Iterator[Piece]:
    """Each element is a word, but for `"${name[*]}"`."""
    if not isinstance(value, tuple) or (part.quoted and "*" in (part.name, part.index)):
        yield _filled(_joined(value), part.quoted)
        return
    for number, one in enumerate(value):
        if number:
            yield BREAK
        yield replace(_filled(one.text, part.quoted), line=one.line or None)


def _elements(value: Value | None) -> Value:
    if isinstance(value, dict):
        return tuple(Field(text, 0) for text in value.values())
    return value if isinstance(value, tuple) else () if value is None else (Field(value, 0),)


def _indices(value: Value | None) -> Value:
    names = value if isinstance(value, dict) else [str(i) for i in range(len(_elements(value)))]
    return tuple(Field(str(name), 0) for name in names)


def _joined(value: Value | None) -> str:
    if isinstance(value, dict):
        return " ".join(value.values())
    return " ".join(one.text for one in value) if isinstance(value, tuple) else value or ""


def _length(value: Value | None) -> str:
    if isinstance(value, str) and unsure(value):
        return mark("NUMBER")
    return str(len(value or ""))


def _halves(word: str) -> tuple[str, str]:
    """`pattern/new`, cut at the first slash that nothing protects."""
    found = re.match(r"((?:\\.|[^/\\]|^/)*)(?:/(.*))?", word, re.DOTALL)
    assert found is not None
    return found[1], found[2] or ""
