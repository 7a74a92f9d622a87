"""From rewards to advantages, as the settings say; and PF-PPO's draw."""

from dataclasses import replace

import pytest
import torch

from agentrl.algorithms import estimate
from agentrl.config.schema import PFPPO, Algorithm, KLControl, Reward
from agentrl.config.schema.reward import RewardTerm
from agentrl.core.errors import UserError
from agentrl.training import ComputeAdvantages, pack_tokens
from agentrl.training.update.advantages import _of_first_sides
from agentrl.trajectory.trajectory import Outcome
from tests.training.tiny import ledger, packed, trajectory


def batch_of(*rewards: float):
    """Two prompts; each prompt's first trajectory owns two sequences."""
    members = []
    for i, reward in enumerate(rewards):
        ledgers = [ledger(3, 2, seed=i)] + ([ledger(4, seed=99 + i)] if i % 2 == 0 else [])
        members.append(trajectory(*ledgers, uid=f"row{i // 2}", sample=i % 2, reward=reward))
    batch = packed(*members)
    draw = torch.Generator().manual_seed(0)
    batch.old_logprobs = -torch.rand(batch.num_tokens, generator=draw) * batch.mask
    batch.ref_logprobs = -torch.rand(batch.num_tokens, generator=draw) * batch.mask
    return batch


def test_the_estimator_gets_what_it_reads():
    batch = batch_of(1.0, 0.0, 0.5, 0.5)
    batch.values = torch.rand(batch.num_tokens, generator=torch.Generator().manual_seed(1)) * batch.mask
    weigh = ComputeAdvantages(Algorithm(adv_estimator="gae", gamma=0.9, lam=0.8), seed=0)
    assert weigh.estimate(batch) == {}
    columns = batch.rewards, batch.mask, batch.cu_seqlens, batch.trajectory, batch.group
    advantages, returns = estimate("gae", *columns, values=batch.values, gamma=0.9, lam=0.8)
    assert batch.advantages.equal(advantages)
    assert batch.returns.equal(returns)


def test_dr_grpo_is_a_switch():
    with_std, without = batch_of(1.0, 0.0, 0.5, 0.5), batch_of(1.0, 0.0, 0.5, 0.5)
    ComputeAdvantages(Algorithm(), seed=0).estimate(with_std)
    ComputeAdvantages(Algorithm(norm_adv_by_std_in_grpo=False), seed=0).estimate(without)
    assert without.advantages.max().item() == pytest.approx(0.5)
    assert with_std.advantages.max().item() == pytest.approx(0.5 / 0.5**0.5, rel=1e-4)


def test_the_kl_is_taken_off_the_rewards_and_steers_its_weight():
    batch = batch_of(1.0, 0.0, 0.5, 0.5)
    kl_ctrl = KLControl(type="adaptive", kl_coef=0.5, target_kl=1e-6, horizon=100)
    weigh = ComputeAdvantages(Algorithm(adv_estimator="none", use_kl_in_reward=True, kl_ctrl=kl_ctrl), seed=0)
    metrics = weigh.estimate(batch)
    expected = (batch.rewards - 0.5 * (batch.old_logprobs - batch.ref_logprobs)) * batch.mask
    torch.testing.assert_close(batch.advantages, expected)
    assert metrics["actor/reward_kl_coef"] == 0.5
    assert weigh.kl.value != 0.5


def test_without_pf_ppo_the_batch_stays():
    batch = batch_of(1.0, 0.0)
    assert ComputeAdvantages(Algorithm(), seed=0).filtered(batch, 1) is batch


def test_pf_ppo_draws_whole_trajectories_and_renumbers_them():
    batch = batch_of(1.0, 0.0, 0.0, 3.0)
    weigh = ComputeAdvantages(Algorithm(use_pf_ppo=True, pf_ppo=PFPPO("max_min")), seed=0)
    weigh.estimate(batch)
    drawn = weigh.filtered(batch, 1)
    assert drawn.trajectory.unique().tolist() == [0, 1, 2, 3]  # as many as there were
    spans, whole = drawn.ids.split(drawn.lengths), batch.ids.split(batch.lengths)
    for number in range(4):
        mine = [spans[i].tolist() for i in range(drawn.num_sequences) if drawn.trajectory[i] == number]
        origin = next(i for i in range(batch.num_sequences) if whole[i].tolist() == mine[0])
        owner = batch.trajectory[origin].item()
        assert owner != 0  # 1.0 is neither the best nor the worst
        assert mine == [whole[i].tolist() for i in range(batch.num_sequences) if batch.trajectory[i] == owner]


def test_pf_ppo_scores_a_game_by_its_first_side():
    one = batch_of(1.0).select([0, 0, 0])
    sides = {"trajectory": torch.tensor([0, 0, 1]), "side": torch.tensor([0, 1, 1])}
    game = replace(one, **sides, rewards=torch.ones(one.num_tokens))
    scores = [part.sum().item() for part in _of_first_sides(game).split(game.lengths)]
    assert scores == [game.lengths[0], 0, game.lengths[2]]


