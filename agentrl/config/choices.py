"""Keys whose value is one of a few words. A test compares them with what the code behind each key offers."""

from agentrl.core.dtypes import COMPUTED, STORED

KL_ESTIMATORS = ("kl", "abs", "mse", "low_var_kl")
# What says nothing with one answer a prompt.
GROUP_ESTIMATORS = ("grpo", "grpo_turn", "grpo_passk", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline")
# What compares with a critic's values.
CRITIC_ESTIMATORS = ("gae", "gae_turn")
ESTIMATORS = (*GROUP_ESTIMATORS, *CRITIC_ESTIMATORS, "reinforce_plus_plus", "remax", "reward", "none")
POLICY_LOSSES = ("vanilla", "gspo", "cispo", "gpg", "sapo", "geo_mean", "clip_cov", "kl_cov")
SCHEDULES = ("constant", "linear", "cosine", "wsd")

LOSS_AGG_MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")

REWARD_MANAGERS = ("naive", "dapo", "prime", "batch")

FORMATS = (
    "hermes",
    "llama3_json",
    "mistral",
    "pythonic",
    "qwen3_coder",
    "glm",
    "deepseek",
    "deepseek_v4",
    "kimi",
    "kimi_k3",
    "gpt_oss",
    "gemma4",
    "minimax_m2",
    "minimax_m3",
    "seed_oss",
    "hunyuan",
    "nemotron_v2",
    "phi4_mini",
    "command",
    "apertus",
    "solar",
    "gigachat",
    "functionary",
    "qwen",
    "gpt-oss",
    "minimax",
    "seed",
)

CHOICES: dict[str, tuple[str, ...]] = {
    "actor.profiler.tool": ("torch", "nsys"),
    "actor.kl_loss_type": (*KL_ESTIMATORS, *(f"{name}+" for name in KL_ESTIMATORS), "full"),
    "actor.loss_agg_mode": LOSS_AGG_MODES,
    "actor.policy_loss.loss_mode": POLICY_LOSSES,
    "actor.optim.lr_scheduler_type": SCHEDULES,
    "actor.checkpoint.load_contents": ("model", "optimizer", "extra"),
    "actor.checkpoint.save_contents": ("model", "optimizer", "extra", "hf_model"),
    "actor.fsdp_config.mixed_precision.param_dtype": ("auto", *COMPUTED),
    "actor.fsdp_config.mixed_precision.reduce_dtype": STORED,
    "algorithm.adv_estimator": ESTIMATORS,
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "algorithm.kl_penalty": (*KL_ESTIMATORS, "full"),
    "algorithm.pf_ppo.reweight_method": ("pow", "max_min", "max_random"),
    "algorithm.rollout_correction.rollout_is": ("token", "sequence"),
    "algorithm.rollout_correction.rollout_is_mode": ("truncate", "mask"),
    "algorithm.rollout_correction.loss_type": ("ppo_clip", "reinforce"),
    "critic.checkpoint.load_contents": ("model", "optimizer", "extra"),
    "critic.checkpoint.save_contents": ("model", "optimizer", "extra"),
    "critic.loss_agg_mode": LOSS_AGG_MODES,
    "critic.model.dtype": STORED,
    "critic.optim.lr_scheduler_type": SCHEDULES,
    "data.truncation": ("error", "left", "right", "middle"),
    "fsdp_config.mixed_precision.param_dtype": ("auto", *COMPUTED),
    "fsdp_config.mixed_precision.reduce_dtype": STORED,
    "model.dtype": STORED,
    "model.fused_kernel_options.impl_backend": ("triton", "torch"),
    "optim.lr_scheduler_type": SCHEDULES,
    "reward.reward_model.model.dtype": STORED,
    "reward.reward_manager.source": ("register", "importlib"),
    "rollout.multi_turn.format": FORMATS,
    "rollout.multi_turn.tokenization_sanity_check_mode": ("disable", "strict", "ignore_strippable"),
    "rollout.multi_turn.tool_response_truncate_side": ("left", "right", "middle"),
    "rollout.multi_turn.tool_response_unit": ("characters", "tokens"),
    "rollout.dtype": ("auto", *COMPUTED),
    "rollout.name": ("auto", "hf", "sglang", "vllm"),
    "rollout.weight_check": ("first", "always", "never"),
    "rollout.weight_sync": ("auto", "ipc", "nccl", "files"),
    "trainer.device": ("auto", "cpu", "cuda"),
    "trainer.logger": ("console", "file", "tensorboard", "wandb", "mlflow", "swanlab", "trackio"),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
}

REGISTERED = frozenset({"algorithm.adv_estimator", "actor.policy_loss.loss_mode"})
"""Keys that may name what `model.external_lib` registers too."""
BY_PATH = frozenset({"rollout.multi_turn.format"}) | REGISTERED
"""Keys that may name something of the user's own too, by its path: file.py:Class or package.module.Class."""
