"""verl's MCP tool and client manager, for files that derive from one or ask the other, over agentrl's sessions."""

import asyncio
from typing import Any
from uuid import uuid4

from agentrl.core.errors import InfraError
from agentrl.tools.base import BaseTool
from agentrl.tools.mcp.session_pool import SessionPool
from agentrl.tools.response import ToolResponse


class ClientError(Exception):
    """fastmcp's, where that is not installed."""


class MCPClientManager:
    """Calls tools by name on the servers that the tool YAML lists."""

    def __init__(self) -> None:
        self.pools: dict[str, SessionPool] = {}

    def know(self, tool_name: str, pool: SessionPool) -> None:
        """Remember which server has a tool."""
        self.pools[tool_name] = pool

    async def initialize(self, config_path: str = "", rate_limit: float = 10.0) -> None:
        """The servers are there already."""

    async def call_tool(self, tool_name: str, parameters: dict[str, Any], timeout: float | None = None) -> Any:
        """The server's `mcp.types.CallToolResult`. Raises ClientError for a tool that no server has, InfraError for a
        server that is gone, TimeoutError."""
        if tool_name not in self.pools:
            raise ClientError(f"no MCP server has a tool {tool_name!r}; there are {', '.join(self.pools) or 'none'}")
        return await asyncio.wait_for(self.pools[tool_name].call(tool_name, parameters, None), timeout)


ClientManager = MCPClientManager()
"""The one that verl's tools import."""


class MCPBaseTool(BaseTool):
    """Passes calls on. Derive from it and override `_parse_tool_result(content)`: (text, metadata) of what came."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self.timeout = config.get("timeout", 30)
        self._instance_dict: dict[str, dict[str, Any]] = {}

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Begin a trajectory."""
        key = instance_id or str(uuid4())
        self._instance_dict[key] = {"response": "", "reward": []}
        return key, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """The parsed answer; a server that is gone is an infrastructure error, and not for the model to read."""
        text, metadata = await self._call_tool(instance_id, parameters)
        self._instance_dict[instance_id]["reward"].append(text.strip())
        names = ("query_count", "status", "total_results", "api_request_error")
        return ToolResponse(text=text), 0.0, {name: metadata.get(name) for name in names}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Nothing: what it found is no score."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """End a trajectory."""
        self._instance_dict.pop(instance_id, None)

    async def _call_tool(self, instance_id: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        try:
            result = await ClientManager.call_tool(self.name, parameters, self.timeout)
        except InfraError:
            raise
        except Exception as error:
            said = f"\n Tool call failed: {error}"
            return said, {"api_request_error": said}
        text, metadata = self._parse_tool_result(result.content)
        return text, metadata | {"api_request_error": None}

    def _parse_tool_result(self, content: list[Any]) -> tuple[str, dict[str, Any]]:
        """(the content's texts, metadata)."""
        return " ".join(part.text for part in content if part.type == "text"), {}
