"""Where sequences' keys and values lie, which of them are kept, and who may share a prefix.

Invariants:
- allocated memory never exceeds the budget, which holds at least one sequence of the greatest length;
- a running row is never evicted; idle ones go, the longest unused first, when a running one needs room;
- a row's keys and values belong to its first `cached` tokens, and all were computed with the same weights:
  `clear` follows every change of weights.

Rows lie in pools whose capacities double, so a row is at least half full (but for the smallest), batched attention
meets sequences of similar length, and one long sequence does not widen the short ones. A row that outgrows its pool
is copied into the next: once in each doubling.
"""

from agentrl.engines.hf.pool import Pool, Row, Shape
from agentrl.engines.hf.prefix import PrefixIndex

SMALLEST = 256
GROWTH = 1.5


class KVCache:
    """Rows in pools, within a budget of `budget` tokens."""

    def __init__(self, shape: Shape, *, budget: int, max_len: int) -> None:
        self.shape = shape
        self.budget = budget
        self.max_len = max_len
        self.pools: dict[int, Pool] = {}
        self.rows: list[Row] = []
        self.prefixes = PrefixIndex()
        self.clock = 0

    def acquire(self, key: str, tokens: list[int], length: int, *, expected: int = 1) -> Row | None:
        """A new running row with room for `length` tokens, None when memory is short.

        `expected` rows of this length are likely to follow soon: memory then grows once instead of bit by bit.
        """
        pool = self._pool(length)
        slot = self._slot(pool, expected)
        if slot is None:
            return None
        row = Row(key, tokens, pool, slot)
        pool.rows[slot] = row
        self.rows.append(row)
        return row

    def widen(self, row: Row, length: int) -> bool:
        """Make room for `length` tokens in a running row; False when memory is short."""
        if length <= row.pool.capacity:
            return True
        target = self._pool(length)
        slot = self._slot(target, sum(other.pool is row.pool and other.running for other in self.rows))
        if slot is None:
            return False
        target.copy_from(row.pool, row.slot, slot, row.cached)
        row.pool.rows[row.slot] = None
        row.pool, row.slot = target, slot
        target.rows[slot] = row
        return True

    def share(self, donor: Row, row: Row, count: int) -> None:
        """Copy the first `count` tokens' keys and values from `donor`."""
        row.pool.copy_from(donor.pool, donor.slot, row.slot, count)
        row.cached = count

    def rest(self, row: Row) -> None:
        """The row's request is over: keep it for the next one until room is needed."""
        self.clock += 1
        row.running = False
        row.last_used = self.clock

    def drop(self, row: Row) -> None:
        """Forget a row."""
        row.pool.rows[row.slot] = None
        self.rows.remove(row)
        self.prefixes.remove(row)

    def clear(self) -> None:
        """Forget every row and give the memory back."""
        self.rows.clear()
        self.prefixes.clear()
        self.pools.clear()

    @property
    def allocated(self) -> int:
        """Tokens that fit into the memory held now."""
        return sum(pool.tokens for pool in self.pools.values())

    def _pool(self, length: int) -> Pool:
        capacity = SMALLEST
        while capacity < length:
            capacity *= 2
        capacity = min(capacity, self.max_len)
        if capacity not in self.pools:
            self.pools[capacity] = Pool(self.shape, capacity)
        return self.pools[capacity]

    def _slot(self, pool: Pool, expected: int) -> int | None:
        slot = pool.free_slot()
        while slot is None:
            if not self._grow(pool, expected) and not self._evict():
                return None
            slot = pool.free_slot()
        return slot

    def _grow(self, pool: Pool, expected: int) -> bool:
        """Add slots as far as the budget goes; False when it has room for none."""
        wanted = max(expected, int(len(pool.rows) * (GROWTH - 1)), 1)
        self._trim(pool, wanted)
        slots = min(wanted, (self.budget - self.allocated) // pool.capacity)
        if slots <= 0:
            return False
        pool.resize(len(pool.rows) + slots)
        return True

    def _trim(self, pool: Pool, wanted: int) -> None:
        """Take free slots from the other pools where the budget would not do otherwise."""
        for other in list(self.pools.values()):
            if self.allocated + wanted * pool.capacity <= self.budget:
                return
            if other is pool:
                continue
            other.pack()
            other.resize(sum(row is not None for row in other.rows))
            if not other.rows:
                del self.pools[other.capacity]

    def _evict(self) -> bool:
        idle = [row for row in self.rows if not row.running]
        if not idle:
            return False
        self.drop(min(idle, key=lambda row: row.last_used))
        return True
