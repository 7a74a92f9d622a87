"""Classes and functions of the user's own that an entry names."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.plugins import load_attribute
from agentrl.core.user_code import UserFunction


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


def require(package: str, what: str) -> None:
    """Raises UserError where a package is not installed."""
    if find_spec(package) is None:
        raise UserError(f"{what} needs {package}: run `pip install 'agentrl[environments]'`")
