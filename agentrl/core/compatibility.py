"""Compatibility layers: files and settings written for another framework run unchanged.

agentrl has one layer, for verl, which registers itself through the entry points of `agentrl.core.extensions`. The rooms
ask `layers()` and never import a layer.
"""

from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol

from agentrl.core.extensions import load_layers


@dataclass(frozen=True)
class Command:
    """One line of `agentrl --help`, or with the name "config NAME" of `agentrl config --help`."""

    name: str
    group: str
    help: str
    keys: str = ""
    """The command of `config.schema.commands` whose keys it takes; empty: it takes none."""
    module: str = ""

    def load(self) -> ModuleType:
        """Import its module."""
        return import_module(self.module)


OLD_VALUE = "{value}"
"""Stands for the old value in the new one of a Rename."""


@dataclass(frozen=True)
class Rename:
    """The fate of a setting that is no key here."""

    name: str
    """The setting, perhaps with `=value`."""
    action: str
    """moved, silent, ignored, refused or noted."""
    text: str
    """The new name when moved, otherwise the reason."""
    merged: bool = False
    """When moved: whether today's name wins over it."""

    @property
    def target(self) -> str:
        """The new name, with a value where that is a fixed one."""
        return self.text.partition("=")[0] if OLD_VALUE in self.text else self.text


@dataclass(frozen=True)
class Written:
    """A configuration as it was written, before the defaults below it are known."""

    tree: Mapping[str, Any]
    """The composed YAML files."""
    given: Mapping[str, Any]
    """Everything that is set, under the names that it was set by."""
    folders: Sequence[Path]
    """The user's folders with YAML files."""
    schema: type
    program: str | None = None
    """The framework's program that the command stands for."""


class Defaults(Protocol):
    """A framework's defaults, below everything that a file or the command line sets."""

    def values(self) -> Mapping[str, Any]:
        """The defaults by key of the schema."""

    def finish(self, config: Any, settled: Container[str]) -> list[str]:
        """Make the composed `config` what the framework makes of it; return notes for the user.

        `settled`: keys that the user sets.
        """


class Layer:
    """One framework's files. A method that has no answer leaves the case to the next layer, or to agentrl."""

    name: ClassVar[str]
    """The framework's, for messages."""
    prefix: ClassVar[str] = ""
    """Section that may stand before names of ours, with its dot."""

    def commands(self) -> Sequence[Command]:
        """Commands that the layer adds."""
        return ()

    def renames(self) -> Mapping[str, Rename]:
        """The framework's settings that are no keys here, by name."""
        return {}

    def differences(self) -> Mapping[str, str]:
        """How keys of the same name differ from the framework's, by key or `key=value`."""
        return {}

    def config_name(self, program: str) -> str | None:
        """The configuration file that stands for the one that a program starts from."""
        return None

    def defaults(self, written: Written) -> Defaults | None:
        """The framework's defaults, where a configuration was written for it. Raises UserError."""
        return None

    def defaults_of(self, key: str, schema: type) -> Sequence[str]:
        """The framework's defaults of a key, for a person to read."""
        return ()

    def scorers(self) -> Mapping[str, Sequence[str]]:
        """Reward functions as "module:function", each with its values of `data_source`; a trailing * is any ending."""
        return {}

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

    def reward_manager(self, kind: type, function: Any, config: Any, tokenizer: Any, offered: Mapping[str, Any]) -> Any:
        """A `Manager` that calls an object of the framework's class `kind`, which gets the `offered` arguments that it
        takes. Raises UserError."""
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
    """All layers; other plug-ins are not loaded. Raises UserError for one that does not load."""
    load_layers()
    return LAYERS
