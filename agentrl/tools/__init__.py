"""Tools: what the model may call. docs/tools.md shows how to write one.

`load_tools` reads YAML and Python files into a `ToolSet`; `ToolSet.open` gives each trajectory its `ToolSession`.
"""

from agentrl.tools.base import BaseTool
from agentrl.tools.functions import function_tool
from agentrl.tools.loading import load_tools
from agentrl.tools.response import ModelError, ToolArgumentError, ToolResponse, ToolResult
from agentrl.tools.schemas import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
)
from agentrl.tools.session import ToolSession
from agentrl.tools.toolset import ToolSet

__all__ = [
    "BaseTool",
    "ModelError",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolSchema",
    "ToolArgumentError",
    "ToolResponse",
    "ToolResult",
    "ToolSession",
    "ToolSet",
    "function_tool",
    "load_tools",
]
