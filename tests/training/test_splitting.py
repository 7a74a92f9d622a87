"""Cuts: nothing lost, nothing twice, limits kept, passes evenly filled, the same every time."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.training.splitting import micro_batches, mini_batches
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


def test_mini_batches_are_cut_by_prompts():
    batch = random_batch([3] * 10, per_group=3)  # prompts of 3, 3, 3 and 1 trajectories: two of the last dropped
    assert mini_batches(batch, 2) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]
    assert mini_batches(batch, 9) == [list(range(10))]
    assert mini_batches(batch.select([]), 2) == []


def test_shuffling_moves_whole_prompts_and_repeats_itself():
    batch = random_batch([3] * 12, per_group=2)
    cut = mini_batches(batch, 2, generator=torch.Generator().manual_seed(1))
    assert cut == mini_batches(batch, 2, generator=torch.Generator().manual_seed(1))
    assert cut != mini_batches(batch, 2)
    flat = [s for rows in cut for s in rows]
    assert sorted(flat) == list(range(12))
    assert all(flat[i + 1] == flat[i] + 1 for i in range(0, 12, 2))
