"""Scores an answer and shows the model its reward: verl's Gsm8kTool by name and behaviour.

Shows: `execute` returns a reward for the step (a small penalty for an answer that is no better than the one before),
`calc_reward` one for the whole trajectory. A row has

    extra_info.tools_kwargs.calc_gsm8k_reward.create_kwargs = {"ground_truth": "72"}
"""

import asyncio
from typing import Any
from uuid import uuid4

from agentrl.core.errors import UserError
from agentrl.tools import BaseTool, OpenAIFunctionToolSchema, ToolResponse
from agentrl_verl.scorers import geometry3k, gsm8k

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
        self.truths: dict[str, Any] = {}
        self.rewards: dict[str, float] = {}

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """Used if the YAML has no tool_schema."""
        return OpenAIFunctionToolSchema.model_validate(SCHEMA)

    def score(self, answer: str, truth: Any) -> float:
        """GSM8K's score of the answer's last number."""
        marked = answer if answer.startswith("#### ") else f"#### {answer}"
        return gsm8k.compute_score(marked, truth, method="flexible")

    async def create(
        self, instance_id: str | None = None, ground_truth: Any = None, **kwargs: Any
    ) -> tuple[str, ToolResponse]:
        """`ground_truth` comes from the row, also as `create_kwargs={"ground_truth": ...}`, as verl's loops pass it."""
        if ground_truth is None:
            ground_truth = (kwargs.get("create_kwargs") or {}).get("ground_truth")
        if ground_truth is None:
            raise UserError(f"tools_kwargs.{self.name}.create_kwargs has no ground_truth: add it to the row")
        instance_id = instance_id or uuid4().hex
        self.truths[instance_id] = ground_truth
        self.rewards[instance_id] = 0.0
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """The model reads the reward of its answer, in verl's words."""
        answer = str(parameters.get("answer", ""))
        reward = await asyncio.to_thread(self.score, answer, self.truths[instance_id])
        better = reward > self.rewards[instance_id]
        self.rewards[instance_id] = reward
        return ToolResponse(text=f"Current parsed {answer=} {reward=}"), 0.0 if better else NO_BETTER, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """The reward of the last answer."""
        return self.rewards[instance_id]

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Drop the question."""
        self.truths.pop(instance_id, None)
        self.rewards.pop(instance_id, None)


class Geo3kTool(Gsm8kTool):
    """Scores geometry3k answers: verl's Geo3kTool. Its YAML has a tool_schema."""

    def score(self, answer: str, truth: Any) -> float:
        """geometry3k's score of the whole text."""
        return geometry3k.compute_score(answer, truth, use_boxed=False, format_score=0.0)
