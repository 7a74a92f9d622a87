"""Estimators against their definitions, written as plain loops, and what must not go wrong."""

from statistics import mean, stdev

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentrl.algorithms import ADVANTAGES, estimate
from agentrl.algorithms.advantages import KEY
from agentrl.algorithms.advantages.scores import discounted_returns, temporal_differences
from agentrl.core.errors import UserError
from tests.algorithms.packings import Packing, pack_up, packings, padded, turns_of

GROUPED = [name for name, declared in ADVANTAGES.declared.items() if declared.marks.get("grouped")]


def scores_of(packing: Packing) -> dict[int, float]:
    owners = dict.fromkeys(packing.trajectory.tolist())
    return {t: sum(packing.rewards[i].item() for i in packing.tokens(t)) for t in owners}


def groups_of(packing: Packing) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for trajectory, group in zip(packing.trajectory.tolist(), packing.group.tolist(), strict=True):
        members = groups.setdefault(group, [])
        members += [] if trajectory in members else [trajectory]
    return groups


def silent(values: list[float]) -> bool:
    return len(values) < 2 or max(values) - min(values) < 1e-6


def by_score(packing: Packing, formula) -> torch.Tensor:
    """Advantages where `formula(scores of the group, index within it)` decides, token by token."""
    scores = scores_of(packing)
    expected = [0.0] * len(packing.rewards)
    for members in groups_of(packing).values():
        values = [scores[t] for t in members]
        for place, trajectory in enumerate(members):
            advantage = 0.0 if silent(values) else formula(values, place)
            for i in packing.tokens(trajectory):
                expected[i] = advantage if packing.mask[i] else 0.0
    return torch.tensor(expected)


def whitened(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = values[mask].tolist()
    if silent(kept):
        return torch.zeros_like(values)
    return torch.where(mask, (values - mean(kept)) / (stdev(kept) + 1e-6), 0.0)


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=2e-4, rtol=2e-4)


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


@pytest.mark.parametrize("norm_by_std", [True, False])
@given(packing=packings())
def test_passk_rewards_the_lead_of_the_best(packing, norm_by_std):
    def lead(scores, i):
        first, second = sorted(scores, reverse=True)[:2]
        return (first - second) / (stdev(scores) + 1e-6 if norm_by_std else 1) if scores[i] == first else 0.0

    torch.testing.assert_close(
        ADVANTAGES["grpo_passk"](*packing.columns, norm_by_std=norm_by_std), by_score(packing, lead)
    )


@given(packings())
def test_opo_weighs_its_baseline_by_length(packing):
    lengths = {t: sum(bool(packing.mask[i]) for i in packing.tokens(t)) for t in scores_of(packing)}
    scores, expected = scores_of(packing), torch.zeros(len(packing.rewards))
    for members in groups_of(packing).values():
        total = sum(lengths[t] for t in members)
        baseline = sum(lengths[t] * scores[t] for t in members) / max(total, 1)
        for t in members:
            for i in packing.tokens(t):
                if packing.mask[i] and not silent([scores[m] for m in members]):
                    expected[i] = scores[t] - baseline
    torch.testing.assert_close(ADVANTAGES["opo"](*packing.columns), expected)


@given(packings())
def test_gpg_makes_up_for_silent_groups(packing):
    scores = scores_of(packing)
    loud = [t for members in groups_of(packing).values() for t in members if not silent([scores[m] for m in members])]
    factor = len(scores) / max(len(loud), 1)
    expected = by_score(packing, lambda values, i: factor * (values[i] - mean(values)))
    torch.testing.assert_close(ADVANTAGES["gpg"](*packing.columns), expected)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@given(packing=packings())
@settings(max_examples=50)
def test_returns_are_discounted_per_model_token(packing, gamma):
    expected = torch.zeros(len(packing.rewards))
    for tokens in padded(packing, packing.rewards).values():
        for place, (i, _) in enumerate(tokens):
            expected[i] = sum(gamma**k * reward for k, (_, reward) in enumerate(tokens[place:]))
    columns = packing.rewards, packing.mask, packing.cu_seqlens, packing.trajectory
    torch.testing.assert_close(discounted_returns(*columns, gamma=gamma), expected)