def test_pf_ppos_draw_depends_on_seed_and_step_alone():
    weigh = ComputeAdvantages(Algorithm(use_pf_ppo=True, pf_ppo=PFPPO("max_random")), seed=0)
    batch = batch_of(*range(8))
    weigh.estimate(batch)
    draws = [weigh.filtered(batch, step).ids.tolist() for step in (1, 1, 2)]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


def test_a_prompt_without_a_baseline_gets_no_advantages():
    trajectories = [trajectory(ledger(2, seed=i), uid=row) for i, row in enumerate("ab")]
    compute = ComputeAdvantages(Algorithm(adv_estimator="remax"), seed=0)
    batch, _ = compute(pack_tokens(trajectories), trajectories, {"a": 0.25}, 1)
    assert [bool(column.any()) for column in batch.advantages.split(batch.lengths)] == [True, False]


def of_parts(*parts: dict[str, float], functions=(), **settings):
    """Advantages of one prompt's trajectories whose reward functions gave `parts`, each on its first model token."""
    trajectories = [trajectory(ledger(2, seed=i), uid="a", reward=0.0) for i in range(len(parts))]
    for one, extra in zip(trajectories, parts, strict=True):
        one.reward_extra |= extra
    reward = Reward(functions={name: RewardTerm(weight=weight) for name, weight in functions})
    compute = ComputeAdvantages(Algorithm(adv_estimator="gdpo", **settings), reward, seed=0)
    batch, _ = compute(pack_tokens(trajectories), trajectories, None, 1)
    return [column[column != 0].mean().item() for column in batch.advantages.split(batch.lengths)]


def test_gdpo_reads_the_values_of_reward_functions():
    parts = [{"right": 1.0, "short": 0.0}, {"right": 0.0, "short": 0.1}, {"right": 0.0, "short": 0.0}]
    both = of_parts(*parts, gdpo_reward_keys=["right", "short"])
    assert both[0] == pytest.approx(both[1], abs=1e-4)  # a tenth counts as much as a whole
    more = of_parts(*parts, gdpo_reward_keys=["right", "short"], gdpo_reward_weights=[1.0, 0.2])
    assert more[0] > more[1]
    assert of_parts(*parts, functions=[("right", 1.0), ("short", 0.2)]) == more
    without_verdict = of_parts(*parts[:2], {}, gdpo_reward_keys=["right", "short"])
    assert without_verdict == both
    with pytest.raises(UserError, match="gave no number 'brief', but right, short"):
        of_parts(*parts, gdpo_reward_keys=["right", "brief"])


def test_a_failed_baseline_gives_no_advantages():
    batch = batch_of(1.0, 0.0, 0.5, 0.5)
    batch = replace(batch, baselines=torch.where(batch.group == 0, torch.nan, 0.2))
    ComputeAdvantages(Algorithm(adv_estimator="remax"), seed=0).estimate(batch)
    advantages = batch.advantages.split(batch.lengths)
    for i, group in enumerate(batch.group.tolist()):
        assert bool(advantages[i].any()) == (group == 1)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus"])
def test_truncated_trajectories_leave_the_loss_and_stay_in_the_statistics(estimator):
    whole, masked = batch_of(1.0, 0.0, 0.5, 0.25), batch_of(1.0, 0.0, 0.5, 0.25)
    cut = torch.zeros(whole.num_sequences, dtype=torch.bool)
    cut[0] = True
    for batch, on in ((whole, False), (masked, True)):
        batch.truncated = cut
        ComputeAdvantages(Algorithm(adv_estimator=estimator, mask_truncated_completions=on), seed=0).estimate(batch)
    tokens = torch.arange(whole.num_tokens) < whole.lengths[0]
    assert whole.advantages[tokens].any()
    assert not masked.advantages[tokens].any()
    assert not masked.mask[tokens].any()
    assert masked.advantages[~tokens].equal(whole.advantages[~tokens])
    assert masked.mask[~tokens].equal(whole.mask[~tokens])


def test_groups_below_the_least_size_are_left_out():
    lost = {"outcome": Outcome.INFRA_ERROR}
    members = [
        trajectory(ledger(3, seed=i), uid=uid, sample=i, reward=float(i), **more)
        for i, (uid, more) in enumerate([("a", {}), ("a", lost), ("b", {}), ("b", {})])
    ]
    whole = ComputeAdvantages(Algorithm(), seed=0)(pack_tokens(members), members, None, 1)
    assert (whole[0].num_sequences, whole[1]) == (3, {})
    left, metrics = ComputeAdvantages(Algorithm(min_group_size=2), seed=0)(pack_tokens(members), members, None, 1)
    assert (left.trajectory.tolist(), left.group.tolist()) == ([2, 3], [0, 0])
    assert metrics == {"rollout/small_groups": 1.0}
    none, metrics = ComputeAdvantages(Algorithm(min_group_size=3), seed=0)(pack_tokens(members), members, None, 1)
    assert (none.num_sequences, metrics) == (0, {"rollout/small_groups": 2.0})
