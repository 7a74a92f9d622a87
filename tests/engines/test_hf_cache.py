"""Sequences, pools, budget, eviction; prefixes."""

import weakref

import torch

from agentrl.engines.hf.cache import KVCache
from agentrl.engines.hf.prefix import BLOCK_TOKENS, PrefixIndex
from agentrl.engines.hf.slot_pool import CachedSequence, Shape
from agentrl.rollout.gc_control import deferred_collection

SHAPE = Shape(layers=2, kv_heads=2, head_dim=4, dtype=torch.float32, device=torch.device("cpu"))


def cache(budget: int = 4096, max_len: int = 1000) -> KVCache:
    return KVCache(SHAPE, budget=budget, max_len=max_len)


def running(kv: KVCache, key: str, length: int, *, cached: int | None = None) -> CachedSequence:
    """A running sequence whose keys and values are all `hash(key)`."""
    sequence = kv.acquire(key, list(range(length)), length)
    assert sequence is not None
    sequence.cached = length if cached is None else cached
    write(sequence, float(len(kv.sequences)))
    return sequence


def write(sequence: CachedSequence, value: float) -> None:
    for layer in sequence.pool.layers:
        layer[:, sequence.slot, :, : sequence.cached] = value


def read(sequence: CachedSequence) -> set[float]:
    return {
        value
        for layer in sequence.pool.layers
        for value in layer[:, sequence.slot, :, : sequence.cached].unique().tolist()
    }


def test_memory_grows_with_need_and_never_beyond_the_budget() -> None:
    kv = cache(budget=1024)
    assert kv.allocated == 0
    sequences = [running(kv, str(i), 200) for i in range(4)]
    assert kv.allocated == 1024
    assert kv.acquire("more", [1], 1) is None, "four sequences of 256 are the budget, and all run"
    kv.rest(sequences[1])
    assert kv.acquire("more", [1], 1) is not None
    assert kv.allocated == 1024
    assert sequences[1] not in kv.sequences


def test_the_longest_unused_row_goes_first() -> None:
    kv = cache(budget=768)
    sequences = [running(kv, str(i), 200) for i in range(3)]
    for i in (2, 0, 1):
        kv.rest(sequences[i])
    running(kv, "a", 10)
    running(kv, "b", 10)
    assert [sequence.key for sequence in kv.sequences] == ["1", "a", "b"]


def test_a_row_moves_with_its_keys_and_values() -> None:
    kv = cache()
    first, second = running(kv, "first", 250), running(kv, "second", 250)
    assert kv.widen(first, 257)
    assert first.pool.capacity == 512
    assert read(first) == {1.0}
    assert read(second) == {2.0}
    assert kv.widen(first, 600)
    assert first.pool.capacity == 1000, "the last pool is as wide as the longest sequence, not wider"


def test_memory_of_empty_pools_goes_to_the_others() -> None:
    kv = cache(budget=1536)
    sequences = [running(kv, str(i), 250) for i in range(4)]
    for sequence in sequences[1:]:
        kv.drop(sequence)
    assert kv.widen(sequences[0], 500)
    assert kv.widen(sequences[0], 1000)
    assert read(sequences[0]) == {1.0}
    assert kv.allocated <= 1536


def test_packing_brings_running_rows_together() -> None:
    kv = cache(budget=2048)
    sequences = [running(kv, str(i), 200) for i in range(8)]
    for i in (0, 1, 3, 6):
        kv.rest(sequences[i])
    kv.drop(sequences[2])
    sequences[4].pool.pack()
    assert sorted(sequence.slot for sequence in sequences if sequence.running and sequence is not sequences[2]) == [
        0,
        1,
        2,
    ]
    for i, sequence in enumerate(sequences):
        if i != 2:
            assert read(sequence) == {float(i + 1)}
            assert sequence.pool.sequences[sequence.slot] is sequence


def test_sharing_copies_the_prefix_alone() -> None:
    kv = cache()
    donor, sequence = running(kv, "donor", 600), running(kv, "sequence", 100, cached=0)
    kv.share(donor, sequence, 40)
    assert sequence.cached == 40
    assert read(sequence) == {1.0}
    assert sequence.pool.layers[0][:, sequence.slot, :, 40:].abs().max() == 0


def test_clearing_gives_the_memory_back() -> None:
    kv = cache()
    running(kv, "a", 300)
    kv.clear()
    assert kv.allocated == 0
    assert kv.sequences == []
    assert kv.prefixes.find(list(range(300))) is None


def test_the_index_finds_the_deepest_row_and_prefers_one_that_is_ready() -> None:
    kv, index = cache(budget=8192), PrefixIndex()
    tokens = list(range(100))
    shallow, deep, ready = running(kv, "s", 100), running(kv, "d", 100, cached=0), running(kv, "r", 100)
    shallow.tokens = tokens[: 2 * BLOCK_TOKENS] + [-1] * 60
    deep.tokens = ready.tokens = tokens
    for sequence in (shallow, deep):
        index.add(sequence)
    assert index.find(tokens) is deep
    index.add(ready)
    assert index.find(tokens) is ready
    index.remove(ready)
    index.remove(deep)
    assert index.find(tokens) is shallow
    assert index.find(tokens[: BLOCK_TOKENS - 1]) is None
    index.remove(shallow)
    assert not index.by_prefix
    assert not index.prefixes


def test_clear_frees_the_memory_while_the_collector_is_deferred() -> None:
    kv = cache()
    with deferred_collection():
        sequence = running(kv, "a", 300)
        memory = [weakref.ref(layer) for layer in sequence.pool.layers]
        kv.clear()
        assert all(layer() is None for layer in memory), "a caller's own sequence keeps no memory either"