def in_a_loop(packing: Packing, values: list[float], gamma: float, lam: float) -> list[float]:
    """Generalised advantages as their definition reads, a token at a time from the end."""
    rewards, mask, owners = packing.rewards.tolist(), packing.mask.tolist(), packing.trajectory.tolist()
    sums, ahead = [0.0] * len(rewards), {}
    for sequence in reversed(range(len(owners))):
        earned, following, running = ahead.get(owners[sequence], (0.0, 0.0, 0.0))
        for t in reversed(packing.spans[sequence]):
            earned += rewards[t]
            if mask[t]:
                running = earned + gamma * following - values[t] + gamma * lam * running
                sums[t], earned, following = running, 0.0, values[t]
        ahead[owners[sequence]] = earned, following, running
    return sums


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0), (0.0, 0.5)])
def test_long_uneven_trajectories_equal_the_loop(gamma, lam):
    generator = torch.Generator().manual_seed(7)
    lengths, owners = [3000, 1, 2, 700, 50, 1, 1234], [5, 0, 5, 2, 0, 9, 5]  # a trajectory's sequences may lie apart
    total = sum(lengths)
    rewards = torch.randn(total, generator=generator)
    mask = torch.rand(total, generator=generator) < 0.6
    mask[3000:3003] = False
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    packing = Packing(rewards, mask, bounds, torch.tensor(owners), torch.tensor(owners))
    values = torch.randn(total, generator=generator)
    columns = rewards, values, mask, bounds, packing.trajectory
    expected = torch.tensor(in_a_loop(packing, values.tolist(), gamma, lam))
    torch.testing.assert_close(temporal_differences(*columns, gamma=gamma, lam=lam), expected, atol=1e-5, rtol=1e-5)


@given(packings())
def test_reinforce_plus_plus_whitens_over_model_tokens(packing):
    columns = packing.rewards, packing.mask, packing.cu_seqlens, packing.trajectory
    returns = discounted_returns(*columns, gamma=0.9)
    close(ADVANTAGES["reinforce_plus_plus"](*packing.columns, gamma=0.9), whitened(returns, packing.mask))


@given(packings())
def test_reinforce_plus_plus_baseline_centres_each_group_and_whitens_all(packing):
    scores, centred = scores_of(packing), torch.zeros(len(packing.rewards))
    for members in groups_of(packing).values():
        for t in members:
            for i in packing.tokens(t):
                centred[i] = scores[t] - mean(scores[m] for m in members)
    close(ADVANTAGES["reinforce_plus_plus_baseline"](*packing.columns), whitened(centred, packing.mask))


@given(packings(), st.integers(0, 99))
def test_remax_subtracts_the_greedy_answers_score(packing, seed):
    per_group = torch.randn(99, generator=torch.Generator().manual_seed(seed))
    per_group[7] = torch.nan  # the second group's greedy rollout failed
    columns = packing.rewards, packing.mask, packing.cu_seqlens, packing.trajectory
    returns, expected = discounted_returns(*columns, gamma=1.0), torch.zeros(len(packing.rewards))
    for span, group in zip(packing.spans, packing.group.tolist(), strict=True):
        for i in span:
            if packing.mask[i] and group != 7:
                expected[i] = returns[i] - per_group[group]
    got = ADVANTAGES["remax"](*packing.columns, baselines=per_group[packing.group])
    torch.testing.assert_close(got, expected)


@given(packings())
def test_reward_and_none(packing):
    scores, expected = scores_of(packing), torch.zeros(len(packing.rewards))
    for trajectory, score in scores.items():
        for i in packing.tokens(trajectory):
            expected[i] = score if packing.mask[i] else 0.0
    torch.testing.assert_close(ADVANTAGES["reward"](*packing.columns), expected)
    torch.testing.assert_close(ADVANTAGES["none"](*packing.columns), packing.rewards * packing.mask)


def slow_gae(steps: list[tuple[float, float]], gamma: float, lam: float) -> list[float]:
    """Generalised advantages of one episode of (reward, value), each as its own double sum."""
    following = [value for _, value in steps[1:]] + [0.0]
    deltas = [reward + gamma * following[t] - value for t, (reward, value) in enumerate(steps)]
    return [sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(steps))]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0)])
@given(packing=packings(), seed=st.integers(0, 99))
def test_gae_steps_from_model_token_to_model_token(packing, seed, gamma, lam):
    values = torch.randn(len(packing.rewards), generator=torch.Generator().manual_seed(seed))
    raw = torch.zeros_like(values)
    for tokens in padded(packing, packing.rewards).values():
        places = [i for i, _ in tokens]
        episode = [(reward, values[i].item()) for i, reward in tokens]
        raw[places] = torch.tensor(slow_gae(episode, gamma, lam))
    advantages, returns = ADVANTAGES["gae"](*packing.columns, values=values, gamma=gamma, lam=lam)
    close(advantages, whitened(raw, packing.mask))
    close(returns, (raw + values) * packing.mask)


