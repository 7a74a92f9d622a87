"""Plug-ins: installed packages that add to agentrl through the entry points of the group `agentrl.plugins`.

Invariants:
- an entry point names a module, whose import registers, or a function, which is called without arguments;
- each process loads them at most once, and only when a name is not built in or user code is loaded; layers, the
  plug-ins whose package is agentrl or `agentrl_NAME`, are loaded with the first configuration already;
- one that fails ends the run with one line that names its package.
"""

from functools import cache
from importlib.metadata import entry_points

from agentrl.core.errors import reported_as

GROUP = "agentrl.plugins"


@cache
def load_plugins() -> None:
    """Load every plug-in of this process once; a call after that costs nothing. Raises UserError for a broken one."""
    load_layers()
    _load(layers=False)


@cache
def load_layers() -> None:
    """Load the compatibility layers of this process once. Raises UserError for a broken one."""
    _load(layers=True)


def _load(*, layers: bool) -> None:
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.module.startswith("agentrl") is not layers:
            continue
        package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        with reported_as(f"the plug-in {point.name} ({package}) does not load"):
            found = point.load()
            if callable(found):
                found()
