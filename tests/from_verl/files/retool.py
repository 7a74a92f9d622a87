# Shaped like what people keep beside a ReTool run.
import logging
import re
from typing import Any

from verl.tools.base_tool import OpenAIFunctionToolSchema
from verl.tools.sandbox_fusion_tools import SandboxFusionTool
from verl.tools.schemas import ToolResponse
from verl.utils.dataset import RLHFDataset
from verl.utils.reward_score import math_dapo
from verl.utils.rollout_trace import rollout_trace_op

logger = logging.getLogger(__name__)


class CustomSandboxFusionTool(SandboxFusionTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self.code_pattern = re.compile(r"```python(.*?)```", re.DOTALL)

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> tuple[str, float, dict]:
        code = parameters["code"]
        blocks = self.code_pattern.findall(code)
        if blocks:
            code = blocks[0].strip()
        lines = code.split("\n")
        for i in reversed(range(len(lines))):
            if lines[i] == "":
                continue
            if not lines[i].startswith("print"):
                lines[i] = f"print({lines[i]})"
            break
        code = "\n".join(lines)
        timeout = parameters.get("timeout", self.default_timeout)
        language = parameters.get("language", self.default_language)
        result = await self.execution_pool.execute.remote(self.execute_code, instance_id, code, timeout, language)
        if isinstance(result, ToolResponse):
            return result, None, None
        return ToolResponse(text=None if result is None else str(result)), None, None


answer_format = """\nThe answer format must be: \\boxed{'The final answer goes here.'}"""


class CustomRLHFDataset(RLHFDataset):
    """Rows of several sources made alike."""

    def _read_files_and_tokenize(self):
        import pyarrow.parquet as pq

        rows = []
        for parquet_file in self.data_files:
            rows += [self.map_fn(row) for row in pq.read_table(parquet_file).to_pylist()]
        self.dataframe = rows
        print(f"dataset len: {len(self.dataframe)}")

    def map_fn(self, row: dict):
        return {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": row["problem"] + answer_format}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(row["answer"])},
            "agent_name": "tool_agent",
        }


def compute_score(data_source, solution_str, ground_truth, extra_info):
    result = math_dapo.compute_score(solution_str, ground_truth, strict_box_verify=True)
    num_turns = extra_info["num_turns"]
    if result["score"] < 0:
        tool_call_reward = (num_turns - 2) / 2 * 0.1
        result["score"] = min(-0.6, result["score"] + tool_call_reward)
    if result["pred"] is None:
        result["pred"] = ""
    return result
