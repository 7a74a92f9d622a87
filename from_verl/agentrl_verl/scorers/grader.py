"""The grader of PRM800K (Lightman et al., arXiv 2305.20050): the same text in one of two normal forms, or equal to
sympy.

Two projects have a copy of it, which differ in details: verl for numina_*, mathruler for geometry3k.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentrl.core.errors import UserError
from agentrl_verl.scorers import algebra, latex

UNITS = ["degree", "cm", "centimeter", "meter", "mile", "second", "minute", "hour", "day", "week", "month", "year"]
UNITS += ["foot", "feet", "inch", "yard"]
TEXT = re.compile(r"\\text\{(.+?)\}$")
NAMES = [("\\%", "%"), ("\\$", "$"), ("$", ""), ("%", ""), (" or ", " , "), (" and ", " , ")]
NAMES += [("million", "*10^6"), ("billion", "*10^9"), ("trillion", "*10^12")]
SYMBOLS = str.maketrans({"√": "sqrt", "π": "pi", "∞": "inf", "∪": "U", "·": "*", "×": "*"})
THOUSANDS = re.compile(r"(\d),(\d\d\d)($|\D)")
MIXED = re.compile(r"([0-9]) +([0-9])")
FRACTION = re.compile(r"^-?[0-9]+.?/0*[1-9][0-9]*.?$")
BRACKETS = "()[]"
NEARLY = 1e-7
"""How far from a whole number a whole number may be."""


@dataclass(frozen=True)
class Variant:
    """Where the copies differ."""

    units: Sequence[str]
    """Words that are dropped."""
    percent: tuple[str, ...]
    """What the first normal form drops as a percent sign."""
    compact: bool
    """The second one has neither blanks nor braces."""


PRIME = Variant((*UNITS, "liter"), latex.PERCENT, compact=False)
MATHRULER = Variant(UNITS, ("\\%", "%"), compact=True)


def grade_answer(given_answer: str | None, ground_truth: str | None, variant: Variant = PRIME) -> bool:
    """Whether an answer is right. Raises UserError where a package is missing."""
    if given_answer is None:
        return False
    if ground_truth is None:
        return False
    if mathd(ground_truth, variant) == mathd(given_answer, variant):
        return True
    truth, answer = normal_form(ground_truth, variant), normal_form(given_answer, variant)
    return truth == answer or (bool(answer) and _same_parts(truth, answer))


def mathd(answer: str, variant: Variant = PRIME) -> str:
    """The normal form of the MATH data set; the text itself where it has none."""
    answer = answer.strip()
    if text := TEXT.match(answer):
        answer = text[1].strip()
    try:
        return latex.normal_form(answer, variant.percent)
    except ValueError:
        return answer


def normal_form(text: str, variant: Variant = PRIME) -> str:
    """What sympy may be able to read: no units, no LaTeX, small letters. Raises UserError."""
    if dressed := TEXT.match(text):
        text = dressed[1]
    for old, new in NAMES:
        text = text.replace(old, new)
    for unit in variant.units:
        text = re.sub(rf"{unit}(es)?s? *(\^[0-9]+)?", "", text)
    text = re.sub(r"\^ *\\circ", "", text)
    if text[:1] == "{" and text[-1] == "}":
        text = text[1:-1]
    text = _whole(re.sub(r",\\! *", "", text))
    text = MIXED.sub(r"\1+\2", re.sub("- *", "-", _plain(text) if "\\" in text else text))
    if variant.compact:
        text = text.replace(" ", "").replace("{", "").replace("}", "")
    text = text.lower()
    return str(int(float(text.replace(",", "")))) if whole(text) else text


def whole(text: str) -> bool:
    """Whether it is a whole number, with commas between its thousands or not."""
    return _near_whole(without_commas(text)) is not None


def without_commas(text: str) -> str:
    """Numbers without commas between their thousands."""
    while (shorter := THOUSANDS.sub(r"\1\2\3", text)) != text:
        text = shorter
    return text


def parts(text: str) -> list[str]:
    """The elements of a tuple, a list or an interval; of another text, the text itself."""
    text = without_commas(text)
    inner = text[1:-1]
    if inner and text[0] in BRACKETS and text[-1] in BRACKETS and not any(char in BRACKETS for char in inner):
        return [part.strip() for part in inner.split(",")]
    return [text] if text else []


def _same_parts(truth: str, answer: str) -> bool:
    truths, answers = parts(truth), parts(answer)
    if len(truths) != len(answers) or (len(truths) > 1 and (truth[0], truth[-1]) != (answer[0], answer[-1])):
        return False
    return all(map(_same_part, truths, answers))


def _same_part(truth: str, answer: str) -> bool:
    if FRACTION.search(truth) and FRACTION.search(answer):
        return truth == answer  # one that can be reduced is wrong
    return whole(truth) == whole(answer) and algebra.equal(truth, answer)


def _whole(text: str) -> str:
    number = _near_whole(text)
    return text if number is None else str(number)


def _near_whole(text: str) -> int | None:
    """The whole number that a text is nearly; None for any other text."""
    try:
        number = float(text)
        nearest = round(number)
    except (ValueError, OverflowError):  # no number; or one without end
        return None
    return nearest if abs(number - nearest) <= NEARLY else None


def _plain(text: str) -> str:
    """LaTeX as text; what cannot be read stays. Raises UserError."""
    spaced = text.replace("\\tfrac", "\\frac").replace("\\dfrac", "\\frac").replace("\\frac", " \\frac")
    try:
        return str(_reader().latex_to_text(spaced)).translate(SYMBOLS).strip()
    except UserError:
        raise
    except Exception:  # the model's text may raise anything in pylatexenc
        return text


@cache
def _reader() -> Any:
    try:
        from pylatexenc.latex2text import LatexNodes2Text
    except ModuleNotFoundError:
        raise UserError("pylatexenc is not installed; run: pip install 'agentrl[math]'") from None
    logging.getLogger("pylatexenc").setLevel(logging.ERROR)  # it warns of every text that is odd LaTeX
    return LatexNodes2Text()
