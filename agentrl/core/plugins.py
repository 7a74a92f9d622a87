"""Creates objects from YAML entries that name a class; used by tools and interactions.

Users' modules are imported and their constructors called here. Each error becomes a UserError of one line that names
the YAML file and the entry.
"""

import importlib
import importlib.util
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from yaml import YAMLError

from agentrl.core.compatibility import layers
from agentrl.core.errors import UserError, one_line, reported_as
from agentrl.core.extensions import load_plugins
from agentrl.core.foreign import read_yaml
from agentrl.core.resources import find, load_module, read_text, share


@dataclass(frozen=True)
class Entry:
    """One item of the YAML's list."""

    file: Path
    where: str
    """`<file>: tools[0]`, for messages."""
    class_name: str
    """Empty if the tool is an MCP server."""
    config: dict[str, Any]
    fields: dict[str, Any]
    """The item as written."""

    def load_class(self) -> type:
        """The class that `class_name` means. Raises UserError."""
        return find_class(self.class_name, folder=self.file.parent, where=self.where)

    def make(self, *args: Any) -> Any:
        """Create the object. Raises UserError."""
        kind = self.load_class()
        with reported_as(f"{self.where}: {self.class_name}(...)"):
            return kind(*args)


def read_entries(path: str, key: str, *, what: str) -> list[Entry]:
    """The items of the list `key` in a YAML file; `what` is the config key that named it. Raises UserError."""
    from omegaconf import OmegaConf  # here, because processes that load a function alone do without it
    from omegaconf.errors import OmegaConfBaseException

    file = find(path, what=what)
    try:
        text = read_text(file)
        read_yaml(text)  # it refuses what would keep the next one busy
        content = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    except (YAMLError, OmegaConfBaseException, OSError) as error:
        raise UserError(f"{file}: {one_line(error)}") from error
    items = content.get(key) if isinstance(content, dict) else None
    if not isinstance(items, list):
        has = f" (it has {', '.join(map(str, content))})" if isinstance(content, dict) and content else ""
        raise UserError(
            f"{file} has no list {key!r} at the top{has}: write `{key}:` and its items below, each with a dash"
        )
    return [_entry(file, f"{file}: {key}[{i}]", item) for i, item in enumerate(items)]


def find_class(name: str, *, folder: Path, where: str, key: str = "class_name") -> type:
    """The class `module.Class`: first in the folder of the YAML, then on the import path.

    `where`, `key`: of the name, for messages. Raises UserError."""
    ready_made = next(filter(None, (layer.ready_made(name) for layer in layers())), None)
    if ready_made is not None:
        file, class_name = ready_made
        module = load_user_file(share() / file, where=where)
    else:
        module_name, _, class_name = name.rpartition(".")
        if not module_name:
            raise UserError(f"{where}: {key} {name!r} has no module: write module.Class")
        with ExitStack() as stack:
            for layer in layers():
                stack.enter_context(layer.importing())
            module = _load_named(module_name, folder, f"{where}: {name}")
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        place = module.__file__ or module.__name__
        raise UserError(f"{where}: {place} has no class {class_name!r}: correct {key}")
    return found


def load_user_file(file: Path, *, where: str) -> ModuleType:
    """Run a user's Python file; it may import its neighbours. Raises UserError."""
    _widen_import_path(file.parent)
    with reported_as(where):
        return load_module(file, package=next(filter(None, (layer.package_of(file) for layer in layers())), None))


def load_attribute(path: str, name: str | None, *, what: str, section: bool = False) -> Any:
    """The class or function `name` in a Python file, or in an importable module ("pkg.module", "pkg://pkg.module").

    Raises UserError naming `what` (a key, or a `section` with the keys path and name) when file, module or name do not
    work out.
    """
    path_key, name_key = (f"{what}.path", f"{what}.name") if section else (what, what)
    if not name:
        raise UserError(f"{name_key} is missing: name the class or function in {path}")
    module = _load_module(path, path_key, f"{path_key}: {path}")
    if not hasattr(module, name):
        raise UserError(f"{name_key}: {path} has no {name!r}: {_offers(module)}")
    return getattr(module, name)


def import_external(name: str | None, section: str) -> None:
    """Import the module, or the Python file, that `<section>.external_lib` names, for what it registers.

    It may be in the current folder. Raises UserError.
    """
    if name is None:
        return
    _load_module(name, f"{section}.external_lib", f"{section}.external_lib: {name} does not import")
    for layer in layers():
        layer.adopt_registered()


def _load_module(path: str, key: str, where: str) -> ModuleType:
    """The module of a Python file, or of an importable name, which may begin with pkg://."""
    if path.endswith(".py") or ("/" in path and not path.startswith("pkg://")):
        return load_user_file(find(path, what=key), where=where)
    _widen_import_path(Path.cwd())
    with reported_as(where):
        return importlib.import_module(path.removeprefix("pkg://"))


def _offers(module: ModuleType) -> str:
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__ and n[0] != "_"]
    return f"it has {', '.join(own)}" if own else "it has no function or class of its own"


def _load_named(name: str, folder: Path, where: str) -> ModuleType:
    file = folder / f"{name}.py"
    if file.is_file():
        return load_user_file(file, where=where)
    _widen_import_path(folder)
    missing = True
    with suppress(ModuleNotFoundError):  # of a package above it
        missing = importlib.util.find_spec(name) is None
    for reason in filter(None, (layer.missing(name) for layer in layers() if missing)):
        raise UserError(f"{where}: {reason}")
    with reported_as(
        f"{where}: found neither {file.name} beside the YAML nor a module to import" if missing else where
    ):
        return importlib.import_module(name)


def _entry(file: Path, where: str, item: Any) -> Entry:
    if not isinstance(item, dict) or not isinstance(item.get("class_name", "" if "mcp" in item else None), str):
        raise UserError(f"{where} has no class_name: add `class_name: module.Class`")
    config = item.get("config") or {}
    if not isinstance(config, dict):
        raise UserError(f"{where}: config is {config!r}: write a mapping")
    return Entry(file, where, item.get("class_name", ""), config, item)


def _widen_import_path(folder: Path) -> None:
    """Let users' files import from their own and the current folder; at the end, so that installed modules win.

    For good, because a function may import only when it runs.
    """
    load_plugins()
    for layer in layers():
        layer.provide()
    for place in (str(folder), str(Path.cwd())):
        if place not in sys.path:
            sys.path.append(place)
    importlib.invalidate_caches()
