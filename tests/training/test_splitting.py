"""Splits: complete, without repeats, within limits, evenly filled, deterministic."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.training.batches.shared_prompts import Prompt
from agentrl.training.batches.splitting import Work, assign_shares, micro_batches, mini_batches, sequence_cost
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.update.micro_batches import MicroBatching
from tests.training.tiny import random_batch

LENGTHS = st.lists(st.integers(1, 50), max_size=40)


@given(LENGTHS, st.none() | st.integers(1, 120), st.none() | st.integers(1, 9))
def test_micro_batches_keep_both_limits(lengths, max_tokens, max_sequences):
    cut = micro_batches(lengths, max_tokens=max_tokens, max_sequences=max_sequences)
    assert sorted(s for rows in cut for s in rows) == list(range(len(lengths)))
    sizes = [sum(lengths[s] for s in rows) for rows in cut]
    assert sizes == sorted(sizes, reverse=True)
    for rows, size in zip(cut, sizes, strict=True):
        assert rows
        assert max_sequences is None or len(rows) <= max_sequences
        assert max_tokens is None or size <= max_tokens or len(rows) == 1
    assert cut == micro_batches(lengths, max_tokens=max_tokens, max_sequences=max_sequences)


@given(st.lists(st.integers(10, 50), min_size=1, max_size=40), st.integers(50, 200))
def test_micro_batches_are_few_and_even(lengths, budget):
    sizes = [sum(lengths[s] for s in rows) for rows in micro_batches(lengths, max_tokens=budget, max_sequences=None)]
    assert max(sizes) - min(sizes) <= max(lengths)
    # any two passes together would nearly break the budget, else fewer would have done
    assert len(sizes) <= 1 + sum(lengths) / (budget - max(lengths) + 1)


def test_mini_batches_are_split_by_prompts():
    batch = random_batch([3] * 10, per_group=3)  # prompts of 3, 3, 3 and 1 trajectories: two of the last dropped
    assert mini_batches(batch.group.tolist(), 2) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]
    assert mini_batches(batch.group.tolist(), 9) == [list(range(10))]
    assert mini_batches([], 2) == []


@pytest.mark.prevents("the last mini-batch has one prompt, which counts like eight")
@pytest.mark.parametrize(("there", "wanted"), [(9, [4, 5]), (16, [8, 8]), (8, [8]), (17, [5, 6, 6]), (3, [3])])
def test_no_mini_batch_is_a_stub(there, wanted):
    batch = random_batch([3] * there, per_group=1)
    cut = mini_batches(batch.group.tolist(), 8)
    assert [len(rows) for rows in cut] == wanted
    assert [row for rows in cut for row in rows] == list(range(there))


@given(st.integers(1, 60), st.integers(1, 20))
def test_mini_batches_are_few_and_alike(there, prompts):
    sizes = [len(rows) for rows in mini_batches(range(there), prompts)]
    assert len(sizes) == -(-there // prompts)
    assert max(sizes) <= prompts
    assert max(sizes) - min(sizes) <= 1


def test_shuffling_moves_whole_prompts_and_repeats_itself():
    batch = random_batch([3] * 12, per_group=2)
    cut = mini_batches(batch.group.tolist(), 2, generator=torch.Generator().manual_seed(1))
    assert cut == mini_batches(batch.group.tolist(), 2, generator=torch.Generator().manual_seed(1))
    assert cut != mini_batches(batch.group.tolist(), 2)
    flat = [s for rows in cut for s in rows]
    assert sorted(flat) == list(range(12))
    assert all(flat[i + 1] == flat[i] + 1 for i in range(0, 12, 2))


def test_a_share_has_its_part_of_each_mini_batch():
    group, mine = [0, 0, 1, 1, 2, 2, 3, 3], [1, 4, 5]  # it has no sequence of prompts 1 and 3
    for seed in range(5):
        whole, part = (
            mini_batches(rows, 1, order=order, generator=torch.Generator().manual_seed(seed))
            for rows, order in ((group, None), ([group[i] for i in mine], [0, 1, 2, 3]))
        )
        assert [[mine[i] for i in rows] for rows in part] == [[i for i in rows if i in mine] for rows in whole]


def test_each_part_is_dealt_evenly():
    draw = random.Random(0)
    lengths = [draw.randint(10, 400) for _ in range(96)]
    parts = [list(range(i, i + 32)) for i in range(0, 96, 32)]
    shares = assign_shares(lengths, parts, 4, hidden=64)
    assert sorted(i for share in shares for i in share) == list(range(96))
    assert all(share == sorted(share) for share in shares)
    for part in parts:
        costs = [sum(sequence_cost(lengths[i], 64) for i in share if i in part) for share in shares]
        assert max(costs) < 1.15 * min(costs)
    # parts of one sequence go to the rank with the least work so far
    assert [len(share) for share in assign_shares([9] * 8, [[i] for i in range(8)], 4, hidden=64)] == [2] * 4


def test_sequences_of_a_prompt_go_to_one_rank():
    draw = random.Random(0)
    prompts = [Prompt(i // 8, 300) for i in range(8 * 64)]
    lengths = [300 + draw.randint(10, 400) for _ in prompts]
    parts = [range(256), range(256, 512)]
    shares = assign_shares(lengths, parts, 8, hidden=64, prompts=prompts)
    assert sorted(i for share in shares for i in share) == list(range(512))
    owners = [{rank for rank, share in enumerate(shares) for i in share if i // 8 == family} for family in range(64)]
    assert all(len(ranks) == 1 for ranks in owners)
    for part in parts:
        costs = [Work(lengths, 64, prompts)([i for i in share if i in part]) for share in shares]
        assert max(costs) < 1.1 * min(costs)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("prompts", "typical", "spread", "most"),
    [(256, 350, 0.5, 512), (1000, 6000, 0.9, 65536), (4096, 300, 0.7, 2048)],
    ids=["math", "agents", "long prompts"],
)
def test_ranks_that_share_prompts_wait_for_each_other_for_a_fiftieth_at_most(ranks, prompts, typical, spread, most):
    draw = random.Random(0)  # answers as long as those of runs are: many short ones, and a few that are far longer
    asked = [draw.randint(prompts // 2, 2 * prompts) for _ in range(64)]
    answers = [min(int(draw.lognormvariate(0, spread) * typical) + 1, most) for _ in range(8 * 64)]
    lengths = [asked[i // 8] + answer for i, answer in enumerate(answers)]
    families = [Prompt(i // 8, asked[i // 8]) for i in range(8 * 64)]
    shares = assign_shares(lengths, [range(8 * 64)], ranks, hidden=2048, prompts=families)
    costs = [Work(lengths, 2048, families)(share) for share in shares]
    alone = Work(lengths, 2048, families)(range(8 * 64))
    assert max(costs) < 1.02 * alone / ranks


def test_families_are_split_where_ranks_would_wait():
    assert assign_shares([60] * 8, [range(8)], 4, hidden=64, prompts=[Prompt(0, 50)] * 8) == [
        [0, 4],
        [1, 5],
        [2, 6],
        [3, 7],
    ]
    three = assign_shares([60] * 24, [range(24)], 2, hidden=64, prompts=[Prompt(i // 8, 5) for i in range(24)])
    assert [len(share) for share in three] == [12, 12]
    dear = assign_shares([60] * 6, [range(6)], 4, hidden=64, prompts=[Prompt(i // 2, 58) for i in range(6)])
    assert sorted(dear) == [[], [0, 1], [2, 3], [4, 5]]  # a part for itself would cost as much as the whole family


def rank_shares(lengths, count, *, hidden):
    return assign_shares(lengths, [range(len(lengths))], count, hidden=hidden)


def test_rank_shares_have_equal_work_and_all_sequences():
    draw = random.Random(0)
    lengths = [draw.randint(10, 4000) for _ in range(64)]
    dealt = rank_shares(lengths, 8, hidden=64)
    assert sorted(i for share in dealt for i in share) == list(range(64))
    costs = [sum(sequence_cost(lengths[i], 64) for i in share) for share in dealt]
    assert max(costs) < 1.05 * min(costs)


def test_attention_makes_long_sequences_dearer_than_their_tokens():
    assert sequence_cost(2000, 64) > 2 * sequence_cost(1000, 64)
    dealt = rank_shares([8000, 2000, 2000, 2000, 2000], 2, hidden=64)
    assert dealt == [[0], [1, 2, 3, 4]]
    # of the same tokens the one long sequence is still far dearer: nothing can be added to it
    assert rank_shares([8000, *[2000] * 6], 2, hidden=64)[0] == [0]


def test_shares_of_one_rank_are_everything_in_order():
    assert rank_shares([3, 1, 2], 1, hidden=8) == [[0, 1, 2]]


def test_ranks_get_the_same_number_of_micro_batches():
    class Others(Ranks):
        def max_over_ranks(self, number):
            return max(number, 3)

    batch = random_batch([30, 1, 1, 1, 1, 1, 9, 3])
    beside = MicroBatching(max_tokens=200, ranks=Others(1, 3))
    assert len(cut := beside.split(batch)) == 3
    assert sorted(i for rows in cut for i in rows) == list(range(8))
    assert beside.split(batch, [5]) == [[5], [], []]
    assert beside.split(batch, []) == [[], [], []]
    assert beside.micro_batch(batch, []).num_tokens == 2
    assert not beside.micro_batch(batch, []).mask.any()
    nothing = beside.micro_batch(batch.share([]), [])  # of a rank that has no sequence at all
    assert (nothing.num_tokens, nothing.num_sequences, bool(nothing.mask.any())) == (2, 1, False)
