"""The user's own code: a file or an object, and all that it imports or names from files of the user's own.

Invariants: nothing is imported or run here; installed packages, Python's own modules and agentrl are not the user's.
"""

import ast
import inspect
import linecache
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from agentrl.core.compatibility import layers

INSTALLED = {"site-packages", "dist-packages"}
DOTTED = re.compile(r"(?:pkg://)?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?::\w+)?")
"""package.module.name or package.module:name"""
PLAIN = bool | int | float | str | bytes | tuple | frozenset


def own_files(file: Path, folders: Sequence[Path] = ()) -> list[Path]:
    """A Python file and the modules that it imports, directly or through others. `folders`: further import paths."""
    found: dict[Path, None] = {}
    waiting = [file.resolve()]
    while waiting:
        path = waiting.pop(0)
        if path not in found:
            found[path] = None
            waiting += _imports(path, [path.parent, file.parent, *folders])
    return list(found)


def own_module(name: str, folders: Sequence[Path]) -> Iterator[Path]:
    """The files of a dotted name, its packages included; the last parts may name an object."""
    top, *below = name.split(".")
    if top.startswith("agentrl") or top in sys.stdlib_module_names:
        return
    place = next((found for folder in folders if (found := _in_folder(folder, top))), None) or _installed(top)
    while place is not None and _is_own(place):
        if place.suffix == ".py":
            yield place.resolve()
        if not below or (place.suffix == ".py" and place.name != "__init__.py"):
            return
        place = _in_folder(place.parent if place.name == "__init__.py" else place, below.pop(0))


def own_sources(value: Any) -> Iterator[tuple[str, str | Path]]:
    """(name, source) of an object and of all that it names in its own module; of one from a module, the module's files.

    Empty where Python has no source of it.
    """
    waiting, seen = [value], set[int]()
    while waiting:
        found = _definition(waiting.pop(0))
        if id(found) not in seen:
            seen.add(id(found))
            file, within = _file_of(found), getattr(found, "__module__", None)
            if file is None or (within == "__main__" and _is_own(file)):
                named = _named_in(found)
                yield from _text_of(found, named)
                waiting += [each for each in named.values() if callable(each) or inspect.ismodule(each)]
            elif _is_own(file):
                yield from ((path.name, path) for path in own_files(file))


def _text_of(found: Any, named: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The source of a function, or of a class's methods, and the constants that they name."""
    for function in _functions(found):
        code = function.__code__
        lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
        yield function.__qualname__, "".join(inspect.getblock(lines)) if lines else ""
    yield from ((name, repr(each)) for name, each in named.items() if isinstance(each, PLAIN))


def _imports(file: Path, folders: Sequence[Path]) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # its own trouble, which is told where it is run
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (path for alias in names for path in own_module(alias.name, folders))
            case ast.ImportFrom(module=module, names=names, level=level):
                base = [file.parents[level - 1]] if 0 < level <= len(file.parents) else folders
                named = [".".join(filter(None, (module, alias.name))) for alias in names]
                yield from (path for name in named for path in own_module(name, base))


def _in_folder(folder: Path, name: str) -> Path | None:
    """The package or module of that name in a folder; a package without __init__.py is its folder."""
    tried = (folder / name / "__init__.py", folder / f"{name}.py", folder / name)
    return next((path for path in tried if (path.is_dir() if path.suffix == "" else path.is_file())), None)


def _installed(name: str) -> Path | None:
    with suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(name)
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        paths = [Path(place) for place in places if place]
        return next((path for path in paths if path.suffix == ".py" or path.is_dir()), None)
    return None


def _is_own(path: Path) -> bool:
    path = path.resolve()
    layer_files = [sys.modules[type(layer).__module__].__file__ for layer in layers()]
    folders = [Path(sysconfig.get_path("stdlib")), Path(__file__).parents[1]]
    theirs = [folder.resolve() for folder in (*folders, *(Path(file).parent for file in layer_files if file))]
    return not INSTALLED & set(path.parts) and not any(path.is_relative_to(folder) for folder in theirs)


def _definition(value: Any) -> Any:
    """The module, class or function that stands behind an object."""
    while isinstance(value, partial):
        value = value.func
    value = inspect.unwrap(getattr(value, "__func__", value))
    return value if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value) else type(value)


def _file_of(found: Any) -> Path | None:
    """The file of a definition; None for one of a notebook's cell or a terminal, and for a built-in one."""
    module = found if inspect.ismodule(found) else sys.modules.get(getattr(found, "__module__", ""))
    name = found.__code__.co_filename if inspect.isfunction(found) else getattr(module, "__file__", None)
    return Path(name) if name and Path(name).is_file() else None


def _functions(found: Any) -> list[FunctionType]:
    """A function itself, or the methods of a class."""
    values = [found] if inspect.isfunction(found) else vars(found).values() if inspect.isclass(found) else ()
    return [value for value in values if inspect.isfunction(value)]


def _named_in(found: Any) -> dict[str, Any]:
    """The globals that a function, or the methods of a class, look up."""
    waiting: list[tuple[CodeType, dict[str, Any]]] = [(f.__code__, f.__globals__) for f in _functions(found)]
    named = dict[str, Any]()
    while waiting:
        code, known = waiting.pop()
        named |= {name: known[name] for name in sorted(code.co_names) if name in known}
        waiting += [(each, known) for each in code.co_consts if isinstance(each, CodeType)]
    return named
