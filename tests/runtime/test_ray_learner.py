"""Each rank gets its share of a batch and no more: counted in bytes, in both calls of a step."""

import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from agentrl.runtime.ray.learner import RayLearner
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.dealing import Layout, Plan
from agentrl.training.batches.splitting import deal, mini_batches
from agentrl.training.batches.transfer import computed_columns, of_columns
from tests.training.tiny import random_batch

RANKS = 4
LENGTHS = [40, 90, 60, 200, 110, 30, 80, 150, 70, 120, 20, 50]


@dataclass
class Group:
    """Stands for the workers: deals two prompts a mini-batch, keeps what is sent, and returns ids as log-probs."""

    scores_first: bool = True
    asked: int = 0
    sent: list[list[bytes]] = field(default_factory=list)
    held: list[Batch | None] = field(default_factory=lambda: [None] * RANKS)

    def call(self, method: str, name: str, layout: Layout) -> Plan:
        assert (method, name) == ("call", "plan")
        self.asked += len(pickle.dumps(layout, 5))
        minis = mini_batches(layout.group, 2)
        parts = [[i for i in mini if layout.still[i] is still] for mini in minis for still in (False, True)]
        return Plan(deal(layout.lengths, parts, RANKS, hidden=64), self.scores_first)

    def scatter(self, method: str, values: Iterable[Any], copies: int) -> list[Any]:
        self.sent.append([pickle.dumps(value, 5) for value in values])
        return [getattr(self, method)(rank, pickle.loads(self.sent[-1][rank // copies])) for rank in range(RANKS)]

    def compute_logprobs(self, rank: int, columns: dict[str, Any]) -> Any:
        batch = of_columns(columns)
        self.held[rank] = replace(batch, old_logprobs=-batch.ids.float())
        return computed_columns(self.held[rank], batch)

    def update(self, rank: int, columns: dict[str, Any]) -> dict[str, float]:
        self.held[rank] = of_columns(columns, self.held[rank])
        return {"rank": float(rank)}

    def bytes_of(self, call: int) -> list[int]:
        return [len(value) for value in self.sent[call]]


@pytest.fixture(scope="module")
def batch() -> Batch:
    return replace(random_batch([50 * n for n in LENGTHS]), advantages=None)


def scored(batch: Batch) -> Batch:
    return replace(batch, advantages=torch.randn(batch.num_tokens) * batch.mask)


def check_shares(group: Group, batch: Batch) -> None:
    """Each sequence is on one rank, with all its columns, and no rank has much more than a quarter of the tokens."""
    rows = [i for held in group.held for i in held.place.tolist()]
    assert sorted(rows) == list(range(len(LENGTHS)))
    for held in group.held:
        expected = batch.select(held.place.tolist())
        assert torch.equal(held.ids, expected.ids)
        assert torch.equal(held.advantages, expected.advantages)
        assert held.num_tokens < 0.3 * batch.num_tokens


def test_columns_go_to_one_rank_each_and_come_back(batch: Batch) -> None:
    group = Group()
    shared = RayLearner(group, 1)
    computed = shared.compute_logprobs(batch)
    assert torch.equal(computed.old_logprobs, -batch.ids.float())
    final = scored(computed)
    assert shared.update(final) == {"rank": 0.0}
    check_shares(group, final)
    whole = len(pickle.dumps(batch, 5))
    assert max(group.bytes_of(0)) < 0.3 * sum(group.bytes_of(0))
    assert sum(group.bytes_of(0)) < 0.5 * whole
    assert sum(group.bytes_of(1)) < 0.5 * sum(group.bytes_of(0))  # advantages alone
    assert group.asked < 100 * len(LENGTHS)  # plans are about sequences


def test_nothing_is_sent_where_nothing_is_computed(batch: Batch) -> None:
    group = Group(scores_first=False)
    shared = RayLearner(group, 1)
    assert shared.compute_logprobs(batch) is batch
    assert not group.sent
    shared.update(final := scored(batch))
    check_shares(group, final)


def test_other_shares_are_sent_in_full(batch: Batch) -> None:
    group = Group()
    shared = RayLearner(group, 1)
    computed = scored(shared.compute_logprobs(batch))
    computed.advantages[: computed.cu_seqlens[5]] = 0.0  # sequences without gradient are dealt apart
    shared.update(computed)
    check_shares(group, computed)
    assert all(torch.equal(held.old_logprobs, -held.ids.float()) for held in group.held)
    left = computed.select(range(4, 12))  # the others have no score
    group, shared = Group(), RayLearner(Group(), 1)
    shared.compute_logprobs(batch)
    shared.update(left)
    assert sorted(i for held in shared.ranks.held for i in held.place.tolist()) == list(range(8))


def test_ranks_that_split_tokens_have_one_share() -> None:
    class Pairs(Group):
        def call(self, method: str, name: str, layout: Layout) -> Plan:
            return Plan(deal(layout.lengths, [range(len(layout.lengths))], RANKS // 2, hidden=64), True)

    group, batch = Pairs(), random_batch(LENGTHS)
    computed = RayLearner(group, 2).compute_logprobs(batch)
    assert torch.equal(computed.old_logprobs, -batch.ids.float())
    assert [held.place.tolist() for held in group.held[::2]] == [held.place.tolist() for held in group.held[1::2]]
    assert len(group.sent[0]) == 2
