"""Values that a number cannot have, whatever the other settings are."""

from typing import Any

from agentrl.config.keys import value_at
from agentrl.core.errors import UserError

AT_LEAST_0 = """
actor.clip_ratio actor.clip_ratio_low actor.clip_ratio_high actor.kl_loss_coef actor.optim.weight_decay
actor.optim.lr_warmup_steps algorithm.kl_ctrl.kl_coef critic.optim.weight_decay critic.optim.lr_warmup_steps
model.lora_rank critic.model.lora_rank optim.weight_decay optim.lr_warmup_steps trainer.critic_warmup
rollout.multi_turn.max_assistant_turns rollout.multi_turn.max_user_turns rollout.multi_turn.max_consecutive_errors
actor.router.aux_loss_coef actor.router.bias_update distillation.coef
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
BELOW_1 = "actor.optim.betas optim.betas"


def ranges(config: Any) -> None:
    """Raises UserError for the first number that is out of its key's range."""
    for keys, fits, says in (
        (AT_LEAST_0, lambda value: value >= 0, "must be at least 0"),
        (ABOVE_0, lambda value: value > 0, "must be over 0"),
        (SHARES, lambda value: 0 <= value <= 1, "must be from 0 to 1"),
        (BELOW_1, lambda value: 0 <= value < 1, "each must be at least 0 and below 1"),
    ):
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
    if hasattr(config, "actor") and config.actor.clip_ratio_c <= 1:
        raise UserError(f"actor.clip_ratio_c={config.actor.clip_ratio_c}: must be over 1")
    if hasattr(config, "rollout") and min(config.rollout.top_k, config.rollout.val_kwargs.top_k) < -1:
        raise UserError(f"rollout.top_k={config.rollout.top_k}: must be at least 1; -1 or 0: all tokens")
