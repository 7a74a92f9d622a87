"""Keys and values of all sequences, within a memory budget.

Invariants:
- allocated memory never exceeds the budget, which has room for at least one sequence of the greatest length;
- a running sequence is never evicted; when one needs room, idle sequences are dropped, the longest unused first;
- the keys and values of a sequence are those of its first `cached` tokens, computed with one version of the weights:
  `clear` follows every change of weights.

Sequences are in pools whose capacities double. So a slot is at least half full (except in the smallest pool), batched
attention gets sequences of similar length, and one long sequence does not widen the short ones. A sequence that
outgrows its pool is copied into the next: once for each doubling.
"""

from agentrl.engines.hf.prefix import PrefixIndex
from agentrl.engines.hf.slot_pool import CachedSequence, Shape, SlotPool

SMALLEST_CAPACITY = 256
GROWTH = 1.5


class KVCache:
    """Sequences in pools, `budget` tokens in all."""

    def __init__(self, shape: Shape, *, budget: int, max_len: int) -> None:
        self.shape = shape
        self.budget = budget
        self.max_len = max_len
        self.pools: dict[int, SlotPool] = {}
        self.sequences: list[CachedSequence] = []
        self.prefixes = PrefixIndex()
        self.clock = 0

    def acquire(self, key: str, tokens: list[int], length: int, *, expected: int = 1) -> CachedSequence | None:
        """A new running sequence with room for `length` tokens; None when memory is short.

        `expected`: how many sequences of this length are likely to follow soon, so that memory grows only once.
        """
        pool = self._pool(length)
        slot = self._slot(pool, expected)
        if slot is None:
            return None
        sequence = CachedSequence(key, tokens, pool, slot)
        pool.sequences[slot] = sequence
        self.sequences.append(sequence)
        return sequence

    def widen(self, sequence: CachedSequence, length: int) -> bool:
        """Make room for `length` tokens in a running sequence; False when memory is short."""
        if length <= sequence.pool.capacity:
            return True
        target = self._pool(length)
        slot = self._slot(target, sum(other.pool is sequence.pool and other.running for other in self.sequences))
        if slot is None:
            return False
        target.copy_from(sequence.pool, sequence.slot, slot, sequence.cached)
        sequence.pool.sequences[sequence.slot] = None
        sequence.pool, sequence.slot = target, slot
        target.sequences[slot] = sequence
        return True

    def share(self, donor: CachedSequence, sequence: CachedSequence, count: int) -> None:
        """Copy the first `count` tokens' keys and values from `donor`."""
        sequence.pool.copy_from(donor.pool, donor.slot, sequence.slot, count)
        sequence.cached = count

    def rest(self, sequence: CachedSequence) -> None:
        """Mark the sequence as idle: its request is over, and it stays for the next one until room is needed."""
        self.clock += 1
        sequence.running = False
        sequence.last_used = self.clock

    def drop(self, sequence: CachedSequence) -> None:
        """Remove a sequence."""
        sequence.pool.sequences[sequence.slot] = None
        self.sequences.remove(sequence)
        self.prefixes.remove(sequence)

    def clear(self) -> None:
        """Remove every sequence and free the memory at once: pools and sequences refer to each other, and a run defers
        the garbage collector."""
        for pool in self.pools.values():
            pool.free()
        self.sequences.clear()
        self.prefixes.clear()
        self.pools.clear()

    @property
    def allocated(self) -> int:
        """Tokens that fit into the memory allocated now."""
        return sum(pool.tokens for pool in self.pools.values())

    def _pool(self, length: int) -> SlotPool:
        capacity = SMALLEST_CAPACITY
        while capacity < length:
            capacity *= 2
        capacity = min(capacity, self.max_len)
        if capacity not in self.pools:
            self.pools[capacity] = SlotPool(self.shape, capacity)
        return self.pools[capacity]

    def _slot(self, pool: SlotPool, expected: int) -> int | None:
        slot = pool.free_slot()
        while slot is None:
            if not self._grow(pool, expected) and not self._evict():
                return None
            slot = pool.free_slot()
        return slot

    def _grow(self, pool: SlotPool, expected: int) -> bool:
        """Add slots within the budget; False when there is room for none."""
        wanted = max(expected, int(len(pool.sequences) * (GROWTH - 1)), 1)
        self._trim(pool, wanted)
        slots = min(wanted, (self.budget - self.allocated) // pool.capacity)
        if slots <= 0:
            return False
        pool.resize(len(pool.sequences) + slots)
        return True

    def _trim(self, pool: SlotPool, wanted: int) -> None:
        """Take free slots from the other pools when the budget would not suffice."""
        for other in list(self.pools.values()):
            if self.allocated + wanted * pool.capacity <= self.budget:
                return
            if other is pool:
                continue
            other.pack()
            other.resize(sum(sequence is not None for sequence in other.sequences))
            if not other.sequences:
                del self.pools[other.capacity]

    def _evict(self) -> bool:
        idle = [sequence for sequence in self.sequences if not sequence.running]
        if not idle:
            return False
        self.drop(min(idle, key=lambda sequence: sequence.last_used))
        return True
