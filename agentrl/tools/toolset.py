"""All tools of a run, and the sandboxes that they use."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.sandbox import Sandbox
from agentrl.core.user_code import Cleanup
from agentrl.tools.mcp import McpServers
from agentrl.tools.runner import ToolRunner
from agentrl.tools.session import ToolKwargs, ToolSession
from agentrl.tools.truncation import Truncation

log = logging.getLogger(__name__)


class AgentData:
    """The `agent_data` argument of `execute`: the agent loop's own object with verl's names.

    The names are request_id, tools_kwargs and extra_fields; everything else is read from the object itself. Attributes
    that a tool sets stay on the view, which lives as long as the trajectory.
    """

    def __init__(self, inner: Any, request_id: str, tools_kwargs: Any) -> None:
        self.inner = inner
        self.request_id = request_id
        self.tools_kwargs = tools_kwargs
        extra = getattr(inner, "extra", None)
        self.extra_fields: dict[str, Any] = extra if isinstance(extra, dict) else {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


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


@dataclass(eq=False)
class ToolSet:
    """The tools by name, in the order the model sees them. Empty is fine. Belongs to one event loop."""

    runners: Mapping[str, ToolRunner]
    shorten: Truncation
    sandboxes: Sandboxes
    """Closed with the set."""
    servers: McpServers
    """Closed with the set."""
    cleanup: Cleanup = field(default_factory=Cleanup)
    unknown: set[str] = field(default_factory=set)
    """Names in rows that are no tools."""

    def __len__(self) -> int:
        return len(self.runners)

    def schemas(self, selection: list[str] | None = None) -> list[dict[str, Any]]:
        """OpenAI function schemas of the selected tools, or of all. Raises UserError for a name that is no tool."""
        return [runner.schema for runner in self._selected(selection).values()]

    def open(
        self, key: str, tools_kwargs: Mapping[str, Any], agent_data: Any, selection: list[str] | None = None
    ) -> ToolSession:
        """The tools for one trajectory. Creates nothing yet. Raises UserError when the row's arguments do not fit.

        `key` names the trajectory; tools see it as `agent_data.request_id`. With `selection` only those may be called.
        """
        runners = self._selected(selection)
        kwargs = self._kwargs(tools_kwargs)
        if not hasattr(agent_data, "request_id"):  # an object of verl's shape stays as it is
            agent_data = AgentData(agent_data, key, tools_kwargs)
        usable = {name: value for name, value in kwargs.items() if name in runners}
        return ToolSession(runners, usable, agent_data, self.shorten, self.cleanup, self.servers)

    async def close(self) -> None:
        """Wait for running releases, and close sandboxes and servers of the set; safe to call twice."""
        await self.cleanup.close()
        await self.sandboxes.close()
        await asyncio.to_thread(self.servers.stop)

    def _selected(self, selection: list[str] | None) -> Mapping[str, ToolRunner]:
        if selection is None:
            return self.runners
        for name in selection:
            if name not in self.runners:
                raise UserError(f"extra_info.tool_selection names {name!r}: {self._choices()}")
        return {name: runner for name, runner in self.runners.items() if name in selection}

    def _kwargs(self, tools_kwargs: Mapping[str, Any]) -> dict[str, ToolKwargs]:
        """The row's arguments without the None that parquet fills missing keys with."""
        kwargs: dict[str, ToolKwargs] = {}
        for name, given in tools_kwargs.items():
            if given is None:
                continue
            if name not in self.runners:
                self._warn_unknown(name)
                continue
            kwargs[name] = self._kwargs_of(name, given)
        return kwargs

    def _kwargs_of(self, name: str, given: Any) -> ToolKwargs:
        where = f"extra_info.tools_kwargs.{name}"
        if not isinstance(given, Mapping) or not all(isinstance(v, Mapping | None) for v in given.values()):
            raise UserError(f"{where} is {given!r}: write a mapping of create_kwargs and the like, each a mapping")
        kwargs = {kind: value for kind, value in given.items() if value is not None}
        misfits = self.runners[name].misfits(kwargs)
        if misfits:
            raise UserError(
                f"{where}: no parameter takes {', '.join(misfits)}: "
                "correct the row, or add the parameter or **kwargs to the tool's method"
            )
        return kwargs

    def _warn_unknown(self, name: str) -> None:
        # Not an error: one data set may serve runs with more and with fewer tools.
        if name not in self.unknown:
            self.unknown.add(name)
            log.warning("rows have tools_kwargs for %r, which is not loaded: %s", name, self._choices())

    def _choices(self) -> str:
        if not self.runners:
            return "no tools are loaded; set rollout.multi_turn.tool_config_path"
        return f"the tools are {', '.join(self.runners)}"
