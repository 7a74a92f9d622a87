r"""The normal form in which answers to the MATH data set are compared (Hendrycks et al., arXiv 2103.03874).

Text is rewritten step by step; the order matters. `\frac12`, `\dfrac{1}{2}`, `1/2` and `0.5` have one form.
"""

import re

BEFORE_UNITS = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
)
PERCENT = ("\\\\%", "\\%")
"""What is dropped as a percent sign."""
LEADING_ZEROS = ((" .", " 0."), ("{.", "{0."))
UNIT = "\\text{ "
"""Begins a unit after a number."""
RATIO = re.compile(r"(0|-?[1-9][0-9]{0,4000})/(0|-?[1-9][0-9]{0,4000})")


def normal_form(text: str, percent: tuple[str, ...] = PERCENT) -> str:
    """The form to compare. Raises ValueError on text that has none: two units, or a command without its argument."""
    text = without_unit(_replaced(text, BEFORE_UNITS))
    text = _replaced(text, [(sign, "") for sign in percent])
    text = _replaced(text, LEADING_ZEROS)
    if not text:
        return text
    text = "0" + text if text[0] == "." else text
    text = braced_roots(_without_name(text)).replace(" ", "")
    text = braced_fractions(text)
    return slash_as_fraction("\\frac{1}{2}" if text == "0.5" else text)


def braced_roots(text: str) -> str:
    r"""`\sqrt3` as `\sqrt{3}`. Raises ValueError."""
    first, *rest = text.split("\\sqrt")
    if "" in rest:
        raise ValueError("\\sqrt of nothing")
    return "".join([first, *("\\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}") for part in rest)])


def braced_fractions(text: str) -> str:
    r"""`\frac12` and `\frac1{2}` as `\frac{1}{2}`; a text with a fraction of one character stays. Raises ValueError."""
    first, *rest = text.split("\\frac")
    made = first
    for part in rest:
        if not part:
            raise ValueError("\\frac of nothing")
        if part[0] != "{" and len(part) < 2:
            return text
        made += "\\frac" + _braced_pair(part)
    return made


def slash_as_fraction(text: str) -> str:
    r"""`1/2`, of whole numbers and nothing else, as `\frac{1}{2}`."""
    ratio = RATIO.fullmatch(text)
    return f"\\frac{{{ratio[1]}}}{{{ratio[2]}}}" if ratio else text


def without_unit(text: str) -> str:
    r"""The text before `\text{ `. Raises ValueError where it stands twice."""
    if text.count(UNIT) > 1:
        raise ValueError("two units")
    return text.partition(UNIT)[0]


def _replaced(text: str, pairs: "tuple[tuple[str, str], ...] | list[tuple[str, str]]") -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def _without_name(text: str) -> str:
    """`x = 5` as ` 5`: a name of at most two characters before the only equals sign."""
    name, _, value = text.partition("=")
    return value if text.count("=") == 1 and len(name) <= 2 else text


def _braced_pair(part: str) -> str:
    if part[0] == "{":
        return part
    top, bottom = part[0], part[1]
    return f"{{{top}}}" + (part[1:] if bottom == "{" else f"{{{bottom}}}{part[2:]}")
