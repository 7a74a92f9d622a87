"""Tools from YAML (every variant of verl's) and from Python files of functions."""

from collections.abc import Iterable, Iterator
from inspect import isroutine
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError, reported_as
from agentrl.core.plugin_checks import check_keys
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
from agentrl.tools.sandboxes import NO_SANDBOX, Sandboxes
from agentrl.tools.schemas import OpenAIFunctionToolSchema
from agentrl.tools.toolset import ToolSet
from agentrl.tools.truncation import Truncation

NATIVE, MCP = "native", "mcp"
ENTRY_KEYS = ("class_name", "config", "tool_schema", "mcp")
YAML_KEY = "rollout.multi_turn.tool_config_path"
FUNCTIONS_KEY = "rollout.multi_turn.function_tool_path"
LENT_SANDBOX = "__agentrl_sandbox__"
"""Attribute of a tool: the sandbox that the loader has set."""


Placed = tuple[ToolRunner, str]
"""A tool and where it comes from."""


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
    try:
        placed = [*_from_yaml(tool_config_path, sandboxes, servers), *_from_functions(function_tool_path)]
        placed += [found for item in given for found in _given(item, sandboxes, servers)]
        _check_names((runner.name, where) for runner, where in placed)
    except UserError:
        servers.stop()
        raise
    return ToolSet([runner for runner, _ in placed], shorten, sandboxes, servers)


def check_tools(tool_config_path: str | None, function_tool_path: str | None) -> None:
    """Check a run's tools before one is made or a server is asked. Raises UserError."""
    entries = [] if tool_config_path is None else read_entries(tool_config_path, "tools", what=YAML_KEY)
    named = [(name, entry.where) for entry in entries if (name := _checked_name(entry)) is not None]
    _check_names([*named, *((runner.name, where) for runner, where in _from_functions(function_tool_path))])


def _checked_name(entry: Entry) -> str | None:
    """The tool's name, where the YAML says it."""
    native, written = _type(entry) == NATIVE, entry.fields.get("tool_schema")
    if native:
        check_class(entry, entry.load_class())
    check_options(entry)
    if not native or written is None:
        return None
    schema = _read_schema(entry.where, written)
    check_schema(schema, entry.where)
    return str(schema.function.name)


def _lend_sandbox(tool: BaseTool, sandbox: Any) -> None:
    """Set `tool.sandbox`, unless the tool has set another. A tool object may serve several runs, one by one."""
    if getattr(tool, "sandbox", None) is getattr(tool, LENT_SANDBOX, None):
        tool.sandbox = sandbox
        setattr(tool, LENT_SANDBOX, sandbox)


def _from_yaml(path: str | None, sandboxes: Sandboxes, servers: McpServers) -> Iterator[Placed]:
    for entry in [] if path is None else read_entries(path, "tools", what=YAML_KEY):
        if _type(entry) == NATIVE:
            check_class(entry, entry.load_class())
        check_options(entry)
        runners = _mcp_runners(entry, servers) if _type(entry) == MCP else [_native_runner(entry, sandboxes)]
        yield from ((runner, entry.where) for runner in runners)


def _from_functions(path: str | None) -> list[Placed]:
    if path is None:
        return []
    file = find(path, what=FUNCTIONS_KEY)
    tools = tools_in(load_user_file(file, where=f"{FUNCTIONS_KEY}: {file}"))
    for tool in tools:
        check_function(tool, f"{FUNCTIONS_KEY}: {file}")
    if not tools:
        raise UserError(f"{FUNCTIONS_KEY}: {file} has no function marked @function_tool: mark those that are tools")
    return [_of_function(tool, str(file)) for tool in tools]


def _type(entry: Entry) -> str:
    """Native or mcp. Raises UserError."""
    check_keys(entry.fields, ENTRY_KEYS, entry.where)
    kind = entry.config.get("type", NATIVE if entry.class_name else MCP)
    if kind not in (NATIVE, MCP):
        raise UserError(f"{entry.where}: config.type is {kind!r}: write native or mcp, or leave it out")
    return str(kind)


def _mcp_runners(entry: Entry, servers: McpServers) -> Iterator[ToolRunner]:
    for tool in mcp_tools(entry, servers):
        with reported_as(entry.where):
            options = ToolOptions.read(getattr(tool, "config", None) or entry.config)
        check_types(tool.tool_schema, entry.where)
        yield ToolRunner(tool, tool.tool_schema.model_dump(), options)


def _native_runner(entry: Entry, sandboxes: Sandboxes) -> ToolRunner:
    written = entry.fields.get("tool_schema")
    tool = entry.make(entry.config, None if written is None else _read_schema(entry.where, written))
    return _tool_runner(tool, entry, sandboxes)


def _tool_runner(tool: Any, entry: Entry, sandboxes: Sandboxes) -> ToolRunner:
    missing = [name for name in METHODS if not callable(getattr(tool, name, None))]
    if missing:
        raise UserError(
            f"{entry.where}: {entry.class_name} lacks {', '.join(missing)}: derive it from agentrl.tools.BaseTool"
        )
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


def _given(item: Any, sandboxes: Sandboxes, servers: McpServers) -> Iterable[Placed]:
    """The tools of one object: a tool, a tool class, a function, or the path of a YAML or Python file."""
    if isinstance(item, str | Path):
        return _from_functions(str(item)) if str(item).endswith(".py") else _from_yaml(str(item), sandboxes, servers)
    if isroutine(item):
        tool = _checked_function(item)
        return [_of_function(tool, f"tools: {tool.name}")]
    entry = _checked_object(item)
    if isinstance(item, type):
        with reported_as(f"{entry.where}(config, tool_schema)"):
            schema = entry.fields.get("tool_schema")
            read = None if schema is None else _read_schema(entry.where, schema)
            item = construct(item, {"config": entry.config, "tool_schema": read})
    return [(_tool_runner(item, entry, sandboxes), entry.where)]


def check_given(tools: Iterable[Any]) -> None:
    """Check tools as objects, before one is made of a class. Raises UserError."""
    for item in tools:
        if isinstance(item, str | Path):
            functions = str(item).endswith(".py")
            check_tools(None if functions else str(item), str(item) if functions else None)
        elif isroutine(item):
            _checked_function(item)
        else:
            _checked_object(item)


def given_name(item: Any) -> str:
    """The name of a tool or interaction object in settings and messages."""
    if isinstance(item, str | Path):
        return str(item)
    named = item if isinstance(item, type) or isroutine(item) else type(item)
    return str(named.__name__)


def _checked_function(fn: Any) -> FunctionTool:
    tool = tool_of(fn)
    check_function(tool, f"tools: {tool.name}")
    return tool


def _checked_object(item: Any) -> Entry:
    """A tool, or its class, as if a YAML file listed it."""
    kind = item if isinstance(item, type) else type(item)
    where, written = f"tools: {kind.__name__}", getattr(item, "tool_schema", None)
    config = getattr(item, "config", None)
    fields = {} if written is None else {"tool_schema": _read_schema(where, written).model_dump()}
    entry = Entry(Path(), where, kind.__name__, config if isinstance(config, dict) else {}, fields)
    check_class(entry, kind)
    return entry


def _of_function(tool: FunctionTool, where: str) -> Placed:
    check_types(tool.tool_schema, where)
    return ToolRunner(tool, tool.tool_schema.model_dump(), ToolOptions(), closed=tool.closed), where


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
