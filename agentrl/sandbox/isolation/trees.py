"""Folders that hostile programs filled: how much is in them, and how to empty them.

Neither follows a symbolic link, recurses, or holds more than a few descriptors, however deep the tree.
"""

import os
import secrets
from collections.abc import Iterable

from agentrl.sandbox.kernel.syscalls import open_beneath

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_BLOCK = 512


def size(folder: str) -> tuple[int, int]:
    """(bytes on disk, entries), while programs change it. OSError for a tree that is too deep to have a path."""
    root = os.open(folder, _FOLDER | os.O_CLOEXEC)
    taken = entries = 0
    queue = ["."]
    try:
        while queue:
            path = queue.pop()
            for name, about, is_folder in _list(root, path):
                taken += about.st_blocks * _BLOCK
                entries += 1
                if is_folder:
                    queue.append(f"{path}/{name}")
    finally:
        os.close(root)
    return taken, entries


def _list(root: int, path: str) -> list[tuple[str, os.stat_result, bool]]:
    try:
        handle = _open(root, path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    try:
        with os.scandir(handle) as entries:
            for entry in entries:
                try:
                    found.append((entry.name, entry.stat(follow_symlinks=False), entry.is_dir(follow_symlinks=False)))
                except FileNotFoundError:
                    continue
    finally:
        os.close(handle)
    return found


def _open(root: int, path: str) -> int:
    try:
        return open_beneath(root, path, _FOLDER)
    except PermissionError:  # a folder its owner may fill but not list
        handle = open_beneath(root, path, os.O_PATH | os.O_DIRECTORY)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        finally:
            os.close(handle)
        return open_beneath(root, path, _FOLDER)


def deleted_but_open(pids: Iterable[int]) -> int:
    """Bytes of files that have no name any more and are kept by a descriptor of one of these processes."""
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
    """Remove all that is in `folder`. Nobody else may be at work in it; the caller owns everything."""
    os.chmod(folder, 0o700)
    while names := os.listdir(folder):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isdir(path) and not os.path.islink(path):
                _lift(path, folder)
            else:
                os.unlink(path)


def _lift(inner: str, outer: str) -> None:
    """Move what `inner` holds up into `outer`, remove `inner`: a chain of folders gets shorter, no path longer."""
    os.chmod(inner, 0o700)
    for name in os.listdir(inner):
        path = os.path.join(inner, name)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o700)
            os.rename(path, os.path.join(outer, secrets.token_hex(16)))
        else:
            os.unlink(path)
    os.rmdir(inner)
