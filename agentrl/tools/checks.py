"""Checks a tool before the first call: its class, its schema, the keys of its YAML."""

import inspect
from dataclasses import fields
from typing import Any

from agentrl.core.errors import UserError, reported_as
from agentrl.core.json_schema import WrongSchema, compiled
from agentrl.core.plugin_checks import check_answers, check_method, check_spelling, inherits, mentions, own_parameters
from agentrl.core.plugins import Entry
from agentrl.tools.arguments import TYPE_NAMES
from agentrl.tools.base import NO_SCHEMA
from agentrl.tools.functions import FunctionTool
from agentrl.tools.options import ToolOptions
from agentrl.tools.schemas import OpenAIFunctionToolSchema

EXECUTE_EXAMPLE = "async def execute(self, instance_id, parameters, **kwargs)"
OTHER_METHODS = ("create", "calc_reward", "release")
CONFIG_KEYS = ("type", *(field.name for field in fields(ToolOptions)))
"""Keys of `config` that agentrl reads."""
MCP_CONFIG_KEYS = (*CONFIG_KEYS, "sessions", "rate_limit")
MCP_KEYS = ("mcp_servers_config_path", "tool_selected_list", "mcpServers")
FUNCTION_KEYS = ("name", "description", "parameters", "strict")
PARAMETERS_KEYS = ("type", "properties", "required", "additionalProperties")
# Python's names are a common slip.
JSON_NAMES = {kind.__name__: name for kind, name in TYPE_NAMES.items()}
OTHER_PROPERTY_KEYS = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties")
"""Where a schema may say more about its properties."""


def check_class(entry: Entry, kind: type) -> None:
    """Check that the methods exist and take their arguments. Raises UserError."""
    where, name = entry.where, entry.class_name
    if inherits(kind, "BaseTool.execute"):
        raise UserError(f"{where}: {name} has no execute(): write `{EXECUTE_EXAMPLE}`")
    makes_schema = any(not inherits(kind, f"BaseTool.{method}") for method in ("__init__", "get_openai_tool_schema"))
    if entry.fields.get("tool_schema") is None and not makes_schema:
        raise UserError(f"{where}: {name} {NO_SCHEMA}")
    given = ("instance_id", "parameters")
    check_method(kind, "execute", given, where, EXECUTE_EXAMPLE)
    for method in OTHER_METHODS:
        check_method(kind, method, given[:1], where, f"async def {method}(self, instance_id, **kwargs)")
    check_answers(getattr(kind, "execute", None), where, "text for the model, or a ToolResponse")
    arguments = _properties(entry.fields.get("tool_schema")) - {*given}
    if taken := [name for name in own_parameters(kind, "execute")[:2] if name in arguments]:
        raise UserError(
            f"{where}: {name}.execute takes the argument {taken[0]!r} by itself: all arguments come in a dict, so "
            f"write `{EXECUTE_EXAMPLE}` and read parameters[{taken[0]!r}]"
        )


def _properties(written: Any) -> set[str]:
    """Names of the arguments that a schema in the YAML describes."""
    for name in ("function", "parameters", "properties"):
        written = written.get(name) if isinstance(written, dict) else None
    return set(written) if isinstance(written, dict) else set()


def check_function(tool: FunctionTool, where: str) -> None:
    """Check that the function returns an answer, unless it is annotated with None. Raises UserError."""
    if inspect.signature(tool.fn).return_annotation not in (None, "None"):
        check_answers(tool.fn, where, "text for the model, or write `-> None` where there is none")


def check_options(entry: Entry) -> None:
    """Check for misspelt keys. Raises UserError."""
    where, config = entry.where, entry.config
    kind = entry.load_class() if entry.class_name and "mcp" not in entry.fields else None
    with reported_as(where):  # a tool may read a key in its own way first
        ToolOptions.read({key: value for key, value in config.items() if not mentions(kind, str(key))})
    if "mcp" not in entry.fields:
        check_spelling(config, CONFIG_KEYS, where, section="config", kind=kind)
        return
    check_spelling(config, MCP_CONFIG_KEYS, where, section="config")
    written = entry.fields["mcp"]
    check_spelling(written if isinstance(written, dict) else (), MCP_KEYS, where, section="mcp")
    wanted = written.get("tool_selected_list") if isinstance(written, dict) else None
    if wanted is not None and not isinstance(wanted, list):
        raise UserError(f"{where}: mcp.tool_selected_list is {wanted!r}: write a list, [{wanted}]")
    if config.get("in_thread"):
        raise UserError(f"{where}: config.in_thread: MCP servers have a thread of their own already; remove the key")


def check_types(schema: OpenAIFunctionToolSchema, where: str) -> None:
    """Check that the parameters are JSON Schema. Raises UserError."""
    function = schema.function.model_dump()
    try:
        compiled(function["parameters"])
    except WrongSchema as error:
        right = JSON_NAMES.get(str(error.value))
        wrong = f"{error.place} is {error.value!r}: write {right}" if right else str(error)
        raise UserError(f"{where}: tool_schema of {function['name']}: {wrong}") from error


def check_schema(schema: OpenAIFunctionToolSchema, where: str) -> None:
    """Check that required parameters are described. Raises UserError."""
    function = schema.function.model_dump()
    check_spelling(function, FUNCTION_KEYS, where, section="tool_schema.function")
    parameters = function["parameters"]
    check_types(schema, where)
    check_spelling(parameters, PARAMETERS_KEYS, where, section="tool_schema.function.parameters")
    properties, required = parameters.get("properties") or {}, parameters.get("required") or []
    missing = [name for name in required if name not in properties] if isinstance(required, list) else []
    if missing and not any(key in parameters for key in OTHER_PROPERTY_KEYS):
        has = f"which has {', '.join(properties)}" if properties else "which is empty"
        raise UserError(
            f"{where}: tool_schema of {function['name']}: required names {missing[0]!r}, which is not in properties "
            f"({has}): describe it there, or correct the name"
        )
