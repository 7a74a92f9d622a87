import asyncio
import json
import logging
import os
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.utils.tool_registry import initialize_tools_from_config
from verl.utils.profiler import simple_timer
from verl.utils.rollout_trace import rollout_trace_op

logger = logging.getLogger(__file__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "WARN"))


@register("react_agent")
class ReactLoop(AgentLoopBase):
    def __init__(self, *args, max_calls=3, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_calls = max_calls

    @classmethod
    def init_class(cls, config, tokenizer, processor, **kwargs):
        if cls._class_initialized:
            return
        cls._class_initialized = True
        cls.tokenizer = tokenizer
        cls.prompt_length = config.actor_rollout_ref.rollout.prompt_length
        cls.response_length = config.actor_rollout_ref.rollout.response_length
        tool_config_path = config.actor_rollout_ref.rollout.multi_turn.tool_config_path
        tool_list = initialize_tools_from_config(tool_config_path) if tool_config_path else []
        cls.tools = {tool.name: tool for tool in tool_list}
        cls.tool_schemas = [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in tool_list]
        cls.tool_parser = ToolParser.get_tool_parser(config.actor_rollout_ref.rollout.multi_turn.format, cls.tokenizer)

    @rollout_trace_op
    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        messages = list(kwargs["raw_prompt"])
        metrics = {}
        request_id = uuid4().hex
        prompt_ids = await self.loop.run_in_executor(
            None,
            lambda: self.tokenizer.apply_chat_template(
                messages, tools=self.tool_schemas, add_generation_prompt=True, tokenize=True
            ),
        )
        response_mask = []
        turns = 0
        while True:
            with simple_timer("generate_sequences", metrics):
                output = await self.server_manager.generate(
                    request_id=request_id, prompt_ids=prompt_ids, sampling_params=sampling_params
                )
            response_ids = output.token_ids
            prompt_ids += response_ids
            response_mask += [1] * len(response_ids)
            turns += 1
            if len(response_mask) >= self.response_length or turns > self.max_calls:
                break
            _, tool_calls = await self.tool_parser.extract_tool_calls(response_ids)
            with simple_timer("tool_calls", metrics):
                texts = await asyncio.gather(*[self._call(c, kwargs) for c in tool_calls]) if tool_calls else ["Go on."]
            seen = self.tokenizer.encode("\n" + "\n".join(texts), add_special_tokens=False)
            if len(response_mask) + len(seen) >= self.response_length:
                break
            prompt_ids += seen
            response_mask += [0] * len(seen)
        response_ids = prompt_ids[-len(response_mask) :]
        prompt_ids = prompt_ids[: len(prompt_ids) - len(response_mask)]
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=response_ids[: self.response_length],
            response_mask=response_mask[: self.response_length],
            num_turns=2 * turns,
            metrics=metrics,
        )

    async def _call(self, tool_call: FunctionCall, row) -> str:
        tool = self.tools[tool_call.name]
        instance_id, _ = await tool.create(create_kwargs={}, ground_truth=row["reward_model"]["ground_truth"])
        try:
            answer, _, _ = await tool.execute(instance_id, json.loads(tool_call.arguments))
        finally:
            await tool.release(instance_id)
        return answer.text
