"""Files to and from a container, as tar archives.

Invariant: nothing that a container sends is written outside the target. The model made these files: links, devices and
paths that lead out are left out, so that no written path goes through a link.
"""

import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO

from agentrl.core.errors import InfraError, one_line

MAX_BYTES = 256 * 2**20
"""Most bytes of a download."""
MAX_FILES = 100_000
BYTES_IN_MEMORY = 2**20
"""Larger archives are kept on disk."""


@contextmanager
def packed(source: Path, to: str) -> Iterator[IO[bytes]]:
    """The archive that puts a file, or the content of a folder, at the path `to`; it belongs to root.

    Folders above `to` are not in it, so that those that are there keep their owner and mode; the engine makes the rest.
    """
    with SpooledTemporaryFile(BYTES_IN_MEMORY) as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            inside = sorted(source.iterdir()) if source.is_dir() else []
            for path in inside or [source]:
                tar.add(path, to.strip("/") + (f"/{path.name}" if inside else ""), filter=_of_root)
        file.seek(0)
        yield file


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def unpack(chunks: Iterable[bytes | bytearray], to: Path) -> None:
    """Write a file, or the content of a folder, to `to`. Raises InfraError for one that is too large."""
    with SpooledTemporaryFile(BYTES_IN_MEMORY) as file:
        for chunk in chunks:
            file.write(chunk)
            if file.tell() > MAX_BYTES:
                raise InfraError(f"it has more than {MAX_BYTES >> 20} MiB")
        file.seek(0)
        try:
            with tarfile.open(fileobj=file) as tar:
                _extract(tar, to)
        except tarfile.TarError as error:
            raise InfraError(f"its archive is broken: {one_line(error)}") from error


def _extract(tar: tarfile.TarFile, to: Path) -> None:
    """The first member is the file or folder itself; the names of all others begin with its name."""
    first = tar.next()
    if first is None or not (first.isfile() or first.isdir()):
        raise InfraError("it is neither a file nor a folder")
    folder = to if first.isdir() else to.parent
    folder.mkdir(parents=True, exist_ok=True)
    for count, member in enumerate(tar):
        if count > MAX_FILES:
            raise InfraError(f"it has more than {MAX_FILES} files")
        name = _below(member.name) if first.isdir() else to.name
        harmless = _harmless(member.replace(name=name, deep=False), folder)
        if harmless is not None:
            tar.extract(harmless, folder)


def _harmless(member: tarfile.TarInfo, folder: Path) -> tarfile.TarInfo | None:
    """The member if it is a folder, a file, or another name of a file that is there already."""
    if member.islnk():
        member = member.replace(linkname=_below(member.linkname), deep=False)
    there = member.islnk() and os.path.isfile(folder / member.linkname)
    kind = member.isfile() or member.isdir() or there
    if not member.name or not kind or member.issparse():  # a few bytes may stand for all of the disk
        return None
    try:
        return tarfile.data_filter(member, str(folder))
    except tarfile.FilterError:
        return None


def _below(name: str) -> str:
    return name.partition("/")[2]
