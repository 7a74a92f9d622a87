"""Rows, pools, budget, eviction; prefixes."""

import torch

from agentrl.engines.hf.cache import KVCache
from agentrl.engines.hf.pool import Row, Shape
from agentrl.engines.hf.prefix import BLOCK, PrefixIndex

SHAPE = Shape(layers=2, kv_heads=2, head_dim=4, dtype=torch.float32, device=torch.device("cpu"))


def cache(budget: int = 4096, max_len: int = 1000) -> KVCache:
    return KVCache(SHAPE, budget=budget, max_len=max_len)


def seat(kv: KVCache, key: str, length: int, *, cached: int | None = None) -> Row:
    """A running row whose keys and values are all `hash(key)`."""
    row = kv.acquire(key, list(range(length)), length)
    assert row is not None
    row.cached = length if cached is None else cached
    write(row, float(len(kv.rows)))
    return row


def write(row: Row, value: float) -> None:
    for layer in row.pool.layers:
        layer[:, row.slot, :, : row.cached] = value


def read(row: Row) -> set[float]:
    return {value for layer in row.pool.layers for value in layer[:, row.slot, :, : row.cached].unique().tolist()}


def test_memory_grows_with_need_and_never_beyond_the_budget() -> None:
    kv = cache(budget=1024)
    assert kv.allocated == 0
    rows = [seat(kv, str(i), 200) for i in range(4)]
    assert kv.allocated == 1024
    assert kv.acquire("more", [1], 1) is None, "four rows of 256 are the budget, and all run"
    kv.rest(rows[1])
    assert kv.acquire("more", [1], 1) is not None
    assert kv.allocated == 1024
    assert rows[1] not in kv.rows


def test_the_longest_unused_row_goes_first() -> None:
    kv = cache(budget=768)
    rows = [seat(kv, str(i), 200) for i in range(3)]
    for i in (2, 0, 1):
        kv.rest(rows[i])
    seat(kv, "a", 10)
    seat(kv, "b", 10)
    assert [row.key for row in kv.rows] == ["1", "a", "b"]


def test_a_row_moves_with_its_keys_and_values() -> None:
    kv = cache()
    first, second = seat(kv, "first", 250), seat(kv, "second", 250)
    assert kv.widen(first, 257)
    assert first.pool.capacity == 512
    assert read(first) == {1.0}
    assert read(second) == {2.0}
    assert kv.widen(first, 600)
    assert first.pool.capacity == 1000, "the last pool is as wide as the longest sequence, not wider"


def test_memory_of_empty_pools_goes_to_the_others() -> None:
    kv = cache(budget=1536)
    rows = [seat(kv, str(i), 250) for i in range(4)]
    for row in rows[1:]:
        kv.drop(row)
    assert kv.widen(rows[0], 500)
    assert kv.widen(rows[0], 1000)
    assert read(rows[0]) == {1.0}
    assert kv.allocated <= 1536


def test_packing_brings_running_rows_together() -> None:
    kv = cache(budget=2048)
    rows = [seat(kv, str(i), 200) for i in range(8)]
    for i in (0, 1, 3, 6):
        kv.rest(rows[i])
    kv.drop(rows[2])
    rows[4].pool.pack()
    assert sorted(row.slot for row in rows if row.running and row is not rows[2]) == [0, 1, 2]
    for i, row in enumerate(rows):
        if i != 2:
            assert read(row) == {float(i + 1)}
            assert row.pool.rows[row.slot] is row


def test_sharing_copies_the_prefix_alone() -> None:
    kv = cache()
    donor, row = seat(kv, "donor", 600), seat(kv, "row", 100, cached=0)
    kv.share(donor, row, 40)
    assert row.cached == 40
    assert read(row) == {1.0}
    assert row.pool.layers[0][:, row.slot, :, 40:].abs().max() == 0


def test_clearing_gives_the_memory_back() -> None:
    kv = cache()
    seat(kv, "a", 300)
    kv.clear()
    assert kv.allocated == 0
    assert kv.rows == []
    assert kv.prefixes.find(list(range(300))) is None


def test_the_index_finds_the_deepest_row_and_prefers_one_that_is_ready() -> None:
    kv, index = cache(budget=8192), PrefixIndex()
    tokens = list(range(100))
    shallow, deep, ready = seat(kv, "s", 100), seat(kv, "d", 100, cached=0), seat(kv, "r", 100)
    shallow.tokens = tokens[: 2 * BLOCK] + [-1] * 60
    deep.tokens = ready.tokens = tokens
    for row in (shallow, deep):
        index.add(row)
    assert index.find(tokens) is deep
    index.add(ready)
    assert index.find(tokens) is ready
    index.remove(ready)
    index.remove(deep)
    assert index.find(tokens) is shallow
    assert index.find(tokens[: BLOCK - 1]) is None
    index.remove(shallow)
    assert not index.by_prefix
    assert not index.prefixes
