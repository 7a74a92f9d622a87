"""Games in which the policy plays several sides: each side's rewards, against a reference in plain Python."""

from collections.abc import Sequence
from random import Random
from statistics import mean, stdev

import pytest
import torch

from agentrl.config.schema import Algorithm, Reward
from agentrl.core.errors import UserError
from agentrl.training import ComputeAdvantages, pack_tokens
from agentrl.training.batches.packing import total_rewards
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.trajectory import Trajectory, TurnReward
from tests.training.tiny import trajectory


def side(number: int, *turns: int) -> Ledger:
    """The ledger of a side with those turns, two tokens each."""
    ledger = Ledger(side=number)
    ledger.append_prompt([5, 6])
    for turn in turns:
        ledger.append_model([7, 8], [-0.5, -0.5], turn=turn, version=0)
        ledger.append_observation([9], 3, turn=turn)
    return ledger


def games(prompts: int = 3, samples: int = 4) -> list[Trajectory]:
    """Games of two sides that take turns; now and then a side is one ledger more, or never has its turn."""
    draw, made = Random(0), []
    for uid in map(str, range(prompts)):
        for sample in range(samples):
            ledgers = [side(0, 0, 2), side(1, 1, 3)]
            if sample == 1:
                ledgers.append(side(0, 4))
            if sample == 2:
                ledgers = ledgers[:1]
            game = trajectory(*ledgers, uid=uid, sample=sample)
            game.side_rewards = [draw.choice([-1.0, 0.0, 1.0]), draw.random()]
            game.reward = game.side_rewards[0]
            game.turn_rewards = [TurnReward(turn, draw.random(), "environment") for turn in (0, 1)][: len(ledgers)]
            made.append(game)
    return made


def scores(game: Trajectory) -> dict[int, float]:
    """All that each side that had a turn got."""
    found = {ledger.side: game.side_rewards[ledger.side] for ledger in game.ledgers}
    for turn in game.turn_rewards:
        found[turn.turn] += turn.value  # sides 0 and 1 have turns 0 and 1
    return found


def reference(trajectories: Sequence[Trajectory]) -> list[float]:
    """The advantage of each token: GRPO among the same side of a prompt's games."""
    tokens = []
    for game in trajectories:
        for ledger in game.ledgers:
            others = [scores(other) for other in trajectories if other.row.uid == game.row.uid]
            same = [found[ledger.side] for found in others if ledger.side in found]
            advantage = (scores(game)[ledger.side] - mean(same)) / (stdev(same) + 1e-6)
            tokens += [advantage * bool(m) for m in ledger.mask]
    return tokens


def test_each_side_is_compared_with_the_same_side() -> None:
    made = games()
    batch, _ = ComputeAdvantages(Algorithm(), seed=0)(pack_tokens(made), made, None, 1)
    torch.testing.assert_close(batch.advantages, torch.tensor(reference(made)))


def test_the_return_of_a_side_has_nothing_of_the_other() -> None:
    game = trajectory(side(0, 0, 2), side(1, 1, 3))
    game.side_rewards, game.reward = [1.0, -1.0], 1.0
    game.turn_rewards = [TurnReward(1, 0.5, "environment")]
    batch = pack_tokens([game])
    batch.values = torch.zeros(batch.num_tokens)
    batch, _ = ComputeAdvantages(Algorithm(adv_estimator="gae", gamma=1, lam=1), seed=0)(batch, [game], None, 1)
    assert {i: r for i, r in enumerate(batch.rewards.tolist()) if r} == {6: 1.0, 11: 0.5, 14: -1.0}
    assert batch.returns[batch.mask].tolist() == [1.0] * 4 + [-0.5] * 2 + [-1.0] * 2
    assert total_rewards(game, Reward().turn_weights) == [1.0, -0.5]


def test_the_last_ledger_is_the_last_of_each_side() -> None:
    made = games(prompts=1)
    batch, _ = ComputeAdvantages(Algorithm(ledger_credit="last"), seed=0)(pack_tokens(made), made, None, 1)
    trained = [bool(sequence.any()) for sequence in batch.mask.split(batch.lengths)]
    assert trained == [True, True, False, True, True, True, True, True]


def test_a_baseline_of_the_prompt_fits_no_side() -> None:
    made = games(prompts=1)
    with pytest.raises(UserError, match="several sides of a game: take grpo"):
        ComputeAdvantages(Algorithm(adv_estimator="remax"), seed=0)(pack_tokens(made), made, {"0": 0.0}, 1)
