"""MCP servers as tools: verl's YAML and JSON, over stdio, streamable HTTP and SSE.

One server process for the whole run, unless the YAML asks for more sessions, or for one a trajectory.
"""

from agentrl.tools.mcp.loading import McpServers, mcp_tools
from agentrl.tools.mcp.tool import McpTool

__all__ = ["McpServers", "McpTool", "mcp_tools"]
