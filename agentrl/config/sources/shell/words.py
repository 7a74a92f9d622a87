"""A word as it is written, taken apart into text, variables and substitutions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from agentrl.config.sources.shell.scan import after_piece

NAMED = re.compile(r"[A-Za-z_]\w*|[0-9]|[@*#?$!-]")
BRACED = re.compile(
    r"(!|#(?=[A-Za-z_@*0-9]))?([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[((?:[^\[\]]|\[[^\]]*\])*)\])?(.*)", re.DOTALL
)
RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "e": "\x1b", "0": "\0"}


@dataclass(frozen=True)
class Text:
    """Plain text."""

    text: str
    quoted: bool


@dataclass(frozen=True)
class Variable:
    """`$name`, `${name[index]operation}`, `${#name}`, `${!name}`."""

    name: str
    quoted: bool
    sign: str = ""
    """`#`: its length; `!`: the variable that it names, or an array's indices."""
    index: str | None = None
    operation: str = ""


@dataclass(frozen=True)
class Output:
    """`$(commands)`."""

    text: str
    quoted: bool


@dataclass(frozen=True)
class Number:
    """`$((expression))`."""

    text: str
    quoted: bool


Part = Text | Variable | Output | Number


@lru_cache(maxsize=4096)
def parts(raw: str, quoted: bool = False) -> tuple[Part, ...]:
    """The parts of a word; `quoted`: it stands between double quotes."""
    return tuple(_parts(raw, quoted))


def _parts(raw: str, quoted: bool) -> Iterator[Part]:
    at = 0
    while at < len(raw):
        sign, end = raw[at], after_piece(raw, at)
        if (quoted and sign in "'\"") or (raw[at : at + 2] in ("$'", '$"') and quoted):
            end = at + 1  # plain within quotes
        piece = raw[at:end]
        if sign == "\\":
            yield from _escaped(piece, quoted)
        elif sign == "'" and not quoted:
            yield Text(piece[1:-1], True)
        elif piece.startswith("$'"):
            yield Text(re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[0]), piece[2:-1]), True)
        elif (sign == '"' and not quoted) or piece.startswith('$"'):
            inner = piece.lstrip("$")[1:-1]
            yield from parts(inner, True) or (Text("", True),)
        elif sign == '"':
            pass  # quotes within a default within quotes
        elif sign in "$`":
            part, end = _substitution(raw, at, end, quoted)
            yield part
        elif raw[at : at + 2] in ("<(", ">(") and not quoted:
            yield Output(raw[at:], True)
            return
        else:
            yield Text(piece, quoted)
        at = end


def _escaped(piece: str, quoted: bool) -> Iterator[Part]:
    if piece == "\\\n":
        return
    plain = quoted and piece[1:] not in ("$", "`", '"', "\\")
    yield Text(piece if plain else piece[1:], True)


def _substitution(raw: str, at: int, end: int, quoted: bool) -> tuple[Part, int]:
    """What begins with `$` or a backtick, and where it ends."""
    piece = raw[at:end]
    if piece.startswith("`"):
        return Output(re.sub(r"\\([$`\\])", r"\1", piece[1:-1]), quoted), end
    if piece.startswith("$((") and piece.endswith("))"):
        return Number(piece[3:-2], quoted), end
    if piece.startswith("$["):
        return Number(piece[2:-1], quoted), end
    if piece.startswith("$("):
        return Output(piece[2:-1], quoted), end
    if piece.startswith("${"):
        found = BRACED.fullmatch(piece[2:-1])
        if found is None:
            return Text(piece, quoted), end
        return Variable(found[2], quoted, found[1] or "", found[3], found[4]), end
    name = NAMED.match(raw, at + 1)
    if name is None:
        return Text("$", quoted), at + 1
    return Variable(name[0], quoted), name.end()


def braces(raw: str) -> list[str]:
    """`a{b,c}d` is abd and acd, `{1..3}` is 1, 2 and 3; anything else is itself."""
    at = 0
    while at < len(raw):
        if raw[at] != "{":
            at = after_piece(raw, at)
            continue
        end, commas = _closing(raw, at)
        ranged = RANGE.fullmatch(raw[at + 1 : end]) if end else None
        if end and (commas or ranged):
            cuts = [at, *commas, end]
            choices = _range(ranged) if ranged else [raw[a + 1 : b] for a, b in pairwise(cuts)]
            return [
                raw[:at] + one + rest for choice in choices for one in braces(choice) for rest in braces(raw[end + 1 :])
            ]
        at += 1
    return [raw]


def _closing(raw: str, at: int) -> tuple[int, list[int]]:
    """(where the brace at `at` closes, its commas); 0 where it does not."""
    depth, commas = 0, list[int]()
    while at < len(raw):
        if raw[at] == "{":
            depth += 1
        elif raw[at] == "}":
            depth -= 1
            if depth == 0:
                return at, commas
        elif raw[at] == "," and depth == 1:
            commas.append(at)
        at = at + 1 if raw[at] in "{}," else after_piece(raw, at)
    return 0, []


def _range(found: re.Match[str]) -> list[str]:
    first, last = found[1], found[2]
    numbers = [int(end) if end.lstrip("-").isdigit() else ord(end) for end in (first, last)]
    step = 1 if numbers[1] >= numbers[0] else -1
    show = str if first.lstrip("-").isdigit() else chr
    return [show(number) for number in range(numbers[0], numbers[1] + step, step)]
