"""Whether two expressions are equal as mathematics, by sympy in a process of its own.

The answer is the model's, and sympy's parser evaluates it as Python: hence the process, its limits, and the rule that
a text with more than two different letters is not read at all.
"""

import re
from functools import cache
from importlib.util import find_spec

from agentrl.core.errors import InfraError, UserError
from agentrl.core.isolated import IsolatedFunction

TIMEOUT = 10.0
"""Seconds for one comparison; one that takes longer finds no equality."""
LETTERS = 2
"""Different letters, those of sqrt and frac not counted, that an expression may have."""
REFUSED = re.compile(r"\^[{(]|\^[0-9]+\^|\^[0-9][0-9]+")
"""Powers that may take forever."""
WHOLE = re.compile(r"0|-?[1-9][0-9]*")


def equal(truth: str, answer: str) -> bool:
    """Whether the difference of two expressions simplifies to 0; False where they cannot be read. Raises UserError."""
    if WHOLE.fullmatch(truth) and WHOLE.fullmatch(answer):
        return truth == answer
    difference = f"({truth})-({answer})"
    if not readable(difference):
        return False
    try:
        return bool(_zero()(expression=difference.replace("^", "**")))
    except (TimeoutError, InfraError):  # too slow, or its process died of it
        return False


def readable(expression: str) -> bool:
    """Whether sympy is asked about it."""
    letters = {char for char in expression.replace("sqrt", "").replace("frac", "") if char.isalpha()}
    return len(letters) <= LETTERS and not REFUSED.search(expression)


@cache
def _zero() -> IsolatedFunction:
    if find_spec("sympy") is None:
        raise UserError("sympy is not installed; run: pip install 'agentrl[math]'")
    return IsolatedFunction("agentrl_verl.scorers.simplifying", "zero", timeout=TIMEOUT)
