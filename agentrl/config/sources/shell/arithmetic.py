"""Shell arithmetic: whole numbers of 64 bits, C's operators, variables by name.

Invariant: an expression that holds a mark, or that bash could not compute, gives None.
"""

import re
from collections.abc import Callable

from agentrl.config.sources.shell.marks import unsure

TOKEN = re.compile(
    r"\s*(\d+#\w+|0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\*\*|<<=?|>>=?|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|[-+*/%()<>=!~&|^?:,])"
)
Operation = Callable[[int, int], int]
LEVELS: tuple[dict[str, Operation], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": lambda a, b: a | b},
    {"^": lambda a, b: a ^ b},
    {"&": lambda a, b: a & b},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<=": lambda a, b: int(a <= b),
        ">=": lambda a, b: int(a >= b),
        "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
    },
    {"<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63)},
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"*": lambda a, b: a * b, "/": lambda a, b: _divided(a, b), "%": lambda a, b: a - b * _divided(a, b)},
)
"""Binary operators, loosest first."""


def compute(text: str, get: Callable[[str], str], put: Callable[[str, str], None]) -> int | None:
    """The value of an expression; `get` and `put` read and set variables."""
    if unsure(text):
        return None
    try:
        return _Expression(text, get, put).value()
    except (ValueError, ZeroDivisionError, RecursionError):
        return None


class _Expression:
    """Raises ValueError for what is no arithmetic."""

    def __init__(self, text: str, get: Callable[[str], str], put: Callable[[str, str], None]) -> None:
        self.tokens, self.get, self.put = _tokens(text), get, put

    def value(self) -> int:
        """All of it; nothing is 0."""
        found = self._comma() if self.tokens else 0
        if self.tokens:
            raise ValueError("more than an expression")
        return found

    def _comma(self) -> int:
        found = self._assigned()
        while self._taken(","):
            found = self._assigned()
        return found

    def _assigned(self) -> int:
        sign = self.tokens[1] if len(self.tokens) > 1 else ""
        if not re.fullmatch(r"[A-Za-z_]\w*", self.tokens[0] if self.tokens else "") or not re.fullmatch(
            r"(<<|>>|[-+*/%&|^])?=", sign
        ):
            return self._choice()
        name = self.tokens.pop(0)
        self.tokens.pop(0)
        right = self._assigned()
        operations = {name: operation for level in LEVELS for name, operation in level.items()}
        found = operations[sign[:-1]](self._variable(name), right) if sign != "=" else right
        self.put(name, str(found))
        return found

    def _choice(self) -> int:
        condition = self._binary(0)
        if not self._taken("?"):
            return condition
        first = self._assigned()
        if not self._taken(":"):
            raise ValueError("a choice without its second half")
        second = self._assigned()
        return first if condition else second

    def _binary(self, level: int) -> int:
        if level == len(LEVELS):
            return self._power()
        left = self._binary(level + 1)
        while self.tokens and self.tokens[0] in LEVELS[level]:
            operation = LEVELS[level][self.tokens.pop(0)]
            left = _wrapped(operation(left, self._binary(level + 1)))
        return left

    def _power(self) -> int:
        base = self._unary()
        if not self._taken("**"):
            return base
        exponent = self._power()
        if not 0 <= exponent < 4096:
            raise ValueError("an exponent out of range")
        return _wrapped(base**exponent)

    def _unary(self) -> int:
        signs: dict[str, Callable[[int], int]] = {
            "-": lambda n: -n,
            "+": lambda n: n,
            "!": lambda n: int(not n),
            "~": lambda n: ~n,
        }
        if self.tokens and self.tokens[0] in ("++", "--"):
            step = 1 if self.tokens.pop(0) == "++" else -1
            return self._stepped(self.tokens.pop(0), step)
        if self.tokens and self.tokens[0] in signs:
            return signs[self.tokens.pop(0)](self._unary())
        return self._atom()

    def _atom(self) -> int:
        if not self.tokens:
            raise ValueError("an operand is missing")
        if self._taken("("):
            found = self._comma()
            if not self._taken(")"):
                raise ValueError("a parenthesis stays open")
            return found
        token = self.tokens.pop(0)
        if token[0].isdigit():
            return _number(token)
        if self.tokens and self.tokens[0] in ("++", "--"):
            step = 1 if self.tokens.pop(0) == "++" else -1
            return self._stepped(token, step) - step
        return self._variable(token)

    def _stepped(self, name: str, step: int) -> int:
        found = self._variable(name) + step
        self.put(name, str(found))
        return found

    def _variable(self, name: str) -> int:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(f"{name} is no variable")
        text = self.get(name)
        if unsure(text):
            raise ValueError(f"{name} is not known")
        return _Expression(text, self.get, self.put).value()

    def _taken(self, token: str) -> bool:
        taken = bool(self.tokens) and self.tokens[0] == token
        if taken:
            self.tokens.pop(0)
        return taken


def _tokens(text: str) -> list[str]:
    tokens, at, text = [], 0, text.replace('"', "").rstrip()
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"{text[at:]} is no arithmetic")
        tokens.append(found[1])
        at = found.end()
    return tokens


def _number(token: str) -> int:
    base, sign, digits = token.partition("#")
    if sign:
        return int(digits, int(base))
    octal = token.startswith("0") and token.isdigit() and len(token) > 1
    return int(token, 8 if octal else 0)


def _divided(a: int, b: int) -> int:
    """Towards zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63
