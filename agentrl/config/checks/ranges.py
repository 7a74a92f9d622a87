"""Values that a number cannot have, whatever the other settings are."""

from collections.abc import Callable
from typing import Any

from agentrl.config.keys import value_at
from agentrl.core.errors import UserError

AT_LEAST_0 = """
actor.clip_ratio actor.clip_ratio_low actor.clip_ratio_high actor.kl_loss_coef actor.optim.weight_decay
actor.optim.lr_warmup_steps algorithm.kl_ctrl.kl_coef critic.optim.weight_decay critic.optim.lr_warmup_steps
model.lora_rank critic.model.lora_rank optim.weight_decay optim.lr_warmup_steps trainer.critic_warmup
rollout.multi_turn.max_assistant_turns rollout.multi_turn.max_user_turns rollout.multi_turn.max_consecutive_errors
actor.router.aux_loss_coef actor.router.bias_update distillation.coef actor.optim.lr critic.optim.lr optim.lr
trainer.max_restarts rollout.nnodes rollout.infra_retries
"""
AT_LEAST_1 = """
data.max_length data.max_prompt_length data.max_response_length data.train_batch_size data.gen_batch_size
data.val_batch_size actor.loss_scale_factor actor.ppo_mini_batch_size actor.ppo_micro_batch_size_per_gpu
actor.ppo_max_token_len_per_gpu actor.ppo_epochs critic.ppo_mini_batch_size critic.ppo_micro_batch_size_per_gpu
critic.ppo_max_token_len_per_gpu critic.ppo_epochs rollout.n rollout.max_model_len rollout.max_num_seqs
rollout.max_concurrent_trajectories rollout.max_num_batched_tokens rollout.replicas rollout.tensor_model_parallel_size
rollout.update_weights_bucket_megabytes rollout.val_kwargs.n rollout.n_gpus_per_node
rollout.multi_turn.max_parallel_calls rollout.multi_turn.max_tool_response_length reward.reward_model.max_length
reward.reward_model.forward_max_token_len_per_gpu reward.sandbox_fusion.max_concurrent
reward.sandbox_fusion.memory_limit_mb trainer.nnodes trainer.n_gpus_per_node trainer.ray_wait_register_center_timeout
ray_init.num_cpus algorithm.min_group_size
"""
ABOVE_0 = """
actor.grad_clip critic.grad_clip trainer.grad_clip rollout.trajectory_timeout rollout.start_timeout
rollout.request_timeout reward.timeout reward.num_workers trainer.nccl_timeout algorithm.kl_ctrl.horizon
actor.fsdp_config.expert_parallel_size fsdp_config.expert_parallel_size
trainer.total_epochs actor.ulysses_sequence_parallel_size trainer.ulysses_sequence_parallel_size evaluation.k
distillation.temperature
"""
SHARES = """
algorithm.gamma algorithm.lam rollout.max_infra_drop_share actor.optim.min_lr_ratio actor.optim.stable_ratio
optim.min_lr_ratio optim.stable_ratio evaluation.confidence distillation.beta
"""
FILTERS = {
    "top_p": (lambda value: 0 < value <= 1, "must be over 0 and at most 1"),
    "top_k": (lambda value: value >= -1, "must be at least 1; -1 or 0: all tokens"),
    "min_p": (lambda value: 0 <= value <= 1, "must be from 0 (off) to 1"),
    "repetition_penalty": (lambda value: 0 < value <= 2, "must be over 0, up to 2; 1 is off"),  # SGLang's bounds
}
"""Settings of sampling by which tokens do not come from the model's own distribution, with their ranges."""
OTHERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "actor.optim.betas optim.betas": (lambda value: 0 <= value < 1, "each must be at least 0 and below 1"),
    "actor.clip_ratio_c": (lambda value: value > 1, "must be over 1"),
    "rollout.temperature": (lambda value: value > 0, "must be over 0; for greedy set rollout.do_sample=false"),
    "rollout.val_kwargs.temperature": (lambda value: value >= 0, "must not be below 0"),
    "rollout.gpu_memory_utilization": (
        lambda value: 0 < value <= 0.95,
        "must be over 0 and at most 0.95, because the policy trains on the same GPU",
    ),
    **{f"rollout.{name} rollout.val_kwargs.{name}": fits for name, fits in FILTERS.items()},
    "ref.update_freq": (lambda value: value == -1 or value >= 1, "must be at least 1; -1 keeps the first weights"),
    "algorithm.rollout_correction.rollout_is_threshold": (
        lambda value: isinstance(value, str) or value >= 1,  # a text has two numbers
        "must be at least 1",
    ),
    "algorithm.rollout_correction.rollout_rs_threshold_lower": (
        lambda value: value <= 1,
        "every on-policy token would be dropped; set it below 1",
    ),
}
"""Keys of a range that no other number has, with the words for it."""


def ranges(config: Any) -> None:
    """Raises UserError for the first number that is out of its key's range."""
    table = OTHERS | {
        AT_LEAST_0: (lambda value: value >= 0, "must be at least 0"),
        AT_LEAST_1: (lambda value: value >= 1, "must be at least 1"),
        ABOVE_0: (lambda value: value > 0, "must be over 0"),
        SHARES: (lambda value: 0 <= value <= 1, "must be from 0 to 1"),
    }
    for keys, (fits, says) in table.items():
        for key in keys.split():
            value = value_at(config, key)
            numbers = value if isinstance(value, list) else [value]
            if not all(fits(number) for number in numbers if number is not None):
                raise UserError(f"{key}={value}: {says}")


def pairs(config: Any) -> None:
    """Raises UserError for betas that are not two, a warm-up between steps and shares, and other single mistakes."""
    for section in ("actor", ""):
        optim = getattr(getattr(config, section, config), "optim", None)
        key = f"{section}.optim".lstrip(".")
        if optim is not None and len(optim.betas) != 2:
            raise UserError(f"{key}.betas={optim.betas}: write two numbers, such as [0.9, 0.999]")
        warm_up = getattr(optim, "lr_warmup_steps", 0)
        if isinstance(warm_up, float) and warm_up > 1 and warm_up % 1:
            raise UserError(f"{key}.lr_warmup_steps={warm_up}: write steps as 10, or a share of all steps as 0.1")
    if config.model.lora_rank and config.model.lora_alpha <= 0:
        raise UserError(f"model.lora_alpha={config.model.lora_alpha}: must be over 0")
    if not config.trainer.experiment_name:
        raise UserError("trainer.experiment_name is empty: name the run")
