"""Lets the model hand in an answer and hear what it is worth: verl's Gsm8kTool by name and behaviour.

To learn from: `execute` returns a reward for the step (a small penalty for an answer that is no better than the one
before), `calc_reward` one for the whole trajectory. A row says

    extra_info.tools_kwargs.calc_gsm8k_reward.create_kwargs = {"ground_truth": "72"}
"""

from typing import Any
from uuid import uuid4

from agentrl.answers import final_answer, same_answer
from agentrl.errors import UserError
from agentrl.rewards import maths
from agentrl.tools import BaseTool, OpenAIFunctionToolSchema, ToolResponse

NO_BETTER = -0.05
SCHEMA = {
    "type": "function",
    "function": {
        "name": "calc_gsm8k_reward",
        "description": "Hand in an answer to the question and learn its reward: 1.0 when it is right, 0.0 otherwise.",
        "parameters": {
            "type": "object",
            "properties": {"answer": {"type": "string", "description": "The answer, a number"}},
            "required": ["answer"],
        },
    },
}


class Gsm8kTool(BaseTool):
    """Compares answers with the row's ground truth."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        super().__init__(config, tool_schema)
        self.truths: dict[str, str] = {}
        self.rewards: dict[str, float] = {}

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """Used where the YAML has no tool_schema."""
        return OpenAIFunctionToolSchema.model_validate(SCHEMA)

    def right(self, answer: str, truth: str) -> bool:
        """Whether an answer is the truth."""
        return same_answer(answer, truth)

    async def create(
        self, instance_id: str | None = None, ground_truth: Any = None, **kwargs: Any
    ) -> tuple[str, ToolResponse]:
        """`ground_truth` comes from the row, also as `create_kwargs={"ground_truth": ...}`, as verl's loops pass it."""
        if ground_truth is None:
            ground_truth = (kwargs.get("create_kwargs") or {}).get("ground_truth")
        if ground_truth is None:
            raise UserError(f"tools_kwargs.{self.name}.create_kwargs has no ground_truth: add it to the row")
        instance_id = instance_id or uuid4().hex
        self.truths[instance_id] = str(ground_truth)
        self.rewards[instance_id] = 0.0
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Tells the model the reward of its answer."""
        answer = final_answer(parameters["answer"]) or parameters["answer"]
        reward = float(self.right(answer, self.truths[instance_id]))
        better = reward > self.rewards[instance_id]
        self.rewards[instance_id] = reward
        return ToolResponse(text=f"Your answer {answer} has the reward {reward}."), 0.0 if better else NO_BETTER, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """The reward of the last answer handed in."""
        return self.rewards[instance_id]

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the question."""
        self.truths.pop(instance_id, None)
        self.rewards.pop(instance_id, None)


class Geo3kTool(Gsm8kTool):
    """The same for answers that are mathematics: verl's Geo3kTool. Its YAML has a tool_schema."""

    def right(self, answer: str, truth: str) -> bool:
        """Equal as mathematics."""
        return maths.same(answer, truth)
