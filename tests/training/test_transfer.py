"""A batch arrives bit for bit in another process, in few bytes, and what is there already stays at home."""

import pickle
from dataclasses import fields, replace

import torch

from agentrl.training.batch import Batch
from agentrl.training.transfer import computed_columns, of_columns, positions_of, to_columns
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


def test_every_bit_arrives() -> None:
    batch = whole()
    arrived = of_columns(travelled(to_columns(batch)))
    same(arrived, batch)
    assert torch.equal(arrived.rewards.view(torch.int32), batch.rewards.view(torch.int32))  # the sign of zero too
    arrived.mask &= False  # its own memory, writable
    empty = batch.select([])
    same(of_columns(travelled(to_columns(empty))), empty)
    assert positions_of(batch.cu_seqlens).tolist() == batch.positions.tolist()


def test_only_what_is_new_travels() -> None:
    batch = whole()
    held = of_columns(travelled(to_columns(batch)))
    computed = replace(held, old_logprobs=held.rollout_logprobs - 1)
    back = travelled(computed_columns(computed, held))
    assert back.keys() == {"old_logprobs"}
    batch = of_columns(back, batch)
    same(batch, computed)
    scored = replace(batch, rewards=batch.rewards + 1, advantages=batch.rollout_logprobs * 2)
    columns = travelled(to_columns(scored, batch))
    assert columns.keys() == {"rewards", "advantages"}
    same(of_columns(columns, computed), scored)
    chosen = scored.select([1])
    same(of_columns(travelled(to_columns(chosen, batch)), computed), chosen)


def test_bytes_of_a_token() -> None:
    ids = torch.arange(100_000)
    column, none = torch.zeros(len(ids)), torch.zeros(1, dtype=torch.long)
    bounds = torch.tensor([0, len(ids)], dtype=torch.int32)
    batch = Batch(ids, ids.clone(), ids % 2 == 0, -torch.rand(len(ids)), column, bounds, none, none)
    assert len(pickle.dumps(to_columns(batch), 5)) < 8.5 * len(ids)
    assert len(pickle.dumps(batch, 5)) > 24 * len(ids)
