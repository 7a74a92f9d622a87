"""Programming errors of user code, as against failures of what it calls."""

import sys
import sysconfig
import traceback
from functools import cache

from agentrl.core.compatibility import layers
from agentrl.core.errors import located

MISTAKES = (AttributeError, ImportError, LookupError, NameError, NotImplementedError, TypeError)
"""Errors of the code itself; networks and other programs raise others."""


def mistake_in_user_code(error: Exception) -> str | None:
    """`NameError: ... (file:line)` where a line of the user's own raised one of MISTAKES; None for all others.

    An error from within an installed package may have any cause.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not isinstance(error, MISTAKES) or frames[-1].filename.startswith(_installed()):
        return None
    return located(error)


@cache
def _installed() -> tuple[str, ...]:
    """Folders of Python, of its packages and of agentrl; "<" begins the names of code without a file."""
    python = {path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
    ours = {name.partition(".")[0] for name in (__name__, *(type(layer).__module__ for layer in layers()))}
    return ("<", *sorted(python | {folder for name in ours for folder in sys.modules[name].__path__}))
