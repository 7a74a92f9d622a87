"""Estimators against their definitions, written as plain loops, and what must not go wrong."""

from statistics import mean, stdev

import pytest
import torch
from hypothesis import given, settings

from agentrl.algorithms import ADVANTAGES
from agentrl.algorithms.advantages import discounted_returns
from tests.algorithms.packings import Packing, pack_up, packings


def by_score(packing: Packing, formula) -> torch.Tensor:
    """Advantages where `formula(score, scores of the group, index within it)` decides, token by token."""
    scores = {t: sum(packing.rewards[i].item() for i in packing.tokens(t)) for t in set(packing.trajectory.tolist())}
    group_of = dict(zip(packing.trajectory.tolist(), packing.group.tolist(), strict=True))
    expected = [0.0] * len(packing.rewards)
    for trajectory in scores:
        peers = [t for t in sorted(scores) if group_of[t] == group_of[trajectory]]
        values = [scores[t] for t in peers]
        silent = len(values) < 2 or max(values) - min(values) < 1e-6
        advantage = 0.0 if silent else formula(values, peers.index(trajectory))
        for i in packing.tokens(trajectory):
            expected[i] = advantage if packing.mask[i] else 0.0
    return torch.tensor(expected)


@given(packings())
def test_grpo_is_the_score_against_its_group(packing):
    expected = by_score(packing, lambda scores, i: (scores[i] - mean(scores)) / (stdev(scores) + 1e-6))
    torch.testing.assert_close(ADVANTAGES["grpo"](*packing.columns), expected)


@given(packings())
def test_grpo_without_std_only_subtracts_the_mean(packing):
    expected = by_score(packing, lambda scores, i: scores[i] - mean(scores))
    torch.testing.assert_close(ADVANTAGES["grpo"](*packing.columns, norm_by_std=False), expected)


@given(packings())
def test_rloo_compares_with_the_mean_of_the_others(packing):
    expected = by_score(packing, lambda scores, i: scores[i] - mean(scores[:i] + scores[i + 1 :]))
    torch.testing.assert_close(ADVANTAGES["rloo"](*packing.columns), expected)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@given(packing=packings())
@settings(max_examples=50)
def test_returns_are_discounted_per_model_token(packing, gamma):
    expected = torch.zeros(len(packing.rewards))
    for trajectory in set(packing.trajectory.tolist()):
        trained = [i for i in packing.tokens(trajectory) if packing.mask[i]]
        for place, i in enumerate(trained):
            expected[i] = sum(gamma**k * packing.rewards[j].item() for k, j in enumerate(trained[place:]))
    columns = packing.rewards, packing.mask, packing.cu_seqlens, packing.trajectory
    torch.testing.assert_close(discounted_returns(*columns, gamma=gamma), expected)


@given(packings())
def test_reinforce_plus_plus_whitens_over_model_tokens(packing):
    got = ADVANTAGES["reinforce_plus_plus"](*packing.columns, gamma=0.9)
    columns = packing.rewards, packing.mask, packing.cu_seqlens, packing.trajectory
    values = [v for v, m in zip(discounted_returns(*columns, gamma=0.9).tolist(), packing.mask, strict=True) if m]
    if len(values) > 1 and max(values) - min(values) > 1e-6:
        expected = torch.tensor([(v - mean(values)) / (stdev(values) + 1e-6) for v in values])
        torch.testing.assert_close(got[packing.mask], expected, atol=1e-4, rtol=1e-4)
    assert got.isfinite().all()
    assert not got[~packing.mask].any()


def test_returns_pass_through_tool_tokens():
    # model, tool, tool, model with the reward: the first action is credited, and not discounted by the tool's tokens
    packing = pack_up([(0, 0, [(0.0, False), (0.0, True), (0.0, False), (0.0, False), (1.0, True)])])
    columns = packing.rewards, packing.mask, packing.cu_seqlens, packing.trajectory
    assert discounted_returns(*columns, gamma=0.5).tolist() == [0.0, 0.5, 0.0, 0.0, 1.0]


def test_a_split_trajectory_counts_once():
    # one trajectory with score 1 in three sequences, two with score 0: the mean is 1/3, not 3/5
    part = [(0.0, False), (0.0, True)]
    split = [(0, 0, part), (0, 0, part), (0, 0, [(0.0, False), (1.0, True)])]
    packing = pack_up([*split, (1, 0, part), (2, 0, part)])
    got = ADVANTAGES["grpo"](*packing.columns, norm_by_std=False)
    torch.testing.assert_close(got[packing.mask], torch.tensor([2 / 3, 2 / 3, 2 / 3, -1 / 3, -1 / 3]))


def test_turn_rewards_add_up_to_the_score():
    # 0.1 + 0.2 + 0.3 over two turns is the same score as 0.6 at the end, wherever it was earned
    turns = [(0.0, False), (0.1, True), (0.0, False), (0.2, True), (0.3, True)]
    packing = pack_up([(0, 0, turns), (1, 0, [(0.0, False), (0.6, True)])])
    assert not ADVANTAGES["rloo"](*packing.columns).abs().max() > 1e-6
    assert not ADVANTAGES["grpo"](*packing.columns).abs().max() > 1e-2


@pytest.mark.parametrize("name", list(ADVANTAGES))
@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [1.0], [0.0, 0.0]])
def test_nothing_to_compare_gives_exactly_zero(name, rewards):
    packing = pack_up([(i, 0, [(0.0, False), (r, True)]) for i, r in enumerate(rewards)])
    assert ADVANTAGES[name](*packing.columns).tolist() == [0.0] * (2 * len(rewards))


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_an_empty_batch_stays_empty(name):
    empty = torch.zeros(0)
    ids = torch.zeros(0, dtype=torch.long)
    assert ADVANTAGES[name](empty, empty.bool(), torch.zeros(1, dtype=torch.int32), ids, ids).shape == (0,)
