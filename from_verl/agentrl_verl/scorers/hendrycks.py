r"""MATH (lighteval/MATH, MATH-500): the last `\boxed{...}` against the truth, both in the data set's normal form."""

from typing import Any

from agentrl_verl.scorers import boxes
from agentrl_verl.scorers.latex import braced_fractions as fix_fracs
from agentrl_verl.scorers.latex import braced_roots as fix_sqrt
from agentrl_verl.scorers.latex import normal_form
from agentrl_verl.scorers.latex import slash_as_fraction as fix_a_slash_b
from agentrl_verl.scorers.latex import without_unit as remove_right_units

__all__ = [
    "compute_score",
    "compute_score_batched",
    "fix_a_slash_b",
    "fix_fracs",
    "fix_sqrt",
    "is_equiv",
    "last_boxed_only_string",
    "remove_boxed",
    "remove_right_units",
    "strip_string",
]

SPACED = "\\boxed "
"""A box without braces: up to a dollar sign."""


def compute_score(solution_str: str, ground_truth: Any) -> float:
    """1 when the content of the last box equals the truth; 0 for any other answer."""
    box = last_boxed_only_string(solution_str)
    if box is None or not (box.startswith((SPACED, "\\boxed{"))):
        return 0.0
    return float(is_equiv(remove_boxed(box), ground_truth))


def compute_score_batched(
    data_sources: list[str], solution_strs: list[str], ground_truths: list[Any], extra_infos: list[Any]
) -> list[float]:
    """`compute_score` of each, for the reward manager `batch`."""
    del data_sources, extra_infos
    return [compute_score(said, truth) for said, truth in zip(solution_strs, ground_truths, strict=True)]


def last_boxed_only_string(string: str) -> str | None:
    r"""The last `\boxed{...}`, else the last `\fbox{...}`; where `\boxed ` stands anywhere, what follows the last."""
    if SPACED in string:
        return SPACED + string.rpartition(SPACED)[2].partition("$")[0]
    return boxes.last_box(string, "\\boxed", "\\fbox")


def remove_boxed(s: str) -> str:
    """What stands in the box. Raises AssertionError on anything else."""
    if SPACED not in s:
        return boxes.content(s)
    if not s.startswith(SPACED):
        raise AssertionError(f"no \\boxed: {s[:80]!r}")
    return s[len(SPACED) :]


def is_equiv(str1: Any, str2: Any, verbose: bool = False) -> bool:
    """Whether two answers have one normal form; where one has none, whether they are one text."""
    if str1 is None or str2 is None:
        return str1 is str2
    try:
        return normal_form(str1) == normal_form(str2)
    except (ValueError, AttributeError):  # no normal form, or no text
        return bool(str1 == str2)


def strip_string(string: str) -> str:
    """The normal form. Raises ValueError."""
    return normal_form(string)
