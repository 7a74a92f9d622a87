from collections import defaultdict

import torch
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.utils.reward_score import default_compute_score
from verl.workers.reward_manager import register as register_old
from verl.workers.reward_manager.abstract import AbstractRewardManager


@register("short_answers")
class ShortAnswers(RewardManagerBase):
    def __init__(self, config, tokenizer, compute_score, reward_router_address=None, reward_model_tokenizer=None):
        super().__init__(config, tokenizer, compute_score)
        self.compute_score = compute_score or default_compute_score
        self.longest = config.actor_rollout_ref.rollout.response_length

    async def run_single(self, data: DataProto) -> dict:
        assert len(data) == 1, "Only support single data item"
        data_item = data[0]
        response_ids = data_item.batch["responses"]
        response_length = response_ids.shape[-1]
        valid_response_length = data_item.batch["attention_mask"][-response_length:].sum()
        valid_response_ids = response_ids[:valid_response_length]
        response_str = await self.loop.run_in_executor(
            None, lambda: self.tokenizer.decode(valid_response_ids, skip_special_tokens=True)
        )
        result = self.compute_score(
            data_source=data_item.non_tensor_batch["data_source"],
            solution_str=response_str,
            ground_truth=data_item.non_tensor_batch["reward_model"]["ground_truth"],
            extra_info=data_item.non_tensor_batch.get("extra_info", {}),
        )
        score = result["score"] if isinstance(result, dict) else result
        short = 1 - float(valid_response_length) / self.longest
        return {"reward_score": score + 0.1 * short, "reward_extra_info": {"acc": score, "short": short}}


@register_old("step_average")
class StepAverage(AbstractRewardManager):
    def __init__(self, tokenizer, num_examine, compute_score=None, reward_fn_key="data_source", **kwargs):
        self.tokenizer = tokenizer
        self.compute_score = compute_score or default_compute_score
        self.reward_fn_key = reward_fn_key

    def __call__(self, data: DataProto, return_dict: bool = False):
        if "rm_scores" in data.batch.keys():
            return data.batch["rm_scores"]
        reward_tensor = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        reward_extra_info = defaultdict(list)
        for i in range(len(data)):
            data_item = data[i]
            prompt_length = data_item.batch["prompts"].shape[-1]
            valid_response_length = data_item.batch["attention_mask"][prompt_length:].sum()
            text = self.tokenizer.decode(data_item.batch["responses"][:valid_response_length], skip_special_tokens=True)
            truth = data_item.non_tensor_batch["reward_model"]["ground_truth"]
            source = data_item.non_tensor_batch[self.reward_fn_key]
            score = self.compute_score(data_source=source, solution_str=text, ground_truth=truth, extra_info={})
            reward_tensor[i, valid_response_length - 1] = score + len(text) / 1000
            reward_extra_info["letters"].append(len(text))
        if return_dict:
            return {"reward_tensor": reward_tensor, "reward_extra_info": reward_extra_info}
        return reward_tensor
