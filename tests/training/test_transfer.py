"""A batch arrives bit for bit in another process, in few bytes, and columns that it has are not sent."""

import pickle
from dataclasses import fields, replace

import torch

from agentrl.training.batches.batch import Batch
from agentrl.training.batches.transfer import (
    changed_columns,
    computed_columns,
    of_columns,
    packed,
    share_columns,
    with_columns,
)
from tests.training.tiny import random_batch


def travelled(columns: dict[str, object]) -> dict[str, object]:
    return pickle.loads(pickle.dumps(columns, 5))


def same(mine: Batch, other: Batch) -> None:
    for f in fields(mine):
        a, b = getattr(mine, f.name), getattr(other, f.name)
        assert (a is None) == (b is None), f.name
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype
            assert a.numpy().tobytes() == b.numpy().tobytes(), f.name


def whole() -> Batch:
    batch = random_batch([5, 7, 3])
    batch.rewards = torch.zeros(batch.num_tokens)
    batch.rewards[-1], batch.rewards[0] = 0.25, -0.0
    batch.rejected = batch.mask & (batch.positions > 2)
    return batch


def everything(batch: Batch) -> list[int]:
    return list(range(batch.num_sequences))


def test_every_bit_arrives() -> None:
    batch = whole()
    arrived = of_columns(travelled(share_columns(batch, everything(batch))))
    assert arrived.index is not None
    assert arrived.index.tolist() == [0, 1, 2]
    same(replace(arrived, index=None), batch)
    assert torch.equal(arrived.rewards.view(torch.int32), batch.rewards.view(torch.int32))  # the sign of zero too
    arrived.mask &= False  # its own memory, writable
    for rows in ([2, 0], []):
        same(of_columns(travelled(share_columns(batch, rows))), batch.share(rows))
    assert arrived.positions.tolist() == [i for length in batch.lengths for i in range(length)]
    assert (arrived.positions.dtype, arrived.select([]).positions.tolist()) == (torch.int64, [])


def test_only_what_is_new_travels() -> None:
    batch, rows = whole(), [0, 2]
    held = of_columns(travelled(share_columns(batch, rows)))
    computed = replace(held, old_logprobs=held.rollout_logprobs - 1)
    back = travelled(computed_columns(computed, held))
    assert back.keys() == {"old_logprobs"}
    other = {"old_logprobs": packed(batch.select([1]).rollout_logprobs + 1)}
    batch = with_columns(batch, [rows, [1], []], [back, other, back])
    assert torch.equal(batch.select(rows).old_logprobs, computed.old_logprobs)
    assert torch.equal(batch.select([1]).old_logprobs, batch.select([1]).rollout_logprobs + 1)
    scored = replace(batch, rewards=batch.rewards + 1, advantages=batch.rollout_logprobs * 2)
    names = changed_columns(scored, batch)
    assert names == ["rewards", "advantages"]
    columns = travelled(share_columns(scored, rows, names))
    assert columns.keys() == set(names)
    same(of_columns(columns, computed), scored.share(rows))
    same(of_columns(travelled(share_columns(scored, [1])), computed), scored.share([1]))  # another share in its place


def test_bytes_of_a_token() -> None:
    ids = torch.arange(100_000)
    column, none = torch.zeros(len(ids)), torch.zeros(1, dtype=torch.long)
    bounds = torch.tensor([0, len(ids)], dtype=torch.int32)
    batch = Batch(ids, ids % 2 == 0, -torch.rand(len(ids)), column, bounds, none, none)
    assert len(pickle.dumps(share_columns(batch, [0]), 5)) < 8.5 * len(ids)
    assert len(pickle.dumps(batch, 5)) > 16 * len(ids)
