"""Packing: aligned columns, rewards on the right tokens, no untrainable ledgers."""

import torch

from agentrl.training import pack_tokens
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.trajectory import Outcome, TurnReward
from tests.training.tiny import ledger, packed, trajectory


def rewards_by_token(batch):
    return {i: round(r, 6) for i, r in enumerate(batch.rewards.tolist()) if r}


def test_columns_are_the_ledgers_in_a_row():
    a, b = ledger(2, 3, seed=1), ledger(4, seed=2)
    batch = packed(trajectory(a), trajectory(b, uid="other"))
    assert batch.ids.tolist() == a.ids + b.ids
    assert batch.mask.tolist() == [bool(m) for m in a.mask + b.mask]
    assert batch.rollout_logprobs.tolist() == a.logprobs + b.logprobs
    assert batch.positions.tolist() == [*range(len(a)), *range(len(b))]
    assert batch.cu_seqlens.tolist() == [0, len(a), len(a) + len(b)]
    assert batch.cu_seqlens.dtype == torch.int32
    assert (batch.trajectory.tolist(), batch.group.tolist()) == ([0, 1], [0, 1])


def test_the_reward_is_on_the_last_model_token_not_on_the_last_token():
    cut = ledger(2, 3)
    cut.append_observation([5, 6, 7], Source.TEMPLATE, turn=1)
    batch = packed(trajectory(cut, reward=0.5))
    assert rewards_by_token(batch) == {3 + 2 + 2 + 3 - 1: 0.5}
    assert batch.mask[9]


def test_turn_rewards_are_on_their_turns_with_their_weights():
    earned = [TurnReward(0, 1.0, "tool"), TurnReward(0, 2.0, "interaction"), TurnReward(1, 4.0, "tool")]
    batch = packed(trajectory(ledger(2, 3), reward=8.0, turn_rewards=earned), tool=0.5, interaction=0.25)
    assert rewards_by_token(batch) == {4: 1.0, 9: 8.0 + 2.0}


def test_a_split_history_rewards_the_ledger_that_trains_the_turn():
    first = ledger(2)  # trains turn 0
    second = Ledger()  # its prompt shows turn 0 again, rewritten; trains turn 1
    second.append_prompt([9] * 6)
    second.append_model([4, 4], [-1.0, -1.0], turn=1, version=0)
    third = Ledger()  # cut off before the model said anything
    third.append_prompt([9] * 4)
    earned = [TurnReward(0, 0.1, "tool"), TurnReward(1, 0.2, "tool")]
    batch = packed(trajectory(first, second, third, reward=1.0, turn_rewards=earned), trajectory(ledger(1), sample=1))
    assert batch.trajectory.tolist() == [0, 0, 1]
    assert batch.group.tolist() == [0, 0, 0]
    assert batch.num_tokens == 5 + 8 + 4
    assert rewards_by_token(batch) == {4: 0.1, 12: 1.2, 16: 1.0}


def test_a_reward_of_an_untrained_turn_goes_to_the_turn_before():
    earned = [TurnReward(7, 0.5, "tool")]
    assert rewards_by_token(packed(trajectory(ledger(2, 2), reward=0.0, turn_rewards=earned))) == {8: 0.5}


def test_untrainable_trajectories_are_left_out_and_indices_stay():
    batch = packed(
        trajectory(ledger(2), reward=None),
        trajectory(ledger(2), uid="a"),
        trajectory(ledger(2), uid="a", outcome=Outcome.INFRA_ERROR),
        trajectory(ledger(), uid="a"),
        trajectory(ledger(2), uid="b", outcome=Outcome.MODEL_ERROR),
    )
    assert batch.trajectory.tolist() == [1, 4]
    assert batch.group.tolist() == [0, 1]


def test_nothing_trainable_gives_an_empty_batch():
    batch = packed(trajectory(ledger(2), reward=None))
    assert (batch.num_sequences, batch.num_tokens, batch.cu_seqlens.tolist()) == (0, 0, [0])
    assert batch.select([]).num_sequences == 0


def test_select_takes_every_column_along():
    batch = packed(*(trajectory(ledger(2 + i, seed=i), uid=str(i), reward=float(i)) for i in range(4)))
    batch.advantages = torch.arange(batch.num_tokens, dtype=torch.float32)
    picked = batch.select([2, 0])
    bounds = batch.cu_seqlens.tolist()
    tokens = [*range(bounds[2], bounds[3]), *range(bounds[0], bounds[1])]
    for name in ("ids", "positions", "mask", "rollout_logprobs", "rewards", "advantages"):
        assert getattr(picked, name).tolist() == getattr(batch, name)[tokens].tolist()
    assert picked.cu_seqlens.tolist() == [0, 7, 12]
    assert picked.trajectory.tolist() == [2, 0]
    assert picked.old_logprobs is None


def test_trajectories_truncated_at_the_length_limit_are_marked():
    cut, ended = trajectory(ledger(3), ledger(2), uid="a"), trajectory(ledger(4), uid="b")
    cut.finish = "length"
    assert pack_tokens([cut, ended]).truncated.tolist() == [True, True, False]
    assert packed(ended, cut).truncated.tolist() == [
        False,
        True,
        True,
    ]
