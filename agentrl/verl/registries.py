"""Tools and interactions made from their YAML, for agent loops written for verl that call them by themselves."""

from typing import Any

from agentrl.core.user_code import UserFunction
from agentrl.interactions.loading import load_interactions
from agentrl.tools import load_tools


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
