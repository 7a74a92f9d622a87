"""Tool calls as agent loops written for verl read them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from agentrl.chat.parsers import parser_for
from agentrl.tools.schemas import SchemaPart
from agentrl.trajectory.message import checked

Parser = TypeVar("Parser", bound=type["ToolParser"])


@dataclass
class FunctionCall:
    """A call that the model wrote."""

    name: str
    arguments: str
    """JSON."""
    tool_call_id: str | None = None
    """The model's own id of the call, if it wrote one."""


class OpenAIFunctionParsedSchema(SchemaPart):
    """name, and arguments as JSON text."""


class OpenAIFunctionCallSchema(SchemaPart):
    """name, and arguments as a dict."""

    @staticmethod
    def from_openai_function_parsed_schema(parsed_schema: Any) -> tuple["OpenAIFunctionCallSchema", bool]:
        """The call, and whether its arguments could not be read."""
        try:
            arguments = json.loads(parsed_schema.arguments)
        except json.JSONDecodeError:
            arguments = None
        readable = isinstance(arguments, dict)
        call = OpenAIFunctionCallSchema(name=parsed_schema.name, arguments=arguments if readable else {})
        return call, not readable


class OpenAIFunctionToolCall(SchemaPart):
    """id, type, and function as OpenAIFunctionCallSchema."""

    field_defaults: ClassVar[dict[str, Any]] = {"type": "function"}
    field_classes: ClassVar[dict[str, type[SchemaPart]]] = {"function": OpenAIFunctionCallSchema}


class ToolParser:
    """Reads calls out of tokens: agentrl's parsers, and those that users register."""

    registry: ClassVar[dict[str, type["ToolParser"]]] = {}
    _registry = registry
    """verl's name for it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @property
    def stop_token_ids(self) -> list[int]:
        """Tokens at which the model has to stop besides its own; agentrl's formats have theirs in the chat template."""
        return []

    async def extract_tool_calls(
        self, responses_ids: Sequence[int], tools: Any = None
    ) -> tuple[str, list[FunctionCall]]:
        """The text without its calls, and the calls."""
        raise NotImplementedError(f"{type(self).__name__} does not define extract_tool_calls()")

    @classmethod
    def register(cls, name: str) -> Callable[[Parser], Parser]:
        """A decorator that makes a class known under `name`."""

        def decorate(kind: Parser) -> Parser:
            cls.registry[name] = kind
            return kind

        return decorate

    @classmethod
    def get_tool_parser(cls, name: str, tokenizer: Any) -> "ToolParser":
        """The parser of a format. Raises UserError for a name that is none."""
        return cls.registry[name](tokenizer) if name in cls.registry else ReadyMade(tokenizer, name)


class ReadyMade(ToolParser):
    """One of agentrl's own."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        super().__init__(tokenizer)
        self.parse = parser_for(name)

    async def extract_tool_calls(
        self, responses_ids: Sequence[int], tools: Any = None
    ) -> tuple[str, list[FunctionCall]]:
        """The text without its calls, and those calls that can be read."""
        schemas = [tool if isinstance(tool, dict) else tool.model_dump() for tool in tools or ()]
        parsed = self.parse(self.tokenizer.decode(responses_ids), schemas)
        readable = [call for call in map(checked, parsed.calls) if call.arguments is not None]
        calls = [FunctionCall(call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in readable]
        return parsed.preamble + parsed.content, calls


class HermesToolParser(ReadyMade):
    """<tool_call>{...}</tool_call>."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, "hermes")


class GptOssToolParser(ReadyMade):
    """Calls in gpt-oss's channels."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, "gpt-oss")


class Qwen3XMLToolParser(ReadyMade):
    """Qwen3-Coder's XML."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, "qwen3_coder")
