"""Gives each tool its sandbox."""

from collections.abc import Mapping
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.sandbox import Sandbox


class Sandboxes:
    """The sandbox of the run, which its owner closes, and those that only tools use."""

    def __init__(self, shared: Sandbox | None) -> None:
        self.own: dict[str | None, Sandbox] = {}
        self.shared = shared

    def of(self, config: Mapping[str, Any]) -> Sandbox:
        """For a tool with that `config`: a server at its `sandbox_fusion_url`, else the run's, else an embedded one."""
        url = config.get("sandbox_fusion_url") or None
        if url is None and self.shared is not None:
            return self.shared
        return self.own.setdefault(url, Sandbox(url))

    async def close(self) -> None:
        """Stop what is not the run's."""
        for sandbox in self.own.values():
            await sandbox.close()


class NoSandbox:
    """Replaces the sandbox in a tool whose calls run in separate event loops."""

    def __getattr__(self, name: str) -> Any:
        raise UserError(
            "self.sandbox belongs to the run's event loop, and config.in_thread gives each call a loop of its own: "
            "remove in_thread, and wrap what blocks in `await asyncio.to_thread(...)`"
        )


NO_SANDBOX: Any = NoSandbox()
