"""Plain functions as tools: the docstring and the type hints are the schema."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar, overload

from agentrl.core.errors import UserError, one_line
from agentrl.tools.base import BaseTool
from agentrl.tools.schemas import OpenAIFunctionToolSchema

Function = TypeVar("Function", bound=Callable[..., Any])
MARK = "__agentrl_tool__"
"""Attribute of a function: the arguments of the decorator."""


@overload
def function_tool(name: Function, /) -> Function: ...
@overload
def function_tool(
    name: str | None = None, *, schema: OpenAIFunctionToolSchema | dict[str, Any] | None = None
) -> Callable[[Function], Function]: ...
def function_tool(name: Any = None, *, schema: Any = None) -> Any:
    """Mark a function as a tool: `@function_tool`, `@function_tool("name")` or `@function_tool(schema={...})`.

    Without `schema` the function needs a Google-style docstring with an `Args:` section and a type hint for every
    parameter; `*args` and `**kwargs` are refused. It may be async or plain, and return a str, dict, ToolResponse,
    or a tuple (response[, reward[, metrics]]). The function itself stays as it is.
    """
    if callable(name):
        return function_tool()(name)

    def mark(fn: Function) -> Function:
        setattr(fn, MARK, (name, schema))
        return fn

    return mark


class FunctionTool(BaseTool):
    """A tool without state: each call is a call of the function."""

    def __init__(self, fn: Callable[..., Any], schema: OpenAIFunctionToolSchema) -> None:
        super().__init__({}, schema)
        self.fn = fn
        # An argument the function does not have is the model's mistake; passed on, it would look like the tool's.
        self.closed = not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(fn).parameters.values())

    def execute(self, instance_id: str, parameters: dict[str, Any], **_: Any) -> Any:
        """Call a plain function; the runner does so in a thread."""
        return self.fn(**parameters)


class AsyncFunctionTool(FunctionTool):
    """An async function as a tool."""

    async def execute(self, instance_id: str, parameters: dict[str, Any], **_: Any) -> Any:
        """Await the function."""
        return await self.fn(**parameters)


def tools_in(module: ModuleType) -> list[FunctionTool]:
    """The marked functions of a module, in the order they stand there. Raises UserError."""
    # By identity, because one function may go by two names.
    functions = {id(fn): fn for fn in vars(module).values() if isinstance(getattr(fn, MARK, None), tuple)}
    return [tool_of(fn) for fn in functions.values()]


def tool_of(fn: Callable[..., Any]) -> FunctionTool:
    """A function as a tool; it need not be marked. Raises UserError."""
    kind = AsyncFunctionTool if inspect.iscoroutinefunction(fn) else FunctionTool
    return kind(fn, _schema_of(fn, *getattr(fn, MARK, (None, None))))


def _schema_of(fn: Callable[..., Any], name: str | None, written: Any) -> OpenAIFunctionToolSchema:
    try:
        schema = OpenAIFunctionToolSchema.model_validate(_inferred(fn) if written is None else written)
    except ValueError as error:
        reason = one_line(error)
        raise UserError(f"@function_tool {fn.__name__}: {reason}: fix docstring and hints, or pass schema=") from error
    if name is not None:
        schema.function.name = name
    return schema


def _inferred(fn: Callable[..., Any]) -> dict[str, Any]:
    from transformers.utils import get_json_schema
    from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

    variadic = [p for p in inspect.signature(fn).parameters.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if variadic:
        raise ValueError(f"{', '.join(map(str, variadic))} cannot be written as a JSON schema, name each parameter")
    try:
        schema: dict[str, Any] = get_json_schema(fn)
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise ValueError(str(error)) from error
    # What it returns is no concern of the one who calls it, and costs prompt tokens.
    schema["function"].pop("return", None)
    return schema
