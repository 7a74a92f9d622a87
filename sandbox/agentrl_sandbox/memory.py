"""Memory for a job's data that returns to the kernel with its last reference.

A job supervisor may do several jobs, each in a fork of itself. The next job could still read data on the ordinary heap;
data in a mapping of its own is gone.
"""

import mmap
import os
from collections.abc import Sequence

_AT_MOST = 1 << 20


def take(size: int) -> memoryview:
    """`size` bytes of zeros, which the system provides as they are written."""
    return memoryview(mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[:size]


class Stream:
    """The output read from a pipe, up to `cap` bytes."""

    def __init__(self, cap: int) -> None:
        self.room = take(cap)
        self.used = 0
        self.over = False
        """The output exceeds the cap."""

    def read(self, handle: int) -> int | None:
        """Bytes read now, 0 at the end, None if there are none yet. A byte beyond the cap counts but is not kept."""
        rest = self.room[self.used : self.used + _AT_MOST]
        try:
            count = os.readv(handle, [rest]) if rest else len(os.read(handle, 1))
        except BlockingIOError:
            return None
        self.used += count if rest else 0
        self.over = not rest and count > 0
        return count

    @property
    def kept(self) -> memoryview:
        """The bytes read."""
        return self.room[: self.used]

    @property
    def _whole(self) -> mmap.mmap:
        whole = self.room.obj
        assert isinstance(whole, mmap.mmap), "from take"
        return whole

    def after_first(self, mark: bytes) -> bytes:
        """A copy of the bytes after the first `mark` (one byte); of all bytes if there is none."""
        return self._whole[self._whole.find(mark, 0, self.used) + 1 : self.used]

    def after_last(self, mark: bytes) -> bytes:
        """A copy of the bytes after the last `mark` (one byte); of all bytes if there is none."""
        return self._whole[self._whole.rfind(mark, 0, self.used) + 1 : self.used]

    def tail_has_any(self, words: Sequence[bytes], last: int) -> bool:
        """Whether one of `words` is in the last `last` bytes. Copies nothing."""
        whole = self._whole
        return any(whole.find(word, max(0, self.used - last), self.used) >= 0 for word in words)
