"""How old the tokens are that a step trains on.

A token's staleness is the number of updates between the weights that drew it and those that are trained.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress

from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.trajectory import Trajectory

Metrics = dict[str, float]


def staleness_metrics(trajectories: Sequence[Trajectory], version: int) -> Metrics:
    """`staleness/`: mean and maximum over the model's tokens, the share of tokens at each age, and the share of tokens
    in trajectories that several versions drew. `version`: of the policy that is trained. {} without tokens."""
    ages, mixed = Counter[int](), 0
    for trajectory in trajectories:
        own = Counter(version - drawn for drawn in _versions(trajectory.ledgers))
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


def _versions(ledgers: Sequence[Ledger]) -> Iterable[int]:
    return (version for ledger in ledgers for version in compress(ledger.versions, ledger.mask))
