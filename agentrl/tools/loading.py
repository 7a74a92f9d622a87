"""Tools from YAML (every variant of verl's) and from Python files of functions."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import isroutine
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError, reported_as
from agentrl.core.plugin_checks import check_has, check_keys
from agentrl.core.plugins import Entry, load_user_file, read_entries
from agentrl.core.resources import find
from agentrl.core.sandbox import Sandbox
from agentrl.core.user_code import construct
from agentrl.tools.base import BaseTool
from agentrl.tools.checks import check_class, check_function, check_options, check_schema, check_types
from agentrl.tools.functions import FunctionTool, tool_of, tools_in
from agentrl.tools.mcp import McpServers, mcp_tools
from agentrl.tools.options import ToolOptions
from agentrl.tools.runner import METHODS, ToolRunner
from agentrl.tools.schemas import OpenAIFunctionToolSchema
from agentrl.tools.toolset import NO_SANDBOX, Sandboxes, ToolSet
from agentrl.tools.truncation import Truncation

NATIVE, MCP = "native", "mcp"
ENTRY_KEYS = ("class_name", "config", "tool_schema", "mcp")
YAML_KEY = "rollout.multi_turn.tool_config_path"
FUNCTIONS_KEY = "rollout.multi_turn.function_tool_path"
LENT_SANDBOX = "__agentrl_sandbox__"
"""Attribute of a tool: the sandbox that the loader has set."""


Make = Callable[[Sandboxes, McpServers], Iterable[ToolRunner]]


@dataclass(frozen=True)
class Definition:
    """A tool, or the tools of MCP servers: checked, and not made yet."""

    where: str
    """Where it comes from."""
    name: str | None
    """The tool's name; None where only the tool itself, or its server, says it."""
    make: Make


def load_tools(
    tool_config_path: str | None,
    function_tool_path: str | None,
    *,
    max_response: int,
    unit: str,
    side: str,
    tokenizer: Any = None,
    sandbox: Sandbox | None = None,
    given: Iterable[Any] = (),
) -> ToolSet:
    """All tools of a run. Both paths may be None. `given`: tools as objects, see `_given`.

    Responses are cut to `max_response` `unit`s (characters, or tokens of `tokenizer`) at `side`. Tools that run code
    do so in `sandbox`; without one, in an embedded one that the ToolSet closes. Raises UserError.
    """
    shorten = Truncation(max_response, unit, side, tokenizer)
    sandboxes, servers = Sandboxes(sandbox), McpServers()
    definitions = [*_defined(tool_config_path, function_tool_path, given)]
    try:
        made = [(runner, each.where) for each in definitions for runner in each.make(sandboxes, servers)]
        _check_names((runner.name, where) for runner, where in made)
    except UserError:
        servers.stop()
        raise
    return ToolSet({runner.name: runner for runner, _ in made}, shorten, sandboxes, servers)


def check_tools(tool_config_path: str | None, function_tool_path: str | None, given: Iterable[Any] = ()) -> None:
    """Check a run's tools before one is made or a server is asked. Raises UserError."""
    definitions = _defined(tool_config_path, function_tool_path, given)
    _check_names((each.name, each.where) for each in definitions if each.name is not None)


def _defined(path: str | None, functions: str | None, given: Iterable[Any]) -> Iterator[Definition]:
    yield from () if path is None else _from_yaml(path)
    yield from () if functions is None else _from_functions(functions)
    for item in given:
        yield from _given(item)


def _lend_sandbox(tool: BaseTool, sandbox: Any) -> None:
    """Set `tool.sandbox`, unless the tool has set another. A tool object may serve several runs, one by one."""
    if getattr(tool, "sandbox", None) is getattr(tool, LENT_SANDBOX, None):
        tool.sandbox = sandbox
        setattr(tool, LENT_SANDBOX, sandbox)


def _from_yaml(path: str) -> Iterator[Definition]:
    for entry in read_entries(path, "tools", what=YAML_KEY):
        native = _type(entry) == NATIVE
        if native:
            check_class(entry, entry.load_class())
        check_options(entry)
        yield _object(entry, entry.make) if native else Definition(entry.where, None, partial(_mcp_runners, entry))


def _from_functions(path: str) -> list[Definition]:
    file = find(path, what=FUNCTIONS_KEY)
    where = f"{FUNCTIONS_KEY}: {file}"
    tools = tools_in(load_user_file(file, where=where))
    if not tools:
        raise UserError(f"{where} has no function marked @function_tool: mark those that are tools")
    return [_function(tool, where) for tool in tools]


