"""Measures and empties folders that hostile programs filled.

No function follows a symbolic link, recurses, or holds more than a few descriptors, at any depth of the tree.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Collection, Iterable, Iterator

from agentrl_sandbox.kernel.syscalls import open_beneath, read_entries
from agentrl_sandbox.memory import take

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_BLOCK = 512
_ROOM = 1 << 14
_LENGTH, _NAME, _DOT = 16, 19, ord(".")
"""Offsets of an entry's length and of its name."""


def size(folder: str, most: int) -> tuple[int, int]:
    """(bytes on disk, entries) of a folder that programs may be changing. Stops after `most` entries.

    Raises OSError for a tree that is too deep to have a path.
    """
    parent = os.open(os.path.dirname(folder), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        root = _open(parent, os.path.basename(folder))
    finally:
        os.close(parent)
    taken = entries = 0
    queue = ["."]
    try:
        while queue and entries <= most:
            path = queue.pop()
            found = _list(root, path)
            taken += sum(about.st_blocks for _, about in found) * _BLOCK
            entries += len(found)
            queue += [f"{path}/{name}" for name, about in found if stat.S_ISDIR(about.st_mode)]
    finally:
        os.close(root)
    return taken, entries


def size_of_files(folder: str, names: Collection[str]) -> int | None:
    """Bytes on disk of the plain files `names`; None if `folder` holds, or may hold, anything else.

    No other name in the folder gets into the memory of this process.
    """
    if any("/" in name for name in names):
        return None
    try:
        found = list(_about(folder, names))
        if _count(folder, len(found)) != len(found):
            return None
    except OSError:
        return None
    files = all(stat.S_ISREG(about.st_mode) for about in found)
    return sum(about.st_blocks for about in found) * _BLOCK if files else None


def _about(folder: str, names: Iterable[str]) -> Iterator[os.stat_result]:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            yield os.lstat(os.path.join(folder, name))


def _count(folder: str, most: int) -> int:
    """Number of entries of a folder; stops after `most`. Reads them into memory that returns to the kernel."""
    room = take(_ROOM)
    handle = os.open(folder, _FOLDER | os.O_CLOEXEC)
    found = 0
    try:
        while found <= most and (end := read_entries(handle, room)):
            at = 0
            while at < end:
                found += not _is_dots(room[at + _NAME :])
                at += int.from_bytes(room[at + _LENGTH : at + _LENGTH + 2], sys.byteorder)
    finally:
        os.close(handle)
    return found


def _is_dots(name: memoryview) -> bool:
    """Whether a name, which a NUL ends, is "." or ".."."""
    return name[0] == _DOT and (name[1] == 0 or (name[1] == _DOT and name[2] == 0))


def _list(root: int, path: str) -> list[tuple[str, os.stat_result]]:
    try:
        handle = _open(root, path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    try:
        for name in os.listdir(handle):
            with contextlib.suppress(FileNotFoundError):
                found.append((name, os.stat(name, dir_fd=handle, follow_symlinks=False)))
    finally:
        os.close(handle)
    return found


def _open(root: int, path: str) -> int:
    try:
        return open_beneath(root, path, _FOLDER)
    except PermissionError:  # a folder that its owner may write to but not list
        handle = open_beneath(root, path, os.O_PATH | os.O_DIRECTORY)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        finally:
            os.close(handle)
        return open_beneath(root, path, _FOLDER)


def deleted_but_open(pids: Iterable[int]) -> int:
    """Bytes of deleted files that one of these processes still has open."""
    files: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            handles = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for handle in handles:
            try:
                about = os.stat(f"/proc/{pid}/fd/{handle}")
            except OSError:
                continue
            if about.st_nlink == 0:
                files[about.st_dev, about.st_ino] = about.st_blocks * _BLOCK
    return sum(files.values())


def clear(folder: str) -> None:
    """Remove the contents of `folder`. The caller owns everything in it, and no other process may use it.

    Walks with the current folder, which is restored: no path gets long, and no call recurses.
    """
    here = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        open_levels = [_descend(folder)]
        names: list[str] = []
        while open_levels:
            if open_levels[-1]:
                names.append(open_levels[-1].pop())
                open_levels.append(_descend(names[-1]))
                continue
            open_levels.pop()
            if names:
                os.chdir("..")
                os.rmdir(names.pop())
    finally:
        os.fchdir(here)
        os.close(here)


def _descend(folder: str) -> list[str]:
    """Change into a folder and remove its files; the names of its folders."""
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        os.chmod(folder, 0o700)
    os.chdir(folder)
    folders: list[str] = []
    files: list[str] = []
    with os.scandir() as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
    for name in files:
        os.unlink(name)
    return folders
