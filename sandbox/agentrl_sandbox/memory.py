"""Memory for a job's data that is returned to the kernel when its last reference goes.

A warden may do several jobs, each in a fork of itself. What lay on the ordinary heap could still be found there by the
next one; a mapping of its own is gone.
"""

import mmap
import os
from collections.abc import Sequence

_AT_MOST = 1 << 20


def take(size: int) -> memoryview:
    """`size` bytes, zero until they are written, and taken from the system only as they are."""
    return memoryview(mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[:size]


class Stream:
    """What was read from a pipe, up to `cap` bytes."""

    def __init__(self, cap: int) -> None:
        self.room = take(cap)
        self.used = 0
        self.over = False
        """More came than is kept."""

    def read(self, handle: int) -> int | None:
        """Bytes read now, 0 at the end, None where nothing waits; a byte beyond the cap counts and is not kept."""
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
        """What was read."""
        return self.room[: self.used]

    @property
    def _whole(self) -> mmap.mmap:
        whole = self.room.obj
        assert isinstance(whole, mmap.mmap), "from take"
        return whole

    def after_first(self, mark: bytes) -> bytes:
        """A copy of what follows the first `mark`, one byte; of all where there is none."""
        return self._whole[self._whole.find(mark, 0, self.used) + 1 : self.used]

    def after_last(self, mark: bytes) -> bytes:
        """A copy of what follows the last `mark`, one byte; of all where there is none."""
        return self._whole[self._whole.rfind(mark, 0, self.used) + 1 : self.used]

    def tail_has_any(self, words: Sequence[bytes], last: int) -> bool:
        """Whether one of `words` stands in the last bytes. Looks without copying."""
        whole = self._whole
        return any(whole.find(word, max(0, self.used - last), self.used) >= 0 for word in words)
