"""Tools and interactions as the objects that verl's code holds."""

from typing import Any

from agentrl.core.user_code import UserFunction
from agentrl.interactions.loading import load_interactions
from agentrl.tools import load_tools
from agentrl.tools.response import ToolResponse
from agentrl_verl.agent_state import AgentData


async def lifecycle(
    tool: Any, arguments: dict[str, Any], kwargs: dict[str, Any], agent_data: AgentData
) -> tuple[ToolResponse, float, dict[str, Any]]:
    """One call of a tool that a loop made itself, as verl calls it: created, executed and released."""
    created = await tool.create(create_kwargs=kwargs.get("create_kwargs") or {})
    instance_id = created[0] if isinstance(created, tuple) else created
    try:
        response, reward, metrics = await tool.execute(instance_id, arguments, agent_data=agent_data)
    finally:
        await tool.release(instance_id)
    return response if isinstance(response, ToolResponse) else ToolResponse(str(response)), reward or 0.0, metrics


def initialize_tools_from_config(tools_config_file: str) -> list[Any]:
    """The tools that a YAML lists, with `name`, `tool_schema`, `create`, `execute` and the rest. Raises UserError."""
    tools = load_tools(tools_config_file, None, max_response=1, unit="characters", side="middle")
    return [owner_of(runner.methods["execute"]) for runner in tools.runners.values()]


def initialize_interactions_from_config(interaction_config_file: str) -> dict[str, Any]:
    """The interactions that a YAML lists, by name. Raises UserError."""
    found = load_interactions(interaction_config_file)
    return {name: owner_of(runner.methods["generate_response"]) for name, runner in found.runners.items()}


def owner_of(method: UserFunction) -> Any:
    """The object whose method it is; None for a function."""
    return getattr(method.fn, "__self__", None)
