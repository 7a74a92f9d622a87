"""Answers what the rooms of agentrl ask a compatibility layer.

Modules that take long to import are imported by the calls that need them.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agentrl.core.compatibility import Command, Layer, Rename, Written

if TYPE_CHECKING:
    from agentrl_verl.reading.defaults import VerlDefaults

LOOPS = "verl.experimental.agent_loop.agent_loop"
"""Where an installed verl keeps the loops that users register."""
MANAGERS = {
    "verl.workers.reward_manager.registry": "REWARD_MANAGER_REGISTRY",
    "verl.experimental.reward_loop.reward_manager.registry": "REWARD_MANAGER",
}
"""Where it keeps their reward managers."""
COMMANDS = (
    Command(
        "verl", "Train", "run a launch or data script written for verl, unchanged", module="agentrl_verl.run_command"
    ),
    Command(
        "config check",
        "Prepare",
        "report line by line how agentrl reads a verl YAML file or shell script",
        module="agentrl_verl.reading.check_command",
    ),
)


class VerlLayer(Layer):
    """Settings, scripts, tools, interactions, agent loops, reward functions and managers written for verl."""

    name: ClassVar[str] = "verl"
    prefix: ClassVar[str] = "actor_rollout_ref."

    def commands(self) -> Sequence[Command]:
        """`agentrl verl` and `agentrl config check`."""
        return COMMANDS

    def renames(self) -> Mapping[str, Rename]:
        """verl's names."""
        from agentrl_verl.reading.name_tables import renames

        return renames()

    def differences(self) -> Mapping[str, str]:
        """What keys mean in verl."""
        from agentrl_verl.reading.name_tables import meanings

        return meanings()

    def config_name(self, program: str) -> str | None:
        """verl's file that a program of verl's starts from."""
        from agentrl_verl.reading.defaults import file_of

        return file_of(program)

    def defaults(self, written: Written) -> "VerlDefaults | None":
        """verl's defaults of the version that something was written for."""
        from agentrl_verl.reading.defaults import of_configuration

        return of_configuration(written)

    def defaults_of(self, key: str, schema: type) -> Sequence[str]:
        """verl's defaults by file and version."""
        from agentrl_verl.reading.defaults import by_version

        return [*by_version(key, schema)]

    def scorers(self) -> Mapping[str, Sequence[str]]:
        """verl's scores of the data sets that it knows."""
        from agentrl_verl.scorers import FUNCTIONS

        return FUNCTIONS

    def provide(self) -> None:
        """Make `verl.` importable where verl is not installed."""
        from agentrl_verl.modules import provide

        provide()

    def importing(self) -> AbstractContextManager[None]:
        """Ray's actors of the module are threads of this process."""
        from agentrl_verl.in_process import actors_in_process

        return actors_in_process()

    def adopt_registered(self) -> None:
        """Take over estimators and losses registered with an installed verl."""
        from agentrl_verl.modules import adopt_registered

        adopt_registered()

    def ready_made(self, class_name: str) -> tuple[str, str] | None:
        """A ready-made tool or interaction that stands for verl's."""
        from agentrl_verl.modules import ready_made

        return ready_made(class_name)

    def missing(self, module: str) -> str | None:
        """A class of verl's that agentrl has no counterpart of."""
        if not module.startswith("verl."):
            return None
        return "agentrl has no such class; copy its file beside the YAML and name it there"

    def package_of(self, file: Path) -> str | None:
        """A copy of a verl file imports its neighbours relatively."""
        from agentrl_verl.copies import package_of

        return package_of(file)

    def agent_loops(self) -> Mapping[str, type]:
        """Loops registered with agentrl's stand-in for verl's decorator, or with an installed verl."""
        own = sys.modules.get("agentrl_verl.agent_loop")
        found = dict(own.AGENT_LOOPS) if own else {}
        for name, entry in getattr(sys.modules.get(LOOPS), "_agent_loop_registry", {}).items():
            module, _, kind = entry["_target_"].rpartition(".")
            found.setdefault(name, getattr(sys.modules[module], kind))
        return found

    def agent_loop(self, kind: type, kwargs: Mapping[str, Any] | None) -> type | None:
        """A class around a loop that derives from verl's base class; verl's own loops have a counterpart."""
        ready: type | None = vars(kind).get("served_by")
        if ready is not None:
            return ready
        if not any(base.__name__ == "AgentLoopBase" for base in kind.__mro__):
            return None
        from agentrl_verl.loop_adapter import adapted

        return adapted(kind, dict(kwargs) if kwargs is not None else None)

    def reward_managers(self) -> Mapping[str, type]:
        """Managers registered with agentrl's stand-in for verl's decorator, or with an installed verl."""
        from agentrl_verl.reward_managers import REWARD_MANAGERS

        found: dict[str, type] = {}
        for module, registry in MANAGERS.items():
            found |= getattr(sys.modules.get(module), registry, {}) if module in sys.modules else {}
        return found | REWARD_MANAGERS

    def reward_manager(self, kind: type, function: Any, config: Any, tokenizer: Any, offered: Mapping[str, Any]) -> Any:
        """A manager that calls `run_single` or `__call__` with verl's batch."""
        from agentrl_verl.config_views import verl_config
        from agentrl_verl.custom_managers import custom_manager

        return custom_manager(
            kind,
            function,
            {**offered, **config.reward.reward_kwargs},
            config=verl_config(config),
            tokenizer=tokenizer,
            reward_fn_key=config.data.reward_fn_key,
            timeout=config.reward.timeout,
            workers=config.reward.num_workers,
        )

    def serve_mcp_tool(self, name: str, pool: Any) -> None:
        """verl's MCP tools ask its client manager by name."""
        from agentrl_verl.mcp import ClientManager

        ClientManager.know(name, pool)
