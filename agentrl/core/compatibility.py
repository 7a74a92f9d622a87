"""Compatibility layers: files written for another framework run unchanged.

agentrl has one layer, for verl, which registers itself through the entry points of `agentrl.core.extensions`. The rooms
ask `layers()` and never import a layer.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from agentrl.core.extensions import load_plugins


class Layer:
    """One framework's files. A method that has no answer leaves the case to the next layer, or to agentrl."""

    def provide(self) -> None:
        """Make the framework's module names importable; repeated calls do nothing."""

    def importing(self) -> AbstractContextManager[None]:
        """Surrounds the import of a user's module."""
        return nullcontext()

    def adopt_registered(self) -> None:
        """Take over what users' modules registered with the installed framework."""

    def ready_made(self, class_name: str) -> tuple[str, str] | None:
        """(file under the ready-made plugins, class) that stands for a class of the framework."""
        return None

    def missing(self, module: str) -> str | None:
        """Why a module of the framework is not there."""
        return None

    def package_of(self, file: Path) -> str | None:
        """The package to load a user's file in."""
        return None

    def agent_loops(self) -> Mapping[str, type]:
        """Loops that users' modules registered, by name."""
        return {}

    def agent_loop(self, kind: type, kwargs: Mapping[str, Any] | None) -> type | None:
        """An `AgentLoop` class that runs a loop class of the framework; `kwargs` go to the latter's constructor."""
        return None

    def reward_managers(self) -> Mapping[str, type]:
        """Reward manager classes that users' modules registered, by name."""
        return {}

    def reward_manager(self, kind: type, function: Any, config: Any, tokenizer: Any) -> Any:
        """A `Manager` that calls an object of the framework's class `kind`. Raises UserError."""
        return None

    def serve_mcp_tool(self, name: str, pool: Any) -> None:
        """Let the framework's MCP client reach a tool; `pool` holds its sessions."""


LAYERS: list[Layer] = []
"""Those that plug-ins have registered in this process."""


def register_layer(layer: Layer) -> None:
    """Add a layer; one of the same class is there once."""
    if not any(type(other) is type(layer) for other in LAYERS):
        LAYERS.append(layer)


def layers() -> Sequence[Layer]:
    """All layers, plug-ins loaded. Raises UserError for a plug-in that does not load."""
    load_plugins()
    return LAYERS
