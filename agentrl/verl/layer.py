"""What the rooms of agentrl ask of the verl room.

Modules that import PyTorch are imported by the calls that need them.
"""

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from agentrl.core.compatibility import Layer
from agentrl.verl import modules
from agentrl.verl.copies import package_of
from agentrl.verl.in_process import actors_in_process

LOOPS = "verl.experimental.agent_loop.agent_loop"
"""Where an installed verl keeps the loops that users register."""
MANAGERS = {
    "verl.workers.reward_manager.registry": "REWARD_MANAGER_REGISTRY",
    "verl.experimental.reward_loop.reward_manager.registry": "REWARD_MANAGER",
}
"""Where it keeps their reward managers."""


class VerlLayer(Layer):
    """Tools, interactions, agent loops, reward managers and MCP tools written for verl."""

    def provide(self) -> None:
        """Make `verl.` importable where verl is not installed."""
        modules.provide()

    def importing(self) -> AbstractContextManager[None]:
        """Ray's actors of the module are threads of this process."""
        return actors_in_process()

    def adopt_registered(self) -> None:
        """Take over estimators and losses registered with an installed verl."""
        modules.adopt_registered()

    def ready_made(self, class_name: str) -> tuple[str, str] | None:
        """A ready-made tool or interaction that stands for verl's."""
        return modules.ready_made(class_name)

    def missing(self, module: str) -> str | None:
        """A class of verl's that agentrl has no counterpart of."""
        if not module.startswith("verl."):
            return None
        return "agentrl has no such class; copy its file beside the YAML and name it there"

    def package_of(self, file: Path) -> str | None:
        """A copy of a verl file imports its neighbours relatively."""
        return package_of(file)

    def agent_loops(self) -> Mapping[str, type]:
        """Loops registered with agentrl's stand-in for verl's decorator, or with an installed verl."""
        own = sys.modules.get("agentrl.verl.agent_loop")
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
        from agentrl.verl.loops import adapted

        return adapted(kind, dict(kwargs) if kwargs is not None else None)

    def reward_managers(self) -> Mapping[str, type]:
        """Managers registered with agentrl's stand-in for verl's decorator, or with an installed verl."""
        found: dict[str, type] = {}
        for module, registry in MANAGERS.items():
            found |= getattr(sys.modules.get(module), registry, {}) if module in sys.modules else {}
        own = sys.modules.get("agentrl.verl.reward_managers")
        return found | (own.REWARD_MANAGERS if own else {})

    def reward_manager(self, kind: type, function: Any, config: Any, tokenizer: Any) -> Any:
        """A manager that calls `run_single` or `__call__` with verl's batch."""
        from agentrl.verl.custom_managers import custom_manager
        from agentrl.verl.settings import verl_config

        return custom_manager(
            kind,
            function,
            config=verl_config(config),
            tokenizer=tokenizer,
            reward_fn_key=config.data.reward_fn_key,
            timeout=config.reward.timeout,
            workers=config.reward.num_workers,
        )

    def serve_mcp_tool(self, name: str, pool: Any) -> None:
        """verl's MCP tools ask its client manager by name."""
        from agentrl.verl.mcp import ClientManager

        ClientManager.know(name, pool)
