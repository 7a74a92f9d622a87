"""The content of the files and objects that an experiment is made of, as digests.

Invariants: a digest depends on content alone, so a touched or moved file is the same one; files are read block by
block, and a large one that is unchanged since its last digest is not read again; of a model's large files samples are
read.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, astuple, fields
from functools import lru_cache
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

import yaml

from agentrl.config.given import given_objects, is_given
from agentrl.core.errors import UserError
from agentrl.core.foreign import read_yaml
from agentrl.core.inside import read_inside
from agentrl.core.json_text import to_json
from agentrl.core.own_code import DOTTED, own_files, own_module, own_sources
from agentrl.core.remote_files import is_remote
from agentrl.core.resources import find
from agentrl.core.row_sources import split_source
from agentrl.tracking.loggers import RECORD_FILE
from agentrl.trajectory.row import Row

PATHS = re.compile(r"(path|files|file|template|lib)$")
"""Last part of the keys that name files."""
OUTPUTS = (
    *("trainer.callbacks", "trainer.default", "trainer.logger", "trainer.output", "trainer.resume"),
    *("trainer.rollout", "trainer.validation", "ray"),
)
"""First part of the keys that name no input."""
CODE = re.compile(r"(.+\.py)(?::.*)?")
LARGE = 2**26
"""Bytes of a file that is not read again where its size and time are those of its last digest."""
SAMPLES, BLOCK = 32, 2**18
"""Blocks that are read of a model's large file, and their bytes."""
MODEL_FILES = {".safetensors", ".bin", ".json", ".jinja", ".model", ".txt", ".py"}

Digest = tuple[str, str]
"""(name of a file or object, digest of its content)"""
Contents = dict[str, list[Digest]]
"""Digests by setting, or by argument of the Python API."""


def contents_of(config: Any, objects: Any = None) -> Contents:
    """The content of each input that `config` and the caller's `objects` name."""
    found = {key: list(_digests(key, value)) for key, value in _leaves("", asdict(config))}
    passed = () if objects is None else ((field.name, getattr(objects, field.name)) for field in fields(objects))
    found |= {name: list(_of_object(value)) for name, value in passed if value is not None}
    for key, item in given_objects(config):
        found[key] = found.get(key, []) + ([] if key.startswith(OUTPUTS) else list(_of_object(item.value)))
    return {key: digests for key, digests in found.items() if digests}


def record_text(contents: Contents, total_steps: int) -> str:
    """The record of a run as JSON: its content and the number of all its steps."""
    return json.dumps({"total_steps": total_steps, "contents": contents}, indent=1)


