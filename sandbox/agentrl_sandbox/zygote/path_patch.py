"""Replaces the work folder's path wherever an interpreter that was started with it keeps it.

Without mounts the runs have different work folders. In a fork of the zygote, the path of its slot is written over
the path that the zygote was started with, which has the same length. Only memory that the interpreter or the kernel
points to is written to: other memory that looks like the path may be anything.
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
"""Bytes of the interpreter's state that are searched."""
_MOST_WORDS = 8
"""Arguments of a command line that are searched."""


class PathPatch:
    """For an interpreter that was started as `python SLOT_FOLDER/box/SOURCE`."""

    def __init__(self, slot_folder: str, file: str) -> None:
        """Find the addresses. Raises OSError for an interpreter with an unknown layout."""
        self.slot_folder, self.file = slot_folder, file
        self.wide = sorted(set(_wide_strings(file)))
        self.shown = list(_shown_by_kernel(slot_folder.encode()))
        if len(self.wide) < 2:  # the file to run, and the first of the arguments
            raise OSError(f"{len(self.wide)} addresses of {file} in the interpreter's state")

    def apply(self, slot_folder: str, variables: Mapping[str, str]) -> None:
        """In the user's process: write `slot_folder`, a path of the same length, and set environment `variables`."""
        file = self.file.replace(self.slot_folder, slot_folder)
        for address in self.wide:
            ctypes.memmove(address, file.encode(_WIDE), len(file) * 4)
        for address in self.shown:
            ctypes.memmove(address, slot_folder.encode(), len(slot_folder))
        os.environ.update(variables)
        sys.path_importer_cache[file] = None
        sys.path_importer_cache.pop(self.file, None)
        for name in ("USER_BASE", "USER_SITE"):
            if isinstance(value := getattr(site, name, None), str):
                setattr(site, name, value.replace(self.slot_folder, slot_folder))


def _shown_by_kernel(text: bytes) -> Iterator[int]:
    """Its addresses among the arguments and variables that the process was started with."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        bounds = [int(field) for field in file.read().rpartition(")")[2].split()[45:49]]
    for start, end in (bounds[:2], bounds[2:]):
        block = ctypes.string_at(start, end - start)
        where = block.find(text)
        while where >= 0:
            yield start + where
            where = block.find(text, where + 1)


def _wide_strings(text: str) -> Iterator[int]:
    """Addresses of wide C strings equal to `text` that the interpreter's state points to, directly or in a list."""
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
    """The writable memory of this process."""

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
        """Bytes from there to the end of its mapping; 0 outside all mappings."""
        index = bisect_right(self.starts, address) - 1
        return max(0, self.ends[self.starts[index]] - address) if index >= 0 else 0

    def has(self, address: int, content: bytes) -> bool:
        """Whether `content` is at that address."""
        return self.rest(address) >= len(content) and ctypes.string_at(address, len(content)) == content

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """`count` machine words from that address; empty if they would leave the mapping."""
        if self.rest(address) < count * _WORD:
            return ()
        return tuple((ctypes.c_size_t * count).from_address(address))
