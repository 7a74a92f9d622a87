"""Finds ready-made files and loads users' Python files.

`configs/`, `tools/`, `interactions/` and `agents/` are beside the package in a checkout or an editable install, and in
`agentrl/share/` in a wheel. A relative path is searched in the current folder first, then here.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from agentrl.core.errors import UserError
from agentrl.core.paths import absolute, expanded


def share() -> Path:
    """Folder that holds configs/, tools/, interactions/ and agents/."""
    package = Path(__file__).resolve().parents[1]
    return package / "share" if (package / "share").is_dir() else package.parent


def find(path: str | Path, *, what: str, folders: Sequence[Path] = ()) -> Path:
    """An existing file or folder. Raises UserError naming `what` (a config key, say) and the places looked at.

    `folders`: further ones, looked in after the current folder.
    """
    if (found := lookup(path, folders)) is not None:
        return found
    looked = " and ".join(dict.fromkeys(str(place.parent) for place in _places(path, folders)))
    raise UserError(f"{what}: {path} does not exist (looked in {looked})")


def lookup(path: str | Path, folders: Sequence[Path] = (), *, ours: bool = True) -> Path | None:
    """The first file or folder of that name that exists; `ours`: shipped ones count."""
    return next((place for place in _places(path, folders, ours=ours) if place.exists()), None)


def _places(path: str | Path, folders: Sequence[Path], *, ours: bool = True) -> list[Path]:
    path = expanded(path)
    return [absolute(folder / path) for folder in (Path.cwd(), *folders, *[share()] * ours)]


def read_text(file: Path) -> str:
    """A user's text file. Raises UserError, naming the line, where it cannot be read or is not UTF-8."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        line = content.count(b"\n", 0, error.start) + 1
        place, known = (file, "utf-16") if wide else (f"{file}:{line}", "latin1")
        save = f"iconv -f {known} -t utf-8 {file} > {file.stem}.utf8{file.suffix}"
        raise UserError(f"{place} is not UTF-8: save it as UTF-8, with `{save}` say") from None


def load_module(file: Path, *, package: str | None = None) -> ModuleType:
    """Import a Python file under a name made from its path, once per process.

    The made-up name keeps a user's `search.py` from hiding, or being hidden by, an installed `search`. Relative imports
    are of `package`.
    """
    file = file.resolve()
    name = f"agentrl_user_{file.stem}_{hashlib.sha1(str(file).encode()).hexdigest()[:8]}"
    name = f"{package}.{name}" if package else name
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
