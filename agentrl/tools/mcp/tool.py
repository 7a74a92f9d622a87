"""A tool of an MCP server.

Outcomes: what the server reports as the tool's error, or refuses as bad arguments, the model reads; a server that is
gone, silent or broken is an infrastructure error.
"""

import json
from typing import Any

from agentrl.tools.base import BaseTool
from agentrl.tools.mcp.session_pool import SessionPool
from agentrl.tools.response import ModelError, ToolResponse
from agentrl.tools.schemas import OpenAIFunctionToolSchema


class McpTool(BaseTool):
    """Passes calls on. Derive from it and override `read` to show the model something else than the server's text."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema, pool: SessionPool) -> None:
        super().__init__(config, tool_schema)
        self.pool = pool

    async def execute(self, instance_id: str, parameters: dict[str, Any], agent_data: Any = None, **_: Any) -> Any:
        """Call the server's tool of the same name."""
        from mcp import MCPError
        from mcp.types import INVALID_PARAMS

        try:
            result = await self.pool.call(self.name, parameters, agent_data)
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ModelError(f"Error: {error}") from error
            raise
        response = self.read(result)
        if result.is_error:
            raise ModelError(response.text or "Error: the tool failed and did not say why.")
        return response, 0.0, {}

    def read(self, result: Any) -> ToolResponse:
        """The response to an `mcp.types.CallToolResult`: its texts, a line each, and its images as data URLs."""
        texts = [text for block in result.content if (text := _text(block))]
        if not texts and result.structured_content is not None:
            texts = [json.dumps(result.structured_content, ensure_ascii=False)]
        images = [f"data:{block.mime_type};base64,{block.data}" for block in result.content if block.type == "image"]
        return ToolResponse(text="\n".join(texts), image=images or None)


def _text(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource":
        return str(getattr(block.resource, "text", None) or f"[{block.resource.uri}]")
    return f"[{block.uri}]" if block.type == "resource_link" else f"[{block.type}: {block.mime_type}]"
