"""Files copied out of verl's package that still import their neighbours relatively: `from .base_tool import BaseTool`.

Such a file gets a package of its own, in which a name means the file beside it, where there is one, else the module of
verl's that is called so and has what is asked of it.
"""

import ast
import hashlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from agentrl_verl.modules import provide, table


def package_of(file: Path) -> str | None:
    """The package to load `file` in; None where it imports nothing relatively."""
    if (file.parent / "__init__.py").exists():
        return _own_package(file) if any(_relative(file)) else None
    wanted = dict(_neighbours(file))
    if not wanted:
        return None
    provide()
    name = f"agentrl_copies_{hashlib.sha1(str(file.parent).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(file.parent)]
        sys.modules[name] = package
    for neighbour, names in wanted.items():
        if not (file.parent / f"{neighbour}.py").exists() and (theirs := _theirs(neighbour, names)):
            sys.modules[f"{name}.{neighbour}"] = importlib.import_module(theirs)
    return name


def _own_package(file: Path) -> str:
    """The packages around the file, without what their `__init__.py` do: it may need much that the file does not."""
    folders = [file.parent]
    while (folders[0].parent / "__init__.py").exists():
        folders.insert(0, folders[0].parent)
    if (root := str(folders[0].parent)) not in sys.path:
        sys.path.append(root)
    name = f"agentrl_copies_{hashlib.sha1(str(folders[0]).encode()).hexdigest()[:8]}"
    for folder in folders:
        name = name if folder is folders[0] else f"{name}.{folder.name}"
        package = sys.modules.setdefault(name, ModuleType(name))
        package.__path__ = [str(folder)]
    return name


def _neighbours(file: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(module, names imported from it) of the file's `from .module import names`."""
    for node in _relative(file):
        if node.level == 1 and node.module:
            yield node.module, tuple(alias.name for alias in node.names)


def _relative(file: Path) -> Iterator[ast.ImportFrom]:
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:
        return  # said when the file is imported
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node


def _theirs(neighbour: str, names: tuple[str, ...]) -> str | None:
    """The module of verl's that ends in `neighbour` and has `names`."""
    known: Mapping[str, Mapping[str, tuple[str, str]]] = table()
    fitting = [module for module in known if module.rpartition(".")[2] == neighbour]
    return next((module for module in fitting if known[module].keys() >= set(names)), None)
