"""The paths in a configuration: made absolute once, and looked for before slow work starts.

Invariants:
- the type of a key in the schema says that it names a path; a name in a registry may be the path of an object, too;
- a relative path that is read is found in the current folder, in the folder of the user's YAML, or among the shipped
  files, in this order; one that is written is in the current folder;
- a path that is absolute stays as it is, so that a second pass changes nothing; URLs, row sources that name no file and
  objects of the caller's stay too.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.config.given import is_given
from agentrl.config.keys import Place, places
from agentrl.config.schema.marks import OpenChoice, PathKind
from agentrl.core.errors import UserError
from agentrl.core.paths import absolute, expanded, shown
from agentrl.core.remote_files import is_remote, known_scheme
from agentrl.core.resources import find, lookup
from agentrl.core.row_sources import BY_PATH, split_source

HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
LOCAL_FOLDERS = ("models", "model", "runs", "checkpoints", "outputs", "output", "data")
"""First parts of a path that no organization on a model hub has."""
OBJECT = re.compile(r"([^:]+\.py)(:[\w.]+.*)")
"""`file.py:name`, and what follows."""

Folders = Sequence[Path]


def settle_paths(config: Any, folders: Folders = ()) -> None:
    """Make the paths of a configuration absolute, in place. `folders`: those of the user's YAML files."""
    for place, kind in _places(config):
        setattr(place.owner, place.name, _each(place.value, partial(_settled, kind=kind, folders=folders)))


def check_paths(config: Any, folders: Folders = ()) -> None:
    """Raises UserError, with the places looked at, for a path that must exist and does not."""
    for place, kind in _places(config):
        _each(place.value, partial(_check, key=place.key, kind=kind, folders=folders))


def forget_missing(config: Any, folders: Folders = ()) -> set[str]:
    """Give each key whose path leads nowhere its default, in place; returns these keys."""
    missing = set()
    for place, kind in _places(config):
        try:
            _each(place.value, partial(_check, key=place.key, kind=kind, folders=folders))
        except UserError:
            missing.add(place.key)
            setattr(place.owner, place.name, getattr(type(place.owner)(), place.name))
    return missing


def _places(config: Any) -> Iterator[tuple[Place[Any], PathKind]]:
    """The settings that have a path, or a list of them, and how it is found."""
    yield from ((place, place.mark) for place in places(config, PathKind))
    yield from ((place, PathKind.CODE) for place in places(config, OpenChoice))


def _settled(path: Any, kind: PathKind, folders: Folders) -> Any:
    if not isinstance(path, str) or is_given(path) or is_remote(path):
        return path
    if kind is PathKind.OUTPUT:
        return str(absolute(path))
    if kind is PathKind.ROWS and (source := split_source(path)) is not None:
        return _settled_source(path, *source, folders)
    if kind is PathKind.CODE and (own := OBJECT.fullmatch(path)):
        return f"{_settled(own[1], kind, folders)}{own[2]}"
    if not _names_file(path, kind):
        return path
    found = lookup(path, folders, ours=kind is not PathKind.MODEL)
    return str(found) if found is not None else str(expanded(path)) if path.startswith("~") else path


def _settled_source(path: str, name: str, argument: str, folders: Folders) -> str:
    """A row source with its file, or the folder that its argument names, made absolute."""
    if BY_PATH.fullmatch(path):
        name = _settled(name, PathKind.CODE, folders)
    elif name in ("tasks", "swe") or argument.startswith("~"):
        argument = str(absolute(argument))
    return f"{name}:{argument}" if argument else name


def _names_file(path: str, kind: PathKind) -> bool:
    if kind is PathKind.CODE:
        return path.endswith(".py") or ("/" in path and not path.startswith("pkg://"))
    return bool(path) and not (kind is PathKind.TEXT and "{" in path)


def _check(path: Any, key: str, kind: PathKind, folders: Folders) -> None:
    if kind is PathKind.ROWS and not isinstance(path, str):
        raise UserError(f"{key}: {path!r} is not a path; give a file or a list of files")
    if is_given(path) or (kind is PathKind.ROWS and split_source(path)):
        return
    if is_remote(path):
        if kind is not PathKind.CODE:
            known_scheme(path, key)
    elif kind in (PathKind.OUTPUT, PathKind.LATER):
        return
    elif kind is PathKind.MODEL:
        _check_model(key, path)
    elif _names_file(path := _file_of(path, kind), kind):
        _check_file(key, path, kind, folders)


def _file_of(path: str, kind: PathKind) -> str:
    own = OBJECT.fullmatch(path) if kind is PathKind.CODE else None
    return own[1] if own else path


def _check_file(key: str, path: str, kind: PathKind, folders: Folders) -> None:
    try:
        find(path, what=key, folders=folders)
    except UserError as error:
        hint = "; `agentrl data --help` shows how to write one" if kind is PathKind.ROWS else ""
        raise UserError(f"{error}{hint}") from None


def _check_model(key: str, path: str) -> None:
    folder = absolute(path)
    if folder.exists() or (folder.name == "actor" and folder.parent.exists()):  # verl's name of a checkpoint's model
        return
    above = folder.parent
    local = path.partition("/")[0] in LOCAL_FOLDERS or (above != Path.cwd() and above.is_dir())
    if local or not HUB_ID.fullmatch(path):
        near = get_close_matches(folder.name, [file.name for file in above.iterdir()], 1) if above.is_dir() else []
        guess = f"did you mean {shown(above / near[0])}? " if near else ""
        fix = f"{guess}`agentrl model --help` shows how to prepare one"
        raise UserError(f"{key}: {path} does not exist: there is no such folder in {above}; {fix}")


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """The change of a value, or of each member of a list; None stays."""
    if isinstance(value, list | tuple):
        return [_each(item, change) for item in value]
    return None if value is None else change(value)
