"""The class that tools derive from, with verl's signatures."""

from typing import Any
from uuid import uuid4

from agentrl.core.errors import UserError
from agentrl.core.sandbox import Sandbox
from agentrl.tools.response import ToolResponse
from agentrl.tools.schemas import OpenAIFunctionToolSchema

NO_SCHEMA = "has no schema: write tool_schema in the YAML or override get_openai_tool_schema()"


class BaseTool:
    """A tool. One object serves the whole run; what belongs to one trajectory is kept under its `instance_id`.

    For each trajectory: `create` once, `execute` per call, `calc_reward` once at the end, `release` once, always.
    All four may be async or plain functions; plain ones run in threads. Keyword arguments come from the row's
    `extra_info.tools_kwargs[<tool>]`: create_kwargs, execute_kwargs, calc_reward_kwargs, release_kwargs.
    """

    sandbox: Sandbox
    """For code that the model wrote. Set by the loader after `__init__`: a server at `config.sandbox_fusion_url`, else
    the one that the run's rewards use too."""

    def __init__(
        self, config: dict[str, Any] | None = None, tool_schema: OpenAIFunctionToolSchema | None = None
    ) -> None:
        """`config` and `tool_schema` are the YAML's; without the latter `get_openai_tool_schema` is asked.

        A class may have an attribute `tool_schema`, a schema or a dict, instead.
        """
        self.config = {} if config is None else config
        schema = tool_schema or self.get_openai_tool_schema()
        self.tool_schema = OpenAIFunctionToolSchema.model_validate(schema) if isinstance(schema, dict) else schema
        self.name: str = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """The schema, for tools whose YAML has none."""
        if getattr(self, "tool_schema", None) is None:
            raise UserError(f"tool class {type(self).__name__} {NO_SCHEMA}")
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Begin a trajectory. Returns the id for later calls, alone or with a response (not shown to the model)."""
        return instance_id or uuid4().hex, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Carry out one call. Returns response, step reward and metrics; raise ModelError to correct the model."""
        raise NotImplementedError(f"{type(self).__name__} does not define execute()")

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """The tool's score of the trajectory; called once at the end."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """End a trajectory: drop its state. Called even when create failed, so the state may not exist."""
