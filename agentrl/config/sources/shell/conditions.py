"""`test`, `[ ... ]` and `[[ ... ]]`.

Invariant: None where the answer depends on what is not known. Files are not looked for: the check may run elsewhere.
"""

import re
from collections.abc import Callable, Sequence

from agentrl.config.sources.shell.marks import unsure
from agentrl.config.sources.shell.patterns import matches

Answer = bool | None
NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
TEXTS = ("=", "==", "!=", "<", ">", "=~")
SIGNS = (*NUMBERS, *TEXTS, "-nt", "-ot", "-ef")


class Condition:
    """Words of a test. `isset` says whether a variable is set; `number` computes."""

    def __init__(
        self, words: Sequence[str], isset: Callable[[str], bool], number: Callable[[str], int | None], *, shapes: bool
    ) -> None:
        self.words, self.isset, self.number, self.shapes = list(words), isset, number, shapes
        self.groups: list[str] | None = None
        """What `=~` found."""

    def value(self) -> Answer:
        """Whether it holds; nothing does not."""
        return self._or() if self.words else False

    def _or(self) -> Answer:
        found = self._and()
        while self.words and self.words[0] in ("||", "-o"):
            self.words.pop(0)
            found = _either(found, self._and())
        return found

    def _and(self) -> Answer:
        found = self._one()
        while self.words and self.words[0] in ("&&", "-a"):
            self.words.pop(0)
            found = _not(_either(_not(found), _not(self._one())))
        return found

    def _one(self) -> Answer:
        if len(self.words) > 1 and self.words[0] == "!":
            self.words.pop(0)
            return _not(self._one())
        if len(self.words) > 2 and self.words[1] in SIGNS:
            left, sign, right = self.words[:3]
            del self.words[:3]
            return self._compared(left, sign, right)
        if len(self.words) > 2 and self.words[0] == "(":
            self.words.pop(0)
            found = self._or()
            del self.words[:1]
            return found
        first = self.words.pop(0)
        if self.words and re.fullmatch(r"-[a-zA-Z]", first) and self.words[0] not in ("&&", "||", ")"):
            return self._single(first, self.words.pop(0))
        return None if unsure(first) else bool(first)

    def _single(self, sign: str, word: str) -> Answer:
        if sign == "-v":
            return self.isset(word)
        if sign not in ("-z", "-n") or unsure(word):
            return None
        return bool(word) == (sign == "-n")

    def _compared(self, left: str, sign: str, right: str) -> Answer:
        if unsure(left + right):
            return None
        if sign in NUMBERS:
            numbers = self.number(left), self.number(right)
            return None if None in numbers else NUMBERS[sign](*numbers)  # type: ignore[arg-type]
        if sign == "=~":
            return self._searched(left, right)
        same = matches(left, right) if self.shapes else left == right
        answers = {"=": same, "==": same, "!=": not same, "<": left < right, ">": left > right}
        return answers.get(sign)

    def _searched(self, text: str, expression: str) -> Answer:
        classes = expression.replace("[:space:]", r"\s").replace("[:digit:]", "0-9").replace("[:alnum:]", "a-zA-Z0-9")
        try:
            found = re.search(classes, text)
        except re.error:
            return None
        self.groups = [found[0], *(group or "" for group in found.groups())] if found else []
        return found is not None


def _not(answer: Answer) -> Answer:
    return None if answer is None else not answer


def _either(first: Answer, second: Answer) -> Answer:
    if first or second:
        return True
    return None if None in (first, second) else False
