"""Rows without a ground truth, under a reward function that compares with one: each of their scores would be 0."""

import dis
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agentrl.core.errors import UserError
from agentrl.rewards.function import PLURALS, RewardFn
from agentrl.trajectory.row import Row

PARAMETERS = ("ground_truth", PLURALS["ground_truth"])
LIKELY = ("answer", "solution", "target", "label", "gold", "expected", "final_answer", "reference", *PARAMETERS)
"""Names that columns of ground truths have elsewhere."""


def check_truths(rows: Sequence[Row], functions: Iterable[RewardFn]) -> None:
    """Raises UserError where none of the `rows` has a ground truth, and a function reads it.

    A function whose parameter has a default value can do without. Rows that score themselves need none.
    """
    judged = [row for row in rows if not row.scores_itself]
    if not judged or any(row.ground_truth not in (None, "") for row in judged):
        return
    row = judged[0]
    for fn in functions:
        if reads_truth(fn.function):
            raise UserError(f"{row.uid} has no ground truth, and {fn.name} compares with it: {_advice(row)}")


def reads_truth(function: Callable[..., Any]) -> bool:
    """Whether a function needs its ground truth: it reads the parameter, which has no default value."""
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    needed = [
        name
        for name, parameter in inspect.signature(plain).parameters.items()
        if name in PARAMETERS and parameter.default is parameter.empty
    ]
    if code is None or not needed:
        return False
    read = [step.argval for step in dis.get_instructions(code) if step.opname.startswith("LOAD")]
    return any(name == value or (isinstance(value, tuple) and name in value) for name in needed for value in read)


def _advice(row: Row) -> str:
    there = [f"a column {name!r}" for name in row.others if name in LIKELY]
    there += [f"reward_model.{name}" for name in row.reward_model if name in LIKELY]
    there += [f"extra_info.{name}" for name in row.extra_info if name in LIKELY and name not in row.others]
    found = f"there is {' and '.join(there)}: rename it" if there else "write the right answer there"
    return f"no column 'ground_truth', and none in reward_model; {found}, or give the parameter a default (=None)"
