"""Filters of groups: which prompts dynamic sampling keeps (`algorithm.filter_groups`).

A filter is a function of `values`, the metric of a group's scored trajectories. It tells whether the group is trained
on. It may name `trajectories`, all of the group, as a keyword.
"""

from collections.abc import Sequence
from math import isclose
from typing import Any

from agentrl.core.contracts import keywords_of
from agentrl.core.points import GROUP_FILTERS, group_filter

KEY = "algorithm.filter_groups.keep"


@group_filter("differing")
def differing(values: Sequence[float]) -> bool:
    """The values differ, so that a comparison says something (DAPO, arXiv 2503.14476)."""
    return any(not isclose(value, values[0], rel_tol=1e-9, abs_tol=1e-9) for value in values)


def keeps(name: str, values: Sequence[float], trajectories: Sequence[Any]) -> bool:
    """Whether the filter `name` keeps a group. Raises UserError for one that is not there or fails."""
    function = GROUP_FILTERS.get(name, KEY)
    given = {"trajectories": trajectories} if "trajectories" in keywords_of(function) else {}
    return bool(GROUP_FILTERS.make(name, KEY, values, **given))
