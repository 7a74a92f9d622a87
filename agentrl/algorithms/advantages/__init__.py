"""Advantage estimators: from token rewards to token advantages, over packed sequences.

All take `(rewards f32 [T], mask bool [T], cu_seqlens int32 [B+1], trajectory int64 [B], group int64 [B])` and
further inputs as keyword-only parameters. They return advantages f32 [T], 0 off the mask, or (advantages, returns).
Invariants:
- a trajectory's score is the sum of its token rewards over all of its sequences;
- statistics are over the trajectories in the batch; dropped ones do not count;
- scores that differ only by the rounding of token rewards are equal;
- where the mark `lines` says so, an entry may stand for several tokens: their number makes no difference.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.own import checked_column
from agentrl.core.contracts import keywords_of
from agentrl.core.errors import UserError
from agentrl.core.points import ADVANTAGES

KEY = "algorithm.adv_estimator"

Estimator = Callable[..., Tensor | tuple[Tensor, Tensor]]


def estimate(
    name: str, rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, group: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """(advantages f32 [T], returns f32 [T] where the estimator uses a critic) by the estimator `name`.

    Of `options` it gets those it reads. Raises UserError for an unknown name and for one of the user's own
    that fails, ValueError for a missing column.
    """
    entry = ADVANTAGES.entry(name, KEY)
    known = keywords_of(entry.value)
    wanted = {key: value for key, value in options.items() if key in known}
    if missing := [key for key, value in wanted.items() if value is None]:
        raise ValueError(f"{name} needs {missing[0]}")
    columns, where = (rewards, mask, cu_seqlens, trajectory, group), f"{KEY}={name}"
    with torch.no_grad():
        result: Any = entry.call(where, *(column.clone() for column in columns), **wanted)
    both = result if isinstance(result, tuple) else (result, None)
    return both if entry.built_in else _checked(both, rewards, mask, where)


def _checked(both: tuple[Any, ...], rewards: Tensor, mask: Tensor, where: str) -> tuple[Tensor, Tensor | None]:
    """The results of a user's estimator."""
    if len(both) != 2:
        raise UserError(f"{where}: it gave {len(both)} values; return advantages, or (advantages, returns)")
    advantages = checked_column(both[0], rewards, mask, where=where, what="advantages")
    if both[1] is None:
        return advantages, None
    return advantages, checked_column(both[1], rewards, mask, where=where, what="returns")
