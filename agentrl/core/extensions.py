"""Plug-ins: installed packages that add to agentrl through the entry points of the group `agentrl.plugins`.

Invariants:
- an entry point names a module, whose import registers, or a function, which is called without arguments;
- each process loads them at most once, and only when a name is not built in or user code is loaded;
- one that fails ends the run with one line that names its package.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from agentrl.core.user_errors import reported_as

GROUP = "agentrl.plugins"


@cache
def load_plugins() -> None:
    """Load every plug-in of this process once; a call after that costs nothing. Raises UserError for a broken one."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        with reported_as(f"the plug-in {point.name} ({_package(point)}) does not load"):
            _load(point)


def _load(point: EntryPoint) -> None:
    found = point.load()
    if callable(found):
        found()


def _package(point: EntryPoint) -> str:
    dist = point.dist
    return f"{dist.name} {dist.version}" if dist else point.value
