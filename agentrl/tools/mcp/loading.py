"""From a YAML entry with `config.type: mcp` to the tools of its servers."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from agentrl.core.compatibility import layers
from agentrl.core.errors import InfraError, UserError, reported_as
from agentrl.core.loop_thread import LoopThread
from agentrl.core.plugins import Entry
from agentrl.tools.mcp.session_pool import SessionPool
from agentrl.tools.mcp.spec import read_specs
from agentrl.tools.mcp.tool import McpTool
from agentrl.tools.schemas import OpenAIFunctionToolSchema

PER_TRAJECTORY = "per_trajectory"
READY_MADE = ("verl.tools.mcp_base_tool.MCPBaseTool", "verl.tools.mcp_search_tool.MCPSearchTool")


class McpServers:
    """All servers of a run, and the thread that talks to them. Costs nothing until there is one."""

    def __init__(self) -> None:
        self.pools: list[SessionPool] = []
        self.reported: set[str] = set()  # kinds of failures of tasks' servers that were logged

    @cached_property
    def loop(self) -> LoopThread:
        """Started when first asked for."""
        return LoopThread()

    def stop(self) -> None:
        """End sessions, processes and the thread; safe to call twice."""
        for pool in self.pools:
            pool.close()
        self.pools.clear()
        if "loop" in vars(self):
            vars(self).pop("loop").close()


def mcp_tools(entry: Entry, servers: McpServers) -> Iterator[Any]:
    """The tools of an entry's servers, those that `tool_selected_list` names or all. Raises UserError."""
    written = entry.fields.get("mcp")
    if not isinstance(written, dict):
        raise UserError(f"{entry.where}: config.type mcp: write `mcp:` with mcp_servers_config_path below it")
    sessions, kind = _sessions(entry), _kind(entry)
    if not sessions and not issubclass(kind, McpTool):
        raise UserError(
            f"{entry.where}: config.sessions is {PER_TRAJECTORY}: {entry.class_name} shares its sessions; derive it "
            "from agentrl.tools.mcp.McpTool"
        )
    offered: dict[str, Any] = {}
    for spec in read_specs(written, entry.file.parent, entry.where):
        pool = SessionPool(spec, servers.loop, sessions)
        servers.pools.append(pool)
        for tool in _listed(pool, entry.where):
            if tool.name in offered:
                raise UserError(f"{entry.where}: two MCP servers have a tool {tool.name!r}: give each its own entry")
            offered[tool.name] = _made(kind, entry, tool, pool)
    yield from _selected(offered, written.get("tool_selected_list"), entry.where)


def _made(kind: type[Any], entry: Entry, tool: Any, pool: SessionPool) -> Any:
    """A tool of agentrl's kind, or of verl's, which asks verl's client manager."""
    given = _config(entry.config, tool.name), schema_of(tool)
    with reported_as(f"{entry.where}: {entry.class_name}(...)"):
        if issubclass(kind, McpTool):
            return kind(*given, pool)
        for layer in layers():
            layer.serve_mcp_tool(tool.name, pool)
        return kind(*given)


def _listed(pool: SessionPool, where: str) -> list[Any]:
    try:
        return pool.loop.submit(pool.tools()).result()
    except InfraError as error:
        raise UserError(f"{where}: {error}; run the command or open the URL by hand") from None


def _selected(offered: dict[str, Any], wanted: list[str] | None, where: str) -> Iterator[Any]:
    for name in offered if wanted is None else wanted:
        if name not in offered:
            raise UserError(f"{where}: tool_selected_list names {name!r}; the servers have {', '.join(offered)}")
        yield offered[name]


def schema_of(tool: Any) -> OpenAIFunctionToolSchema:
    """The schema of a server's tool. Raises ValueError for one without a name."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": dict(tool.input_schema)}
    return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})


def _config(config: dict[str, Any], tool: str) -> dict[str, Any]:
    """The entry's, for one of its tools. verl's `rate_limit` is how many calls run at once; examples go by tool."""
    limit = {"max_concurrency": config["rate_limit"]} if config.get("rate_limit") else {}
    return limit | config | {"example": (config.get("example") or {}).get(tool)}


def _sessions(entry: Entry) -> int:
    sessions = entry.config.get("sessions", 1)
    if sessions == PER_TRAJECTORY:
        return 0
    if not isinstance(sessions, int) or isinstance(sessions, bool) or sessions < 1:
        raise UserError(f"{entry.where}: config.sessions is {sessions!r}: write a number over 0, or {PER_TRAJECTORY}")
    return sessions


def _kind(entry: Entry) -> type:
    """verl's own class names mean ours; a class with `execute` was written for verl."""
    if not entry.class_name or entry.class_name in READY_MADE:
        return McpTool
    kind = entry.load_class()
    if not issubclass(kind, McpTool) and not hasattr(kind, "execute"):
        raise UserError(f"{entry.where}: {kind.__name__} is no agentrl.tools.mcp.McpTool: derive it or drop class_name")
    return kind
