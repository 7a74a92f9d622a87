"""How old the tokens are that a step trains on.

A token's staleness is the number of updates between the weights that drew it and those that are trained.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from agentrl.trajectory.trajectory import Trajectory

Metrics = dict[str, float]


def staleness_metrics(trajectories: Sequence[Trajectory], version: int) -> Metrics:
    """`staleness/`: mean and maximum over the model's tokens, the share of tokens at each age, and the share of tokens
    in trajectories that several versions drew. `version`: of the policy that is trained. {} without tokens."""
    ages, mixed = Counter[int](), 0
    for trajectory in trajectories:
        own = _ages(trajectory, version)
        ages += own
        mixed += own.total() if len(own) > 1 else 0
    total = ages.total()
    if not total:
        return {}
    return {
        "staleness/mean": sum(age * tokens for age, tokens in ages.items()) / total,
        "staleness/max": float(max(ages)),
        "staleness/mixed": mixed / total,
        **{f"staleness/share_{age}": ages[age] / total for age in sorted(ages)},
    }


def _ages(trajectory: Trajectory, version: int) -> Counter[int]:
    """The model's tokens by their age."""
    ages = Counter[int]()
    for ledger in trajectory.ledgers:
        drawn = ledger.versions.numpy()[ledger.mask.numpy() != 0]
        found, tokens = np.unique(version - drawn, return_counts=True)
        ages.update(dict(zip(found.tolist(), tokens.tolist(), strict=True)))
    return ages
