"""Finds final answers in text, and compares them."""

import re
from fractions import Fraction

BOXED = re.compile(r"\\boxed\s*\{")
MARKED = re.compile(r"####\s*([^\n]+)")
# A minus sign after a digit is a subtraction, not part of the number.
NUMBER = re.compile(r"(?<!\d)-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/0*[1-9]\d*)?")
LONGEST_NUMBER = 4000
"""Most characters of an answer that is compared as a number; longer ones are compared as text."""
DECORATION = str.maketrans("", "", "$%,")


def final_answer(text: str) -> str | None:
    r"""The last `\boxed{...}`, else what follows the last `####`, else the last number; None without any."""
    boxes = list(BOXED.finditer(text))
    if boxes:
        return _braced(text[boxes[-1].end() :])
    marked = MARKED.findall(text)
    if marked:
        return str(marked[-1]).strip()
    numbers = NUMBER.findall(text)
    return str(numbers[-1]).rstrip(",") if numbers else None


def same_answer(a: str, b: str) -> bool:
    """Whether two answers are equal as numbers (1,000.0 and 1000, 0.5 and 1/2), or else as words."""
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        return x == y
    return _words(a) == _words(b)


def _braced(text: str) -> str:
    """Up to the brace that closes the one before `text`."""
    depth = 1
    for i, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[:i].strip()
    return text.strip()


def _number(text: str) -> Fraction | None:
    text = text.strip().rstrip(".").translate(DECORATION).strip()
    # The pattern keeps exponents out: 1e999999999 as a fraction would fill the memory. Python reads 4,300 digits.
    return Fraction(text) if len(text) <= LONGEST_NUMBER and NUMBER.fullmatch(text) else None


def _words(text: str) -> str:
    return " ".join(text.casefold().strip().rstrip(".").split())
