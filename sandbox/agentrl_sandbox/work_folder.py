"""Writes files to the work folder and reads them back. The kernel resolves each path beneath the folder.

The folder's content may be hostile: only plain files are read, no open can block, and sizes are capped.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from agentrl_sandbox.kernel.syscalls import open_beneath

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_LONGEST = 255
Files = Mapping[str, tuple[bytes | memoryview, int]]
"""Path -> content and mode."""


def checked(path: str) -> str:
    """The shortest form of a path in the work folder. Raises ValueError for one that leaves it."""
    pure = PurePosixPath(path)
    names = pure.parts
    unfit = not names or pure.is_absolute() or ".." in names or "\0" in path
    if unfit or any(len(name.encode(errors="surrogateescape")) > _LONGEST for name in names):
        raise ValueError(f"not a path in the work folder: {path[:80]!r}; give a relative one without '..'")
    return str(pure)


def stage(folder: str, files: Files) -> None:
    """Write `files`. Raises OSError, for example if the folder is full."""
    root = os.open(folder, _FOLDER | os.O_CLOEXEC)
    try:
        made: set[str] = set()
        for path, (content, mode) in files.items():
            _make_parents(root, path, made)
            handle = open_beneath(root, path, _WRITE, mode)
            try:
                _write_all(handle, content)
            finally:
                os.close(handle)
    finally:
        os.close(root)


def fetch(folder: str, paths: Sequence[str], limit: int) -> dict[str, bytes]:
    """The plain files among `paths`, up to `limit` bytes together; files beyond that are skipped."""
    root = os.open(folder, _FOLDER | os.O_CLOEXEC)
    found: dict[str, bytes] = {}
    try:
        for path in paths:
            content = _read_plain(root, path, limit - sum(map(len, found.values())))
            if content is not None:
                found[path] = content[0]
    finally:
        os.close(root)
    return found


def collect(folder: str, limit: int) -> dict[str, tuple[bytes, int]] | None:
    """All files of the folder with their modes; None if they exceed `limit` bytes or one is not plain."""
    found: dict[str, tuple[bytes, int]] = {}
    root = os.open(folder, _FOLDER | os.O_CLOEXEC)
    try:
        for path in _leaves(folder):
            content = _read_plain(root, path, limit)
            if content is None:
                return None
            found[path] = content
            limit -= len(content[0])
    finally:
        os.close(root)
    return found


def _leaves(folder: str) -> Iterator[str]:
    """Relative paths of everything but folders; of links to folders, too."""
    for where, folders, names in os.walk(folder):
        links = (name for name in folders if os.path.islink(os.path.join(where, name)))
        yield from (os.path.relpath(os.path.join(where, name), folder) for name in (*links, *names))


def runnable(files: dict[str, tuple[bytes, int]]) -> dict[str, tuple[bytes, int]]:
    """Files with an executable mode where they look like programs."""
    programs = (b"\x7fELF", b"#!")
    return {path: (content, 0o755 if content.startswith(programs) else mode) for path, (content, mode) in files.items()}


def _make_parents(root: int, path: str, made: set[str]) -> None:
    for parent in reversed(PurePosixPath(path).parents[:-1]):
        if str(parent) not in made:
            made.add(str(parent))
            _make_folder(root, parent)


def _make_folder(root: int, folder: PurePosixPath) -> None:
    above = open_beneath(root, str(folder.parent), _FOLDER)
    try:
        os.mkdir(folder.name, 0o755, dir_fd=above)
    except FileExistsError:
        pass
    finally:
        os.close(above)


def _write_all(handle: int, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _read_plain(root: int, path: str, limit: int) -> tuple[bytes, int] | None:
    try:
        handle = open_beneath(root, path, _READ)
    except OSError:
        return None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size > limit:
            return None
        parts = []
        while part := os.read(handle, 1 << 20):
            parts.append(part)
        return b"".join(parts), stat.S_IMODE(about.st_mode)
    finally:
        os.close(handle)