@given(packing=packings(), seed=st.integers(0, 99))
def test_turn_level_gae_takes_a_turn_for_a_step(packing, seed):
    values = torch.randn(len(packing.rewards), generator=torch.Generator().manual_seed(seed))
    raw, returns_expected = torch.zeros_like(values), torch.zeros_like(values)
    for turns in turns_of(packing).values():
        episode = [(sum(packing.rewards[i].item() for i in turn), values[turn[0]].item()) for turn in turns]
        for turn, advantage in zip(turns, slow_gae(episode, 0.9, 0.7), strict=True):
            raw[turn] = advantage
            returns_expected[turn] = advantage + values[turn[0]]
    advantages, returns = ADVANTAGES["gae_turn"](*packing.columns, values=values, gamma=0.9, lam=0.7)
    close(advantages, whitened(raw, packing.mask))
    close(returns, returns_expected)


@pytest.mark.parametrize("norm_by_std", [True, False])
@given(packing=packings())
def test_turn_level_grpo_compares_turn_with_turn(packing, norm_by_std):
    turns, expected = turns_of(packing), torch.zeros(len(packing.rewards))
    earned = {t: [sum(packing.rewards[i].item() for i in turn) for turn in made] for t, made in turns.items()}
    to_go = {t: [sum(0.9**k * r for k, r in enumerate(rs[n:])) for n in range(len(rs))] for t, rs in earned.items()}
    for members in groups_of(packing).values():
        for trajectory in members:
            for place, turn in enumerate(turns[trajectory]):
                peers = [(to_go[m] or [0.0])[min(place, max(len(to_go[m]) - 1, 0))] for m in members]
                gap = to_go[trajectory][place] - mean(peers)
                if not silent(peers):
                    expected[turn] = gap / (stdev(peers) + 1e-6) if norm_by_std else gap
    close(ADVANTAGES["grpo_turn"](*packing.columns, gamma=0.9, norm_by_std=norm_by_std), expected)


@given(packings())
def test_turn_level_grpo_without_turn_rewards_is_grpo(packing):
    last = torch.zeros_like(packing.rewards)
    for trajectory, score in scores_of(packing).items():
        made = [i for i in packing.tokens(trajectory) if packing.mask[i]]
        if made:
            last[made[-1]] = score
    columns = last, *packing.columns[1:]
    torch.testing.assert_close(ADVANTAGES["grpo_turn"](*columns), ADVANTAGES["grpo"](*columns))


def test_a_tools_reward_counts_for_the_turns_up_to_it():
    # two turns each; in the first trajectory the first turn's call earned something
    def two_turns(first: float, second: float):
        return [(0.0, False), (first, True), (0.0, False), (second, True)]

    packing = pack_up([(0, 0, two_turns(1.0, 0.0)), (1, 0, two_turns(0.0, 0.0))])
    assert ADVANTAGES["grpo_turn"](*packing.columns, norm_by_std=False).tolist() == [0, 0.5, 0, 0, 0, -0.5, 0, 0]
    assert ADVANTAGES["grpo"](*packing.columns, norm_by_std=False).tolist() == [0, 0.5, 0, 0.5, 0, -0.5, 0, -0.5]


