"""Classes and functions of the user's own that an entry names."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.paths import expanded
from agentrl.core.plugins import load_attribute
from agentrl.core.user_code import UserFunction


@dataclass
class EnvironmentKind:
    """A kind of environment: the id of an entry, the arguments of its environment, and the folder of its file. Keys of
    the kind are keywords. `python`: the interpreter that runs it, relative to `folder`; None: this one."""

    id: str
    kwargs: dict[str, Any]
    folder: str = field(default=".", kw_only=True)
    python: str | None = field(default=None, kw_only=True)

    def close(self) -> None:
        """End the environment, where it holds something."""


@dataclass(kw_only=True)
class SteppedKind(EnvironmentKind):
    """A kind whose entry says how observations are shown and actions are read.

    `observation`, `action`: the path of a function; another text of `observation` stays. `hint`: end the first
    observation with the valid actions.
    """

    observation: Any = None
    action: Any = None
    hint: bool = True

    def __post_init__(self) -> None:
        if self.observation is not None and is_own(self.observation):
            self.observation = load_own(self.observation, self.folder, "observation")
        if self.action:
            self.action = load_own(self.action, self.folder, "action")


def is_own(name: str) -> bool:
    """Whether a name is the path of an object, `file.py:name` or `package.module:name`, and not a registered id."""
    head, _, attribute = name.rpartition(":")
    module = head.endswith(".py") or head.replace(".", "").isidentifier()
    return module and attribute.isidentifier()


def load_own(name: str, folder: str, what: str) -> Any:
    """The object at a path; a file is looked for in `folder` first. Raises UserError."""
    path, _, attribute = name.rpartition(":")
    beside = Path(folder) / path
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return load_attribute(str(beside) if beside.exists() else path, attribute, what=what)


def fitted(function: Callable[..., Any], *args: Any, **offered: Any) -> Any:
    """Call a function with those of the offered keywords that it takes."""
    return function(*args, **UserFunction(function).fit(offered))


def interpreter(written: str | None, folder: str, package: str, further: str = "") -> str:
    """The path of an interpreter that has a package; that of a virtual environment is a link, which stays one.

    `further`: packages that it needs besides. Raises UserError.
    """
    if written is None and find_spec(package.replace("-", "_")) is None:
        raise UserError(
            f"{package} is not installed here: write `python: .venv-{package}/bin/python`, an interpreter that has it; "
            + _how_to_make(f".venv-{package}", package, further)
        )
    if written is None:
        return sys.executable
    path = Path(folder, expanded(written)).absolute()
    if not path.exists():
        raise UserError(f"python: there is no {path}; {_how_to_make(path.parents[1], package, further)}")
    return str(path)


def _how_to_make(folder: str | Path, package: str, further: str) -> str:
    commands = f"make one: `python3.12 -m venv {folder}`, then `{folder}/bin/pip install {package}`"
    return f"{commands}, {further}" if further else commands


def require(package: str, what: str) -> None:
    """Raises UserError where a package is not installed."""
    if find_spec(package) is None:
        raise UserError(f"{what} needs {package}: run `pip install 'agentrl[environments]'`")
