"""A control group, from inside: how much memory its processes have, by descriptors that were opened outside."""

import os
from collections.abc import Sequence

_CACHES = (b"inactive_file", b"active_file", b"total_inactive_file", b"total_active_file", b"slab_reclaimable")
"""Memory that the kernel takes back when it needs some: pages of the host's files, read by whoever came first."""


class Group:
    """A slot's, in its warden."""

    def __init__(self, handles: Sequence[int]) -> None:
        """As from Groups.open."""
        self.door, self.stat, *self.counters = handles
        self.before = 0

    def enter(self) -> None:
        """Go in, with all that is forked from now on. Raises OSError."""
        os.write(self.door, b"0")
        os.close(self.door)

    def begin(self) -> None:
        """What is there now does not count."""
        self.before = self._all()

    def used(self) -> int:
        """Bytes since `begin`."""
        return max(0, self._all() - self.before)

    def _all(self) -> int:
        whole = sum(int(os.pread(handle, 64, 0)) for handle in self.counters)
        words = (line.split() for line in os.pread(self.stat, 1 << 16, 0).splitlines())
        sizes = {name: int(size) for name, size in words if name in _CACHES}
        sums = any(name.startswith(b"total_") for name in sizes)  # version 1 has both the group's own and the sums
        return whole - sum(size for name, size in sizes.items() if name.startswith(b"total_") is sums)
