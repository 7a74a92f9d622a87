"""Finds the Python interpreters of installed engines.

`agentrl engine install NAME` makes NAME/ under `$AGENTRL_ENGINES`, or else under `$XDG_DATA_HOME/agentrl/engines`
(`~/.local/share/agentrl/engines`).
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from agentrl.core.errors import UserError


def environments() -> Path:
    """Folder of the engines' environments."""
    own = os.environ.get("AGENTRL_ENGINES")
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(own).expanduser() if own else Path(data).expanduser() / "agentrl" / "engines"


def find_python(name: str, module: str) -> str | None:
    """The interpreter of an installed engine, or this one where it can import `module`; None without either."""
    python = environments() / name / "bin" / "python"
    if python.exists():
        return str(python)
    return sys.executable if find_spec(module) is not None else None


def engine_python(name: str, module: str, chosen: str | None) -> str:
    """The interpreter to start an engine with; `chosen` is `rollout.engine_python`. Raises UserError."""
    if chosen is not None:
        python = Path(chosen).expanduser()
        if not python.exists():
            raise UserError(f"rollout.engine_python: there is no {chosen}; `agentrl engine install {name}` makes one")
        return str(python)
    found = find_python(name, module)
    if found is None:
        raise UserError(
            f"rollout.name={name}: no {name} found; `agentrl engine install {name}` installs it, or name its "
            "interpreter in rollout.engine_python, or a running server in rollout.base_url"
        )
    return found
