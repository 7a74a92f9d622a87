"""The loader: order, epochs, and resuming at any point."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.core.errors import UserError
from agentrl.data import Loader
from agentrl.data.samplers import RowScore
from agentrl.trajectory.row import Row


def rows(number: int) -> list[Row]:
    return [Row(uid=str(i), prompt=[]) for i in range(number)]


def uids(loader: Loader, batches: int) -> list[list[str]]:
    return [[row.uid for row in loader.next_batch()] for _ in range(batches)]


def flat(batches: list[list[str]]) -> list[str]:
    return [uid for batch in batches for uid in batch]


def test_every_row_once_an_epoch_in_an_order_of_its_own() -> None:
    loader = Loader(rows(12), 4, shuffle=True, seed=3)
    assert loader.steps_per_epoch == 3
    first, second = uids(loader, 3), uids(loader, 3)
    assert Counter(flat(first)) == Counter(flat(second)) == Counter(str(i) for i in range(12))
    assert first != second
    assert loader.epoch == 1
    assert uids(Loader(rows(12), 4, shuffle=True, seed=3), 3) == first
    assert uids(Loader(rows(12), 4, shuffle=True, seed=4), 3) != first


def test_without_shuffling_the_file_order() -> None:
    assert uids(Loader(rows(4), 2, shuffle=False, seed=0), 3) == [["0", "1"], ["2", "3"], ["0", "1"]]


def test_last_batch() -> None:
    dropping = Loader(rows(5), 2, shuffle=False, seed=0)
    keeping = Loader(rows(5), 2, shuffle=False, seed=0, drop_last=False)
    assert (dropping.steps_per_epoch, keeping.steps_per_epoch) == (2, 3)
    assert uids(dropping, 3) == [["0", "1"], ["2", "3"], ["0", "1"]]
    assert uids(keeping, 4) == [["0"], ["1", "2"], ["3", "4"], ["0"]]
    assert keeping.epoch == 1


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 12),
    batch=st.integers(1, 6),
    taken=st.integers(0, 15),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_resumes_exactly_anywhere(size: int, batch: int, taken: int, shuffle: bool, drop_last: bool) -> None:
    batch = min(batch, size)

    def loader(seed: int) -> Loader:
        return Loader(rows(size), batch, shuffle=shuffle, seed=seed, drop_last=drop_last)

    unbroken, restarted = loader(5), loader(99)
    uids(unbroken, taken)
    restarted.load_state_dict(json.loads(json.dumps(unbroken.state_dict())))
    assert restarted.epoch == unbroken.epoch
    assert uids(restarted, 7) == uids(unbroken, 7)


@pytest.mark.prevents("resuming at the end of an epoch skips one, or does nothing")
def test_resume_at_an_epoch_boundary_neither_skips_nor_repeats_an_epoch() -> None:
    unbroken = Loader(rows(6), 2, shuffle=True, seed=1)
    first = uids(unbroken, 3)  # a checkpoint right after the last batch of epoch 0
    restarted = Loader(rows(6), 2, shuffle=True, seed=1)
    restarted.load_state_dict(unbroken.state_dict())
    second = uids(restarted, 3)
    assert restarted.epoch == 1
    assert second != first
    assert sorted(flat(second)) == sorted(flat(first))


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"data.train_batch_size=8 is more than the 5 rows there are; lower it"):
        Loader(rows(5), 8, shuffle=True, seed=0)
    with pytest.raises(UserError, match=r"set data.train_batch_size to 1 or more"):
        Loader(rows(5), 0, shuffle=True, seed=0)
    state = Loader(rows(5), 2, shuffle=True, seed=0).state_dict()
    with pytest.raises(UserError, match=r"has 6 rows now, 5 when the checkpoint was made"):
        Loader(rows(6), 2, shuffle=True, seed=0).load_state_dict(state)


@given(st.integers(1, 40), st.integers(1, 12))
def test_kept_rows_make_batches_of_one_size(there: int, batch: int) -> None:
    loader = Loader(rows(there), batch, shuffle=False, seed=0, drop_last=False)
    sizes = [len(loader.next_batch()) for _ in range(loader.steps_per_epoch)]
    assert sum(sizes) == there
    assert len(sizes) == -(-there // batch)
    assert max(sizes) <= batch
    assert max(sizes) - min(sizes) <= 1


def learnable(rows, *, seed, scores):
    """A curriculum: rows with a mean between 0.2 and 0.8 first, then new ones, then the others."""

    def place(i):
        score = scores.get(i, RowScore())
        return 0 if 0.2 <= score.mean <= 0.8 else 1 if not score.tries else 2, score.tries

    return sorted(range(len(rows)), key=place)


def test_a_sampler_ranks_the_rows_by_their_scores_and_resumes() -> None:
    def loader() -> Loader:
        return Loader(rows(6), 2, shuffle=True, seed=0, sampler=f"{__name__}.learnable")

    unbroken = loader()
    assert uids(unbroken, 2) == [["0", "1"], ["2", "3"]]  # 0 and 1 are under way: others come before them
    for index, rewards in enumerate(([0.0, 1.0], [1.0, 1.0], [], [0.0, 0.0])):
        unbroken.record(index, rewards, step=1)
    assert unbroken.scores[0] == RowScore(tries=1, rewards=2, mean=0.5, step=1)
    restarted = loader()
    restarted.load_state_dict(json.loads(json.dumps(unbroken.state_dict())))
    assert uids(unbroken, 1) == uids(restarted, 1) == [["0", "4"]]
    for each in (unbroken, restarted):
        each.record(0, [1.0, 1.0], step=2)
    assert unbroken.scores[0] == RowScore(tries=2, rewards=4, mean=0.75, step=2)
    assert uids(unbroken, 3) == uids(restarted, 3) == [["0", "5"], ["1", "2"], ["3", "0"]]
    assert unbroken.epoch == 1  # six rows are an epoch