def _type(entry: Entry) -> str:
    """Native or mcp. Raises UserError."""
    check_keys(entry.fields, ENTRY_KEYS, entry.where)
    kind = entry.config.get("type", NATIVE if entry.class_name else MCP)
    if kind not in (NATIVE, MCP):
        raise UserError(f"{entry.where}: config.type is {kind!r}: write native or mcp, or leave it out")
    return str(kind)


def _mcp_runners(entry: Entry, _: Sandboxes, servers: McpServers) -> Iterator[ToolRunner]:
    for tool in mcp_tools(entry, servers):
        with reported_as(entry.where):
            options = ToolOptions.read(getattr(tool, "config", None) or entry.config)
        check_types(tool.tool_schema, entry.where)
        yield ToolRunner(tool, tool.tool_schema.model_dump(), options)


def _object(entry: Entry, construct_tool: Callable[..., Any]) -> Definition:
    """A tool that `construct_tool(config, schema)` gives."""
    written = entry.fields.get("tool_schema")
    schema = None if written is None else _read_schema(entry.where, written)
    if schema is not None:
        check_schema(schema, entry.where)

    def make(sandboxes: Sandboxes, _: McpServers) -> list[ToolRunner]:
        return [_tool_runner(construct_tool(entry.config, schema), entry, sandboxes)]

    return Definition(entry.where, None if schema is None else str(schema.function.name), make)


def _tool_runner(tool: Any, entry: Entry, sandboxes: Sandboxes) -> ToolRunner:
    check_has(tool, METHODS, f"{entry.where}: {entry.class_name}", "agentrl.tools.BaseTool")
    with reported_as(f"{entry.where}: {entry.class_name}"):
        asked = getattr(tool, "tool_schema", None) or tool.get_openai_tool_schema()
    schema = _read_schema(entry.where, asked)
    check_schema(schema, entry.where)
    if isinstance(tool, BaseTool):
        _lend_sandbox(tool, NO_SANDBOX if entry.config.get("in_thread") is True else sandboxes.of(entry.config))
    # A tool may have other defaults than ToolOptions: it says so in the config that it hands to BaseTool.
    config = getattr(tool, "config", None)
    with reported_as(entry.where):
        options = ToolOptions.read(config if isinstance(config, dict) else entry.config)
    return ToolRunner(tool, schema.model_dump(), options)


def _given(item: Any) -> Iterable[Definition]:
    """The tools of one object: a tool, a tool class, a function, or the path of a YAML or Python file."""
    if isinstance(item, str | Path):
        return _from_functions(str(item)) if str(item).endswith(".py") else _from_yaml(str(item))
    if isroutine(item):
        tool = tool_of(item)
        return [_function(tool, f"tools: {tool.name}")]
    kind = item if isinstance(item, type) else type(item)
    where, written = f"tools: {kind.__name__}", getattr(item, "tool_schema", None)
    config = getattr(item, "config", None)
    fields = {} if written is None else {"tool_schema": _read_schema(where, written).model_dump()}
    entry = Entry(Path(), where, kind.__name__, config if isinstance(config, dict) else {}, fields)
    check_class(entry, kind)

    def constructed(config: dict[str, Any], schema: OpenAIFunctionToolSchema | None) -> Any:
        with reported_as(f"{where}(config, tool_schema)"):
            return construct(item, {"config": config, "tool_schema": schema})

    return [_object(entry, constructed if isinstance(item, type) else lambda *_: item)]


def given_name(item: Any) -> str:
    """The name of a tool or interaction object in settings and messages."""
    if isinstance(item, str | Path):
        return str(item)
    named = item if isinstance(item, type) or isroutine(item) else type(item)
    return str(named.__name__)


def _function(tool: FunctionTool, where: str) -> Definition:
    """A function as a tool."""
    check_function(tool, where)
    check_types(tool.tool_schema, where)
    runner = partial(ToolRunner, tool, tool.tool_schema.model_dump(), ToolOptions(), closed=tool.closed)
    return Definition(where, tool.name, lambda *_: [runner()])


def _read_schema(where: str, written: Any) -> OpenAIFunctionToolSchema:
    try:
        return OpenAIFunctionToolSchema.model_validate(written)
    except ValueError as error:
        raise UserError(f"{where}: tool_schema: {error}: write type, function.name, description, parameters") from error


def _check_names(named: Iterable[tuple[str, str]]) -> None:
    """Raises UserError for a second tool of one name; each with where it comes from."""
    seen: dict[str, str] = {}
    for name, where in named:
        if name in seen:
            raise UserError(f"{where}: a tool named {name!r} is in {seen[name]} already: rename one of them")
        seen[name] = where