def read_record(file: Path) -> tuple[Contents, int]:
    """(content, all steps) of a record; empty and 0 where there is none. Raises UserError for a damaged one."""
    if not file.is_file():
        return {}, 0
    try:
        found = json.loads(read_inside(file, file.parent))
        items = dict(found["contents"]).items()
        contents = {str(key): [(str(name), str(digest)) for name, digest in each] for key, each in items}
        return contents, int(found["total_steps"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise UserError(f"{file} is no record of agentrl; remove it, and edited files are not noticed") from None


def differing(old: Iterable[Digest], new: Iterable[Digest]) -> list[str]:
    """Names whose content is in one of the two alone."""
    return sorted({name for name, _ in set(old) ^ set(new)})


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(key, texts) of the settings that name something."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _leaves(f"{key}.{name}".lstrip("."), below)
    elif not key.startswith(OUTPUTS):
        yield key, [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _digests(key: str, texts: Iterable[str]) -> Iterator[Digest]:
    for text in texts:
        if text and "\n" not in text and not is_given(text) and not is_remote(text):
            yield from _named(key, text)


def _named(key: str, text: str) -> Iterator[Digest]:
    """Digests of what a setting names: code, a source of rows, or where the key is one of files, a file or folder."""
    source, code, here = split_source(text), CODE.fullmatch(text), [Path.cwd()]
    file = _found(code[1]) if code else None
    path = _found(source[1] if source else text) if PATHS.search(key) else None
    if file is not None:
        yield from map(_of_file, own_files(file, here))
    elif path is None:
        yield from _of_name(text, here, single=bool(PATHS.search(key)))
    if path is not None and path.is_dir():
        yield path.name, _of_model(path) if source is None else _of_folder(path)
    elif path is not None and file is None:
        yield from _of_yaml(path) if path.suffix in (".yaml", ".yml") else [_of_file(path)]


def _of_name(text: str, folders: list[Path], *, single: bool = False) -> Iterator[Digest]:
    """Code that a dotted name means: package.module:name, say; with `single` a module's name, too."""
    dotted = DOTTED.fullmatch(text)
    if dotted and (single or "." in text or ":" in text):
        for path in own_module(dotted[1], folders):
            yield from map(_of_file, own_files(path, folders))


def _of_yaml(file: Path) -> Iterator[Digest]:
    """A YAML file, and the code that it names; other files in it may be outputs."""
    yield _of_file(file)
    tree: Any = None
    with suppress(OSError, ValueError, yaml.YAMLError):
        tree = read_yaml(file.read_text(encoding="utf-8"))
    folders, waiting = [file.parent, Path.cwd()], [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            waiting += reversed(list(value.values()) if isinstance(value, dict) else value)
        elif isinstance(value, str) and (code := CODE.fullmatch(value)):
            found = next((path for folder in folders if (path := folder / code[1]).is_file()), None)
            yield from map(_of_file, own_files(found, folders) if found else ())
        elif isinstance(value, str) and len(value) < 200:
            yield from _of_name(value, folders)


def _of_object(value: Any) -> Iterator[Digest]:
    """A function, class, object or file of the caller's, or a list of them; rows together."""
    items = list(value) if isinstance(value, list | tuple) else [value]
    if items and isinstance(items[0], Row):
        digest = blake2b(digest_size=16)
        for row in items:
            digest.update(to_json(astuple(row), lambda each: type(each).__name__).encode())
        yield "rows", digest.hexdigest()
        return
    for item in items:
        if isinstance(item, str | Path):
            yield from _named("path", str(item))
        else:
            sources = own_sources(item)
            yield from (_of_file(src) if isinstance(src, Path) else (name, _of_text(src)) for name, src in sources)


def _found(text: str) -> Path | None:
    try:
        path = find(text, what="") if text else None
        return None if path is None or Path.cwd().is_relative_to(path) else path
    except (UserError, OSError, ValueError):
        return None  # a hub id, say; a missing file is told where it is read


def _of_text(text: str) -> str:
    return blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()


def _of_file(file: Path) -> Digest:
    try:
        state = file.stat()
        if state.st_size >= LARGE:
            return file.name, _of_large_file(str(file), state.st_size, state.st_mtime_ns)
        return file.name, blake2b(file.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        return file.name, str(error.strerror)  # the run that reads it says so


@lru_cache(maxsize=4096)
def _of_large_file(file: str, size: int, time: int) -> str:
    """The digest of a file's state, which is computed once."""
    with open(file, "rb") as stream:
        return file_digest(stream, lambda: blake2b(digest_size=16)).hexdigest()


def _of_folder(folder: Path) -> str:
    """Names and content of a folder's files, but hidden ones."""
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    shown = [name for name in names if not any(part.startswith((".", "__pycache__")) for part in name.parts)]
    return _of_text("".join(f"{name} {_of_file(folder / name)[1]}\n" for name in shown))


def _of_model(folder: Path) -> str:
    """Names and content of a model's files; of large ones a few blocks."""
    files = [path for path in sorted(folder.iterdir()) if path.suffix in MODEL_FILES and path.name != RECORD_FILE]
    return _of_text("".join(f"{path.name} {_sample(path)}\n" for path in files))


def _sample(file: Path) -> str:
    with suppress(OSError):
        if (size := file.stat().st_size) > SAMPLES * BLOCK:
            return _of_blocks(file, size)
    return _of_file(file)[1]


def _of_blocks(file: Path, size: int) -> str:
    """The digest of a file's size and of SAMPLES blocks, which are evenly apart."""
    digest = blake2b(str(size).encode(), digest_size=16)
    with file.open("rb") as stream:
        for place in range(0, size, size // SAMPLES):
            stream.seek(place)
            digest.update(stream.read(BLOCK))
    return digest.hexdigest()
