"""How a rollout's advantage falls on its ledgers, against a reference in plain Python."""

from collections.abc import Sequence
from statistics import mean, stdev

import pytest
import torch

from agentrl.config.schema import Algorithm
from agentrl.core.errors import UserError
from agentrl.training import ComputeAdvantages, pack_tokens
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.trajectory import Trajectory
from tests.training.tiny import ledger, trajectory

WEIGHTS = [0.5, 0.0, 2.0]


def rollouts() -> list[Trajectory]:
    """Two prompts, three rollouts each; one has three ledgers, and one a ledger without a token of the model's."""
    empty = Ledger()
    empty.append_prompt([5, 6])
    forked = trajectory(ledger(3, 2), ledger(4), ledger(1, 1), uid="a", sample=0, reward=1.0)
    forked.reward_extra["ledger_weights"] = WEIGHTS
    begun = trajectory(ledger(2), empty, ledger(5), uid="b", sample=0, reward=0.25)
    others = [trajectory(ledger(2, i), uid="a", sample=i, reward=0.5 * (i - 1)) for i in (1, 2)]
    return [forked, *others, begun, *(trajectory(ledger(3), uid="b", sample=i, reward=1.0 / i) for i in (1, 2))]


def reference(trajectories: Sequence[Trajectory], credit: str) -> list[tuple[float, bool]]:
    """(advantage, whether it is trained on) of each token: GRPO, one vote for each rollout."""
    tokens = []
    for one in trajectories:
        scores = [other.reward for other in trajectories if other.row.uid == one.row.uid]
        advantage = (one.reward - mean(scores)) / (stdev(scores) + 1e-6)
        weights = one.reward_extra.get("ledger_weights", [1.0] * len(one.ledgers))
        for i, own in enumerate(one.ledgers):
            if not any(own.mask):
                continue
            last = i == max(j for j, other in enumerate(one.ledgers) if any(other.mask))
            weight = {"all": 1.0, "last": float(last), "weighted": weights[i]}[credit]
            tokens += [(advantage * weight * bool(m), bool(m) and weight != 0) for m in own.mask]
    return tokens


@pytest.mark.parametrize("credit", ["all", "last", "weighted"])
def test_the_advantage_of_each_ledger(credit: str) -> None:
    made = rollouts()
    batch, _ = ComputeAdvantages(Algorithm(ledger_credit=credit), seed=0)(pack_tokens(made), made, None, 1)
    expected = reference(made, credit)
    torch.testing.assert_close(batch.advantages, torch.tensor([value for value, _ in expected]))
    assert batch.mask.tolist() == [kept for _, kept in expected]


@pytest.mark.parametrize("given", [[1.0], 2.0, "1 1 1", [1.0, None, 1.0], [[1], [1], [1]], {"3": 1.0}, {"0": {"a": 1}}])
def test_weights_that_do_not_fit_are_named(given: object) -> None:
    made = rollouts()
    made[0].reward_extra["ledger_weights"] = given
    compute = ComputeAdvantages(Algorithm(ledger_credit="weighted"), seed=0)
    with pytest.raises(UserError, match=r"as ledger_weights for the 3 ledgers of 0/a/0: give a list with a number"):
        compute(pack_tokens(made), made, None, 1)
