"""Writes files whole or not at all, checks output folders before slow work starts, reports a full disk in one line."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

from agentrl.core.errors import InfraError, UserError
from agentrl.core.paths import expanded, shown
from agentrl.core.row_sources import split_source

BLOCK = 4096
"""Bytes that are tried: an empty file fits on a full disk."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EIO}
DRAFT = ".new-model"
ROWS = "rows"
"""Folder of rows that were passed as objects, in the folder of the model that learns from them."""
UNREAD = "model-unread.safetensors"
"""Tensors that transformers does not read, from the files of the model that training began with."""
WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
SYSTEM_SAYS = re.compile(r"No space left on device|Disk quota exceeded|File too large")
LIBRARIES_SAY = re.compile(r"os error (28|122|27)\b|inline_container|iostream error|failed writing|write failed")
"""Messages of torch and safetensors, which raise no OSError."""


def check_folder(folder: str | Path, what: str) -> None:
    """Raises UserError naming the config key `what` unless files can be written in a folder, which need not exist.

    Leaves no files.
    """
    folder = Path(folder)
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(BLOCK))
    except OSError as error:
        why = "it is a file" if folder.is_file() else f"{error.strerror}"
        raise UserError(f"{what}: {shown(folder)} cannot be written: {why}; name a writable folder") from None
    finally:
        for place in missing:
            with suppress(OSError):
                place.rmdir()


def check_file(file: str | Path, what: str) -> None:
    """Check a file's folder as `check_folder` does; the file may be there, and must be no folder."""
    file = Path(file)
    if file.is_dir():
        raise UserError(f"{what}: {shown(file)} is a folder; name a file in it")
    check_folder(file.parent, what)


def check_apart(output: str | Path, what: str, inputs: Mapping[str, Any]) -> None:
    """Raises UserError where an output is an input, lies in one, or has one in it; links are followed.

    `what`: the key that names the output. `inputs`: paths, sources of rows, or lists of them, by key; what is not on
    this machine does not count, and neither do rows that agentrl wrote to the output itself.
    """
    out = _real(output)
    for key, value in inputs.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            source = split_source(each)
            path = _real(source[1] if source else each or "")
            if not str(each or "") or not path.exists() or path.is_relative_to(out / ROWS):
                continue
            if out.is_relative_to(path) or path.is_relative_to(out):
                place = "is" if out == path else "is inside of" if out.is_relative_to(path) else "has in it"
                line = f"{what}={shown(output)} {place} the input {key}={each if source else shown(each)}"
                raise UserError(f"{line}: name another place for the output")


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(expanded(path)))


@contextmanager
def writing(what: str, fix: str = "free the disk, and run the same command again") -> Iterator[None]:
    """Trouble with the disk as one line: `what` cannot be written, why, and the `fix`. Raises InfraError."""
    try:
        yield
    except Exception as error:  # the libraries' own kinds, too
        why = error.strerror if isinstance(error, OSError) and error.errno in FULL | REFUSED else _disk_message(error)
        if why is None:
            raise
        raise InfraError(f"{what} cannot be written: {why}; {fix}") from error


@contextmanager
def model_folder(out: Path, what: str, *, first: bool = True) -> Iterator[Path]:
    """A folder to write a model to, whose files take their place in `out` once all of them are there.

    A disk that fills up spoils no model that was there before. `first`: whether this rank writes. Raises InfraError.
    """
    draft = out / DRAFT
    try:
        with writing(what):
            if first:
                shutil.rmtree(draft, ignore_errors=True)
                draft.mkdir(parents=True)
            yield draft
            if first:
                _take_place(draft, out)
    finally:
        if first:
            shutil.rmtree(draft, ignore_errors=True)


def superseded_path(folder: Path, before: str = "", suffix: str = "") -> Path:
    """A free name `<before>superseded_<k><suffix>` in a folder, for files that new ones would replace."""
    return next(path for k in count(1) if not (path := folder / f"{before}superseded_{k}{suffix}").exists())


def append_line(file: IO[bytes], line: bytes) -> None:
    """Add the whole line to an unbuffered file, or nothing of it. Raises OSError."""
    size = file.seek(0, os.SEEK_END)
    try:
        if file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(size)
        raise


def _take_place(draft: Path, out: Path) -> None:
    """Move the files of a complete draft. Of an older model, which had other shards, the weights go."""
    fresh = [file.relative_to(draft) for file in draft.rglob("*") if file.is_file()]
    for name in fresh:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(draft / name, out / name)
    if not any(name.match("model*.safetensors") for name in fresh):
        return  # an adapter: the folder may hold its base model
    for old in (file for pattern in WEIGHTS for file in out.glob(pattern) if file.relative_to(out) not in fresh):
        old.unlink()


def _disk_message(error: Exception) -> str | None:
    text = str(error)
    if found := SYSTEM_SAYS.search(text):
        return found[0]
    return "the disk took only a part of it" if LIBRARIES_SAY.search(text) else None


def trouble(error: OSError) -> str | None:
    """An error of the disk as one line; None for others, which are bugs."""
    if error.errno not in FULL | REFUSED:
        return None
    name = error.filename if isinstance(error.filename, str) else "a file"
    fix = "free the disk, and run the same command again" if error.errno in FULL else "name another place"
    return f"{name} cannot be written or read: {error.strerror}; {fix}"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft to write, which then replaces `path`: all of it or, when anything fails, nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_atomic(path: Path, chunks: Iterable[str]) -> None:
    """Replace `path` by the chunks as UTF-8: all of them or, when anything fails, none."""
    # Never through a link that lies there. No newline translation: what is written must be what a later run would
    # write.
    with replacing(path) as draft, draft.open("x", encoding="utf-8", newline="") as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Replace `path` by the rows: all of them or, when anything fails, none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with replacing(path) as draft:
        pq.write_table(pa.Table.from_pylist(rows), draft)


def tail(file: Path, size: int) -> str:
    """The text of the last `size` bytes. Raises OSError."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - size))
        return stream.read().decode(errors="replace")
