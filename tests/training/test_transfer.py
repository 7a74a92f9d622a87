"""A rank gets the batch that one process packs, though only outlines of its trajectories pass through the process that
splits it; and lines say as much as tokens."""

import pickle
import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.algorithms import ADVANTAGES, estimate
from agentrl.config.schema import Algorithm, Config, Reward
from agentrl.training import Batch, ComputeAdvantages, pack_tokens
from agentrl.training.batches.outline import BatchOutline
from agentrl.training.batches.packing import advantages_by_key, pack_lines, total_rewards
from agentrl.training.batches.transfer import OF_TOKENS, Share, computed_columns, with_computed
from agentrl.training.update.advantages import columns_read
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.store import Stored, stored
from agentrl.trajectory.trajectory import Outcome, ToolCallRecord, Trajectory, TurnReward
from tests.training.tiny import MemoryStore, trajectory

STORE = MemoryStore()
LINES = [name for name in ADVANTAGES.declared if ADVANTAGES.mark(name, "lines", "")]


def made_ledger(draw: random.Random, first: int) -> Ledger:
    """Some turns, interrupted by updates of the weights and by tools."""
    ledger = Ledger(side=first % 2)
    ledger.append_prompt(draw.choices(range(50), k=draw.randint(1, 3)))
    for turn in range(first, first + draw.randint(1, 4)):
        n = draw.randint(1, 5)
        versions = sorted(draw.choices(range(3), k=n))
        experts = np.full((len(ledger) + n - 1 - ledger.routed, 2, 1), turn, np.uint8)
        ledger.append_model(
            draw.choices(range(50), k=n),
            [-draw.random() for _ in range(n)],
            turn=turn,
            version=versions,
            experts=experts,
        )
        ledger.append_observation(draw.choices(range(50), k=draw.randint(1, 3)), Source.TOOL, turn=turn)
    ledger.check()
    return ledger


def made(seed: int, sides: bool = False) -> list[Trajectory]:
    """Groups of three; some lost, some without a score, some in several ledgers."""
    draw, found = random.Random(seed), []
    for i in range(12):
        ledgers = [made_ledger(draw, 5 * j) for j in range(draw.randint(1, 2))]
        lost = Outcome.INFRA_ERROR if draw.random() < 0.1 else Outcome.OK
        earned = [TurnReward(draw.randint(0, 6), draw.random(), "tool") for _ in range(draw.randint(0, 2))]
        reward = None if draw.random() < 0.1 else draw.random()
        each = trajectory(*ledgers, uid=f"r{i // 3}", sample=i % 3, reward=reward, outcome=lost, turn_rewards=earned)
        if draw.random() < 0.3:
            ledgers[-1].teacher, ledgers[-1].teacher_logprobs = 1, np.full(len(ledgers[-1]), -0.5, np.float32)
        each.finish, each.reward_extra = draw.choice(["stop", "length"]), {"right": draw.random(), "brief": 1.0}
        each.side_rewards = [draw.random(), draw.random()] if sides else []
        found.append(each)
    return found


def travelled(share: Share, held: Batch | None = None) -> Batch:
    sent = pickle.loads(pickle.dumps(share, 5))
    return sent.batch(STORE.get(sent.references), held)


def check_same(mine: Batch, other: Batch, but: tuple[str, ...] = ("index", "rewards", "sources")) -> None:
    for f in fields(mine):
        a, b = getattr(mine, f.name), getattr(other, f.name)
        if f.name not in but:
            assert (a is None) == (b is None), f.name
            assert a is None or (a.dtype == b.dtype and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))), f.name


