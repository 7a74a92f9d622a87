"""Files elsewhere (hdfs://, s3://, gs://, memory://): fetched before they are read, sent once they are complete.

The user installs the packages that a scheme needs besides fsspec (s3fs, gcsfs, pyarrow for hdfs); without them there is
a message that says so.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.inside import inside
from agentrl.core.paths import expanded

SHARED_MEMORY = Path("/dev/shm")
CACHE = "AGENTRL_CACHE"
"""Environment variable: folder of fetched files; default ~/.cache/agentrl."""
DRAFT = ".fetching-"


def is_remote(path: str) -> bool:
    """Whether a path is a URL of another place."""
    return "://" in path


def known_scheme(url: str, what: str) -> None:
    """Raises UserError for a URL of a kind that fsspec has never heard of."""
    from fsspec.registry import known_implementations

    scheme = url.partition("://")[0]
    if scheme not in known_implementations:
        raise UserError(f"{what}: {url} cannot be reached: fsspec knows no {scheme}://; use hdfs://, s3:// or gs://")


def fetch(url: str, what: str, *, into: Path | None = None, marker: str | None = None) -> Path:
    """A copy on this machine of a file or folder elsewhere; made once. `what`: the key that named it.

    `marker`: a file in the folder; it is copied again when the content of that file is another. Raises UserError where
    it cannot be had.
    """
    url = url.rstrip("/")
    place, remote = _open(url, what)
    version = place.cat_file(f"{remote}/{marker}") if marker and place.exists(f"{remote}/{marker}") else b""
    parent = into or cache_folder() / hashlib.sha256(url.encode() + version).hexdigest()[:16]
    local = parent / remote.rstrip("/").rpartition("/")[2]

    def get(draft: Path) -> None:
        if not place.exists(remote):
            raise UserError(f"{what}: there is no {url}")
        folder = place.isdir(remote)
        for name in place.find(remote) if folder else ():  # a bucket may have names with ..
            inside(draft / name.removeprefix(remote).lstrip("/"), draft, links=False)
        place.get(remote.rstrip("/"), str(draft), recursive=folder)

    return made_once(local, get, f"{what}: {url} cannot be fetched")


def in_shared_memory(path: str, what: str) -> str:
    """A copy of a file or folder in this machine's shared memory; made once, for all processes and runs to come.

    It stays there until it is deleted. Raises UserError where it does not fit.
    """
    if not SHARED_MEMORY.is_dir():
        raise UserError(f"{what}: this machine has no {SHARED_MEMORY}; set it to false")
    source = expanded(path).resolve()
    if not source.exists():
        raise UserError(f"{what}: {path} is no folder on this machine, so there is nothing to copy; set it to false")
    files = [file for file in sorted(source.rglob("*")) if file.is_file()] if source.is_dir() else [source]
    state = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    version = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
    local = SHARED_MEMORY / f"agentrl-{os.getuid()}" / version / source.name
    size, free = sum(size for _, size, _ in state), shutil.disk_usage(SHARED_MEMORY).free
    if size > free and not local.exists():
        raise UserError(f"{what}: {path} takes {size / 2**30:.1f} GiB, and {SHARED_MEMORY} has {free / 2**30:.1f}")
    copy = shutil.copytree if source.is_dir() else shutil.copyfile
    return str(made_once(local, lambda draft: copy(source, draft), f"{what}: {path} cannot be copied"))


def made_once(local: Path, make: Callable[[Path], object], trouble: str) -> Path:
    """`local`, which `make` writes where it is not there yet; whole or not at all. Raises UserError."""
    if local.exists():
        return local
    local.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=DRAFT, dir=local.parent)) / local.name
    try:
        make(draft)
        if not local.exists():  # another process may have been faster
            os.replace(draft, local)
    except OSError as error:
        if not local.exists():
            raise UserError(f"{trouble}: {error}") from error
    finally:
        shutil.rmtree(draft.parent, ignore_errors=True)
    return local


def local_copy(path: str, what: str) -> str:
    """The path itself, or the local copy of a URL."""
    return str(fetch(path, what)) if is_remote(path) else path


def send(folder: Path, url: str, last: str, what: str) -> None:
    """Copy a folder below `url`; its file `last` goes last, so that a folder with it is complete there.

    Raises UserError where it cannot be written.
    """
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    with _opened(url, what, "written") as (place, remote):
        target = f"{remote.rstrip('/')}/{folder.name}"
        if place.exists(f"{target}/{last}"):
            place.rm(f"{target}/{last}")
        if place.exists(target):  # what more ranks wrote, say: a reader must not mix it with these
            place.rm(target, recursive=True)
        for file in sorted(files, key=lambda file: file == folder / last):
            name = f"{target}/{file.relative_to(folder).as_posix()}"
            place.makedirs(name.rpartition("/")[0], exist_ok=True)
            place.put(str(file), name)


def complete(url: str, last: str, what: str) -> list[str]:
    """URLs of the folders below `url` that have the file `last`."""
    place, remote = _open(url, what)
    whole = (name for name in folders(url, what) if place.exists(f"{remote.rstrip('/')}/{name}/{last}"))
    return [f"{url.rstrip('/')}/{name}" for name in whole]


def folders(url: str, what: str) -> list[str]:
    """Names of the entries below `url`; empty if it does not exist. Raises UserError."""
    with _opened(url, what, "listed") as (place, remote):
        found = place.ls(remote, detail=False) if place.exists(remote) else []
    return [str(entry).rstrip("/").rpartition("/")[2] for entry in found]


def move(url: str, target: str, what: str) -> None:
    """Give a folder elsewhere another path in the same place. Raises UserError where it cannot be done."""
    new = _open(target, what)[1]
    with _opened(url, what, f"moved to {target}") as (place, remote):
        place.makedirs(new.rpartition("/")[0], exist_ok=True)
        place.mv(remote.rstrip("/"), new, recursive=True)


def remove(url: str, what: str) -> None:
    """Delete a folder elsewhere, if it is there. Raises UserError where it cannot be done."""
    with _opened(url, what, "removed") as (place, remote):
        if place.exists(remote):
            place.rm(remote, recursive=True)


def cache_folder() -> Path:
    """The folder of fetched files."""
    return Path(os.environ.get(CACHE) or Path.home() / ".cache" / "agentrl")


@contextmanager
def _opened(url: str, what: str, done: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL, and the path there; its errors say what cannot be `done`. Raises UserError."""
    try:
        yield _open(url, what)
    except OSError as error:
        raise UserError(f"{what}: {url} cannot be {done}: {error}") from error


def _open(url: str, what: str) -> tuple[Any, str]:
    import fsspec

    try:
        place, remote = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{what}: {url} cannot be reached: {why}") from error
    return place, str(remote)
