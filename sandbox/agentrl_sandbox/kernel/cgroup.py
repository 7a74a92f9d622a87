"""The memory of a control group, read by a process inside it through descriptors that were opened outside."""

import os
from collections.abc import Sequence

_CACHES = (b"inactive_file", b"active_file", b"total_inactive_file", b"total_active_file", b"slab_reclaimable")
"""Memory that the kernel can reclaim: pages of the host's files, charged to the first reader."""


class Cgroup:
    """The group of a slot, in its job supervisor."""

    def __init__(self, handles: Sequence[int]) -> None:
        """`handles`: from Cgroups.open."""
        self.procs, self.stat, *self.counters = handles
        self.before = 0

    def enter(self) -> None:
        """Enter, with all processes forked from now on. Raises OSError."""
        os.write(self.procs, b"0")
        os.close(self.procs)

    def begin(self) -> None:
        """Count from the present use."""
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
