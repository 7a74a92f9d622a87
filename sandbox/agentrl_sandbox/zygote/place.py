"""The work folder's path, in all places where an interpreter that was started with it keeps it.

Where no mount gives every run the same work folder, a fork of the warm interpreter gets the path of its own: it is
written over the one that the interpreter was started with, which is as long. Only memory that the interpreter or the
kernel points to is written to: what merely looks like the path may be anything tomorrow.
"""

import ctypes
import os
import site
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping

_WIDE = "utf-32-le"
_WORD = ctypes.sizeof(ctypes.c_void_p)
_MOST = 1 << 20
"""Bytes of the interpreter's state that are looked at."""
_MOST_WORDS = 8
"""Arguments on a command line that are looked at."""


class Place:
    """Of an interpreter that was started as `python PLACE/box/SOURCE`."""

    def __init__(self, place: str, file: str) -> None:
        """Find it. Raises OSError where this interpreter does not keep it as the ones known do."""
        self.place, self.file = place, file
        self.wide = sorted(set(_wide_strings(file)))
        self.shown = list(_in_kernels_sight(place.encode()))
        if len(self.wide) < 2:  # the file to run, and the first of the arguments
            raise OSError(f"{len(self.wide)} places of {file} in the interpreter's state")

    def move(self, place: str, variables: Mapping[str, str]) -> None:
        """In the user's process: all of it names `place`, a path of the same length; environment `variables` too."""
        file = self.file.replace(self.place, place)
        for address in self.wide:
            ctypes.memmove(address, file.encode(_WIDE), len(file) * 4)
        for address in self.shown:
            ctypes.memmove(address, place.encode(), len(place))
        os.environ.update(variables)
        sys.path_importer_cache[file] = None
        sys.path_importer_cache.pop(self.file, None)
        for name in ("USER_BASE", "USER_SITE"):
            if isinstance(value := getattr(site, name, None), str):
                setattr(site, name, value.replace(self.place, place))


def _in_kernels_sight(place: bytes) -> Iterator[int]:
    """Addresses of it among the arguments and variables that the process was started with."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        bounds = [int(field) for field in file.read().rpartition(")")[2].split()[45:49]]
    for start, end in (bounds[:2], bounds[2:]):
        block = ctypes.string_at(start, end - start)
        where = block.find(place)
        while where >= 0:
            yield start + where
            where = block.find(place, where + 1)


def _wide_strings(text: str) -> Iterator[int]:
    """Addresses of C's wide strings that are `text` and that the interpreter's state points to, or lists."""
    memory = _Memory()
    wanted = (text + "\0").encode(_WIDE)
    ctypes.pythonapi.PyInterpreterState_Get.restype = ctypes.c_void_p
    state = ctypes.pythonapi.PyInterpreterState_Get()
    words = memory.words(state, min(memory.rest(state), _MOST) // _WORD)
    for before, word in zip((0, *words), words, strict=False):
        if memory.has(word, wanted):
            yield word
        elif 0 < before <= _MOST_WORDS:  # a list: its length, then its items
            yield from (item for item in memory.words(word, before) if memory.has(item, wanted))


class _Memory:
    """What this process may write to."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        last = -1
        with open("/proc/self/maps", encoding="utf-8") as maps:
            for line in maps:
                start, end = (int(bound, 16) for bound in line.split(" ", 1)[0].split("-"))
                if line.split()[1].startswith("rw"):
                    last = last if self.ends.get(last) == start else start
                    self.ends[last] = end
        self.starts = sorted(self.ends)

    def rest(self, address: int) -> int:
        """Bytes from there to the end of its mapping; 0 outside of all."""
        index = bisect_right(self.starts, address) - 1
        return max(0, self.ends[self.starts[index]] - address) if index >= 0 else 0

    def has(self, address: int, content: bytes) -> bool:
        """Whether exactly that lies there."""
        return self.rest(address) >= len(content) and ctypes.string_at(address, len(content)) == content

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """Machine words from there on; none where they would leave the mapping."""
        if self.rest(address) < count * _WORD:
            return ()
        return tuple((ctypes.c_size_t * count).from_address(address))
