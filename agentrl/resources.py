"""Where ready-made files lie, and how a user's own Python files are loaded.

`configs/`, `tools/` and `interactions/` sit beside the package in a checkout or an editable install, and in
`agentrl/share/` in a wheel. A relative path means the current folder first, then these.
"""

import hashlib
import importlib.util
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.errors import UserError


def share() -> Path:
    """Folder that holds configs/, tools/ and interactions/."""
    package = Path(__file__).resolve().parent
    return package / "share" if (package / "share").is_dir() else package.parent


def find(path: str | Path, *, what: str) -> Path:
    """An existing file or folder. Raises UserError naming `what` (a config key, say) and the places looked at."""
    path = Path(path).expanduser()
    places = [path] if path.is_absolute() else [Path.cwd() / path, share() / path]
    for place in places:
        if place.exists():
            return place
    looked = " and ".join(str(p.parent) for p in places)
    raise UserError(f"{what}: {path} does not exist (looked in {looked})")


def load_module(file: Path) -> ModuleType:
    """Import a Python file under a name made from its path, once per process.

    The made-up name keeps a user's `search.py` from hiding, or being hidden by, an installed `search`.
    """
    file = file.resolve()
    name = f"agentrl_user_{file.stem}_{hashlib.sha1(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before running it: dataclasses and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_attribute(path: str, name: str | None, *, what: str) -> Any:
    """The class or function `name` in a Python file, or in an importable module ("pkg.module", "pkg://pkg.module").

    Raises UserError naming `what` (a config key) when the file, the module or the name does not work out.
    """
    if not name:
        raise UserError(f"{what}.name is missing; name the class or function in {path}")
    try:
        module = _module(path, what)
    except UserError:
        raise
    except Exception as error:  # anything can happen while a user's module runs
        raise UserError(f"{what}.path: {path} does not import: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise UserError(f"{what}.name: {path} has no {name!r}; {_offers(module)}")
    return getattr(module, name)


def _module(path: str, what: str) -> ModuleType:
    if path.startswith("pkg://"):
        return import_module(path.removeprefix("pkg://"))
    is_file = path.endswith(".py") or "/" in path
    return load_module(find(path, what=f"{what}.path")) if is_file else import_module(path)


def _offers(module: ModuleType) -> str:
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__ and n[0] != "_"]
    return f"it has {', '.join(own)}" if own else "it has no function or class of its own"