@pytest.mark.parametrize("seed", range(5))
def test_a_share_is_the_part_of_the_batch_that_one_process_packs(seed: int) -> None:
    trajectories = made(seed, sides=seed == 4)
    outlined = [stored(each, STORE) for each in trajectories[::2]]  # the others were made here
    mixed = [outlined[i // 2] if i % 2 == 0 else each for i, each in enumerate(trajectories)]
    whole, lines = pack_tokens(trajectories, 2), pack_lines(mixed, 2, STORE)
    assert not any("ledgers" in vars(each) for each in outlined)
    for sequences in ([*range(0, whole.num_sequences, 2)], [1], [*range(whole.num_sequences)]):
        batch = travelled(Share.of(lines, sequences))
        check_same(batch, whole.select(sequences))
        assert batch.index.tolist() == sequences
    idle = travelled(Share.of(lines, []))
    check_same(idle, whole.select([]))
    mine, theirs = BatchOutline.of(lines, shares=True), BatchOutline.of(whole, shares=True)
    assert mine == theirs
    check_same(
        lines.expanded(),
        replace(whole, ids=0 * whole.ids, rollout_logprobs=0 * whole.rollout_logprobs),
        ("stale", "experts", "teacher_logprobs", "sources"),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", LINES)
def test_an_estimator_on_lines_gives_the_advantages_of_tokens(name: str, seed: int) -> None:
    trajectories = made(seed)
    options = {"ledger_credit": "last", "mask_truncated_completions": True, "min_group_size": 2} if seed else {}
    options |= {"gdpo_reward_keys": ["right", "brief"]} if name == "gdpo" else {}
    compute = ComputeAdvantages(Algorithm(adv_estimator=name, **options), seed=0)
    baselines = {f"r{i}": 0.3 * i for i in range(3)} if name == "remax" else None
    expected, same = compute(pack_tokens(trajectories), trajectories, baselines, 1)
    outlined = [stored(each, STORE) for each in trajectories]
    lines, metrics = compute(pack_lines(outlined, None, STORE), outlined, baselines, 1)
    found = travelled(Share.of(lines, [*range(lines.num_sequences)]))
    assert metrics == same
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.advantages, expected.advantages, rtol=1e-6, atol=1e-6)
    mine, theirs = advantages_by_key(outlined, lines), advantages_by_key(trajectories, expected)
    assert mine.keys() == theirs.keys()
    for key, columns in theirs.items():
        assert [len(column) for column in mine[key]] == [*map(len, columns)]
        assert all(np.allclose(np.asarray(a), b, atol=1e-6) for a, b in zip(mine[key], columns, strict=True))
    assert not any("ledgers" in vars(each) for each in outlined)


def test_policy_filtration_draws_lines() -> None:
    algorithm = Algorithm(adv_estimator="rloo", use_pf_ppo=True)
    trajectories = made(3)
    expected, _ = ComputeAdvantages(algorithm, seed=1)(pack_tokens(trajectories), trajectories, None, 4)
    lines, _ = ComputeAdvantages(algorithm, seed=1)(pack_lines(trajectories, None, STORE), trajectories, None, 4)
    found = travelled(Share.of(lines, [*range(lines.num_sequences)]))
    check_same(found, expected, ("index", "rewards", "sources", "advantages"))
    torch.testing.assert_close(found.advantages, expected.advantages, rtol=1e-6, atol=1e-6)


def test_columns_of_other_shares_are_found_by_their_sequences() -> None:
    trajectories = made(1)
    whole, lines = pack_tokens(trajectories), pack_lines(trajectories, None, STORE)
    parts = []
    for sequences in ([0, 3, 4], [1, 2, *range(5, whole.num_sequences)]):
        before = travelled(Share.of(lines, sequences))
        after = replace(before, old_logprobs=before.rollout_logprobs - 1)
        parts.append(pickle.loads(pickle.dumps(computed_columns(after, before, ["rollout_logprobs"]))))
    assert torch.equal(with_computed(lines.expanded(), parts).old_logprobs, whole.rollout_logprobs - 1)
    assert torch.equal(with_computed(lines.expanded(), parts).rollout_logprobs, whole.rollout_logprobs)
    other = travelled(Share.of(lines, [5, 0, 1], computed=[STORE.put(part) for part in parts]))
    assert torch.equal(other.old_logprobs, whole.select([5, 0, 1]).rollout_logprobs - 1)
    assert torch.equal(other.ids, whole.select([5, 0, 1]).ids)


@pytest.mark.parametrize(
    ("settings", "reads"),
    [
        ({}, None),
        ({"adv_estimator": "gae"}, {"values"}),
        ({"adv_estimator": "remax"}, None),
        ({"adv_estimator": "remax", "gamma": 0.9}, set()),
        ({"use_kl_in_reward": True}, {"old_logprobs", "ref_logprobs", "kl"}),
    ],
)
def test_tokens_are_read_where_an_estimator_needs_them(settings: dict[str, Any], reads: set[str] | None) -> None:
    assert columns_read(Config(algorithm=Algorithm(**settings))) == reads


def test_every_estimator_on_lines_reads_no_column_of_tokens() -> None:
    assert {"grpo", "rloo", "remax", "grpo_turn"} <= set(LINES)
    lines = pack_lines(made(0), None, STORE)
    given = lines.rewards, lines.mask, lines.cu_seqlens, *lines.players()
    for name in LINES:
        baselines = torch.zeros(lines.num_sequences)
        advantages, _ = estimate(name, *given, baselines=baselines)
        assert advantages.shape == lines.mask.shape


def test_a_stored_trajectory_is_the_one_that_was_put_there() -> None:
    for each in made(2, sides=True):
        each.messages = [{"role": "user", "content": "Hi"}]
        each.schemas = [{"name": "search"}]
        each.tool_calls = [ToolCallRecord(0, "search", {"q": 1}, "found", Outcome.OK, 0.5, metrics={"a": 1})]
        outlined = stored(each, STORE)
        assert [call.name for call in outlined.calls] == ["search"]
        assert repr(outlined) == repr(each)
        assert outlined.trainable == each.trainable
        weights = Reward(tool_turn_weight=0.5, interaction_turn_weight=1.0).turn_weights
        assert total_rewards(outlined, weights) == total_rewards(each, weights)
        assert [ledger.drawn_by for ledger in outlined.outlines] == [ledger.drawn_by for ledger in each.ledgers]
        assert not {"ledgers", "messages"} & vars(outlined).keys()  # nothing was fetched
        outlined.reward = 0.25
        moved = Stored(*outlined.parts)
        assert moved.reward == 0.25
        assert pickle.loads(pickle.dumps(moved)) == replace(each, reward=0.25)
        with pytest.raises(AttributeError, match="nothing"):
            _ = outlined.nothing


def test_an_outline_does_not_grow_with_the_tokens_of_a_turn() -> None:
    def size(tokens: int) -> int:
        ledger = Ledger()
        ledger.append_prompt([1] * tokens)
        ledger.append_model([2] * tokens, [-1.0] * tokens, turn=0, version=0)
        lines = pack_lines([trajectory(ledger)], 0, STORE)
        share = Share.of(replace(lines, advantages=lines.mask.float()), [0])
        sources = tuple(source._replace(body=None) for source in share.sources or ())
        return len(pickle.dumps(replace(share, sources=sources), 5))

    assert size(100_000) <= size(100) + 16
    assert size(100) < 4000
    assert set(OF_TOKENS) <= {f.name for f in fields(Batch)}
