"""Each rank gets its share of a batch and no more, and no token passes through the process that splits it: counted in
bytes, in both calls of a step."""

import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from agentrl.runtime.ray.learner import RayLearner
from agentrl.training import pack_tokens
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.outline import BatchOutline, BatchPlan
from agentrl.training.batches.splitting import assign_shares, mini_batches
from agentrl.training.batches.transfer import Share, computed_columns
from agentrl.trajectory.trajectory import Trajectory
from tests.training.tiny import MemoryStore, ledger, trajectory

RANKS = 4
LENGTHS = [40, 90, 60, 200, 110, 30, 80, 150, 70, 120, 20, 50]


@dataclass
class Group:
    """Stands for the workers: deals two prompts a mini-batch, keeps what is sent, and returns ids as log-probs."""

    store: MemoryStore = field(default_factory=MemoryStore)
    scores_first: bool = True
    asked: int = 0
    sent: list[list[bytes]] = field(default_factory=list)
    held: list[Batch | None] = field(default_factory=lambda: [None] * RANKS)

    def call(self, method: str, name: str, outline: BatchOutline) -> BatchPlan:
        assert (method, name) == ("call", "plan")
        self.asked += len(pickle.dumps(outline, 5))
        minis = mini_batches(outline.group, 2)
        parts = [[i for i in mini if outline.zero_advantage[i] is zero] for mini in minis for zero in (False, True)]
        return BatchPlan(assign_shares(outline.lengths, parts, RANKS, hidden=64), self.scores_first)

    def scatter(self, method: str, values: Iterable[Any], copies: int) -> list[Any]:
        self.sent.append([pickle.dumps(value, 5) for value in values])
        return [getattr(self, method)(rank, pickle.loads(self.sent[-1][rank // copies])) for rank in range(RANKS)]

    def compute_logprobs(self, rank: int, share: Share) -> Any:
        batch = share.batch(self.store.get(share.references))
        self.held[rank] = replace(batch, old_logprobs=-batch.ids.float())
        return self.store.put(computed_columns(self.held[rank], batch, share.wanted))

    def update(self, rank: int, share: Share) -> dict[str, float]:
        self.held[rank] = share.batch(self.store.get(share.references), self.held[rank])
        return {"rank": float(rank)}

    def bytes_of(self, call: int) -> int:
        return sum(len(value) for value in self.sent[call])


def made(times: int = 50) -> list[Trajectory]:
    """Two a prompt."""
    lengths = [times * n for n in LENGTHS]
    return [
        trajectory(ledger(max(n // 2, 1), n - n // 2, prompt=2 + n % 3, seed=i), uid=f"r{i // 2}", sample=i % 2)
        for i, n in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    return made()


def learner(group: Group, each: int = 1, **options: Any) -> RayLearner:
    return RayLearner(group, group.store, each, **options)


def scored(batch: Batch) -> Batch:
    return replace(batch, advantages=torch.randn(batch.num_tokens) * batch.mask)


def check_shares(group: Group, batch: Batch, tokens: Batch) -> None:
    """Each sequence is on one rank, with all its columns, and no rank has much more than a quarter of the tokens."""
    rows = [i for held in group.held for i in held.index.tolist()]
    assert sorted(rows) == list(range(len(LENGTHS)))
    counts = torch.ones_like(batch.ids) if batch.counts is None else batch.counts
    whole = replace(tokens, advantages=batch.advantages.repeat_interleave(counts))
    for held in group.held:
        expected = whole.select(held.index.tolist())
        assert torch.equal(held.ids, expected.ids)
        assert torch.equal(held.advantages, expected.advantages)
        assert held.num_tokens < 0.3 * tokens.num_tokens


def test_columns_go_to_one_rank_each_and_stay_there(trajectories: list[Trajectory]) -> None:
    group, tokens = Group(), pack_tokens(trajectories)
    shared = learner(group)
    batch = shared.pack(trajectories, None)
    assert shared.compute_logprobs(batch) is batch
    final = scored(batch)
    assert shared.update(final) == {"rank": 0.0}
    check_shares(group, final, tokens)
    assert all(torch.equal(held.old_logprobs, -held.ids.float()) for held in group.held)
    assert group.bytes_of(0) + group.bytes_of(1) + group.asked < 2000 * len(LENGTHS)
    assert group.bytes_of(1) < group.bytes_of(0)  # the ranks have the tokens


def test_what_is_sent_does_not_grow_with_tokens() -> None:
    sizes = []
    for times in (1, 100):
        group, few = Group(), made(times)
        shared = learner(group)
        shared.update(scored(shared.compute_logprobs(shared.pack(few, 0))))
        sizes.append(group.bytes_of(0) + group.bytes_of(1) + group.asked)
    assert sizes[1] < 1.1 * sizes[0]


def test_nothing_is_sent_where_nothing_is_computed(trajectories: list[Trajectory]) -> None:
    group = Group(scores_first=False)
    shared = learner(group)
    batch = shared.pack(trajectories, None)
    assert shared.compute_logprobs(batch) is batch
    assert not group.sent
    shared.update(final := scored(batch))
    check_shares(group, final, pack_tokens(trajectories))


def test_other_shares_take_the_columns_of_other_ranks(trajectories: list[Trajectory]) -> None:
    group = Group()
    shared = learner(group)
    computed = scored(shared.compute_logprobs(shared.pack(trajectories, None)))
    computed.advantages[: computed.cu_seqlens[5]] = 0.0  # sequences without gradient are dealt apart
    shared.update(computed)
    check_shares(group, computed, pack_tokens(trajectories))
    assert all(torch.equal(held.old_logprobs, -held.ids.float()) for held in group.held)
    batch = shared.compute_logprobs(shared.pack(trajectories, None))
    shared.update(scored(batch.select(range(4, 12))))  # the others have no score
    assert sorted(i for held in group.held for i in held.index.tolist()) == list(range(8))
    assert all(torch.equal(held.old_logprobs, -held.ids.float()) for held in group.held)


def test_advantages_of_tokens_get_the_columns_that_they_read(trajectories: list[Trajectory]) -> None:
    group, tokens = Group(), pack_tokens(trajectories)
    shared = learner(group, reads=frozenset({"old_logprobs", "rollout_logprobs"}))
    batch = shared.compute_logprobs(shared.pack(trajectories, None))
    assert torch.equal(batch.old_logprobs, -tokens.ids.float())
    assert torch.equal(batch.rollout_logprobs, tokens.rollout_logprobs)
    assert torch.equal(batch.mask, tokens.mask)
    shared.update(final := scored(batch))
    check_shares(group, final, tokens)


def test_ranks_that_split_tokens_have_one_share() -> None:
    class Pairs(Group):
        def call(self, method: str, name: str, outline: BatchOutline) -> BatchPlan:
            return BatchPlan(assign_shares(outline.lengths, [range(len(outline.lengths))], RANKS // 2, hidden=64), True)

    group, few = Pairs(), made(1)
    shared = learner(group, 2, reads=frozenset({"old_logprobs"}))
    computed = shared.compute_logprobs(shared.pack(few, None))
    assert torch.equal(computed.old_logprobs, -pack_tokens(few).ids.float())
    assert [held.index.tolist() for held in group.held[::2]] == [held.index.tolist() for held in group.held[1::2]]
    assert len(group.sent[0]) == 2