@pytest.mark.prevents("returns stop at tool tokens; a reward on a masked token disappears")
def test_returns_pass_through_tool_tokens():
    # model, tool, tool, model with the reward: the first action is credited, and not discounted by the tool's tokens
    packing = pack_up([(0, 0, [(0.0, False), (0.0, True), (0.0, False), (0.0, False), (1.0, True)])])
    columns = packing.rewards, packing.mask, packing.cu_seqlens, packing.trajectory
    assert discounted_returns(*columns, gamma=0.5).tolist() == [0.0, 0.5, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("name", ["gae", "gae_turn", "reinforce_plus_plus", "grpo_turn"])
def test_a_reward_on_a_tools_token_is_not_lost(name):
    # the last token is not the model's, as where a user's reply closes the conversation
    on_tool = [[(0.0, False), (0.0, True), (0.0, False), (r, False)] for r in (1.0, 0.0)]
    on_model = [[(0.0, False), (r, True), (0.0, False), (0.0, False)] for r in (1.0, 0.0)]
    got = []
    for sequences in (on_tool, on_model):
        packing = pack_up([(i, 0, sequence) for i, sequence in enumerate(sequences)])
        got.append(estimate(name, *packing.columns, values=torch.zeros(8), gamma=1.0, lam=1.0)[0])
    assert got[0].tolist() == got[1].tolist()
    assert got[0][1] > 0


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


@given(packings(), st.data())
def test_gdpo_compares_each_part_of_the_reward_by_itself(packing, data):
    trajectories = [*dict.fromkeys(packing.trajectory.tolist())]
    values = st.lists(st.sampled_from([0.0, 1.0, -0.5, 3.0]), min_size=2, max_size=2)
    parts = {t: data.draw(values) for t in trajectories}
    weights = [1.0, 0.25]
    summed = dict.fromkeys(trajectories, 0.0)
    for part, weight in enumerate(weights):
        for members in groups_of(packing).values():
            given = [parts[t][part] for t in members]
            for t, value in zip(members, given, strict=True):
                summed[t] += 0.0 if silent(given) else weight * (value - mean(given)) / (stdev(given) + 1e-6)
    spread = torch.tensor([summed[t] for t in _owners(packing)], dtype=torch.float64)
    kept = spread[packing.mask]
    gap = float(kept.max() - kept.min()) if kept.numel() else 0.0
    assume(gap < 1e-9 or gap > 1e-2)  # between them lie sums that differ by rounding and by the epsilons only
    expected = torch.zeros(len(spread))
    if kept.numel() > 1 and gap > 1e-2:
        expected = ((spread - kept.mean()) * torch.rsqrt(kept.var() + 1e-8) * packing.mask).float()
    components = torch.tensor([parts[t] for t in packing.trajectory.tolist()])
    options = {"components": components, "component_weights": torch.tensor(weights)}
    got, _ = estimate("gdpo", *packing.columns, **options)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


def _owners(packing: Packing) -> list[int]:
    return [t for span, t in zip(packing.spans, packing.trajectory.tolist(), strict=True) for _ in span]


def columns_for(packing: Packing) -> dict[str, torch.Tensor]:
    return {"values": torch.zeros(len(packing.rewards)), "baselines": torch.zeros(len(packing.trajectory))}


@pytest.mark.prevents("a group whose rewards are all equal moves the policy")
@pytest.mark.parametrize("name", [*GROUPED, "reinforce_plus_plus"])
@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [1.0], [0.0, 0.0]])
def test_nothing_to_compare_gives_exactly_zero(name, rewards):
    packing = pack_up([(i, 0, [(0.0, False), (r, True)]) for i, r in enumerate(rewards)])
    assert estimate(name, *packing.columns)[0].tolist() == [0.0] * (2 * len(rewards))


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_every_estimator_keeps_the_contract(name):
    empty = pack_up([])
    assert estimate(name, *empty.columns, **columns_for(empty))[0].shape == (0,)
    packing = pack_up([(i, i // 2, [(0.0, False), (float(i), True), (0.0, False), (0.1, True)]) for i in range(4)])
    advantages, returns = estimate(name, *packing.columns, **columns_for(packing), gamma=0.9, lam=0.9)
    assert advantages.dtype == torch.float32
    assert advantages.isfinite().all()
    assert not advantages[~packing.mask].any()
    assert (returns is None) == ("values" not in ADVANTAGES.keywords(name, KEY))
    assert "arXiv" in ADVANTAGES[name].__doc__ or "Williams" in ADVANTAGES[name].__doc__ or name == "none"


def test_unknown_names_list_the_known_ones_and_columns_are_asked_for():
    packing = pack_up([(0, 0, [(0.0, False), (1.0, True)])])
    with pytest.raises(UserError, match=r"adv_estimator=ppo: .*choose gae, .*none"):
        estimate("ppo", *packing.columns)
    with pytest.raises(ValueError, match="remax needs baselines"):
        estimate("remax", *packing.columns, baselines=None)


@pytest.mark.parametrize("name", [name for name in GROUPED if name != "grpo_turn"])
def test_equal_scores_from_different_turns_have_no_advantage(name):
    # 10.1 and 20.2 on two turns are 30.3 on one; in float32 they differ by two millionths, which is no difference.
    rewards = torch.tensor([0.0, 10.1, 0.0, 20.2, 0.0, 0.0, 0.0, 30.3])
    mask = torch.tensor([False, True, False, True] * 2)
    bounds, own = torch.tensor([0, 4, 8], dtype=torch.int32), torch.tensor([0, 1])
    assert not ADVANTAGES[name](rewards, mask, bounds, own, torch.tensor([0, 0])).any()
