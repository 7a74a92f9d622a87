"""Sizes, switches and processes that are fine alone and do not fit each other."""

from typing import Any

from agentrl.config.derived import changed_distribution, compares_in_groups, has_rollout_workers
from agentrl.config.keys import value_at
from agentrl.config.schema import Actor, Algorithm, Data, Model, Optim, Rollout, Trainer
from agentrl.config.schema.critic import CriticOptim
from agentrl.config.schema.rollout import ValSampling
from agentrl.core.errors import UserError
from agentrl.core.numbers import limit_of
from agentrl.core.shares import KEY

SEVERAL = ("auto", "hf", "sglang", "vllm")
"""Values of `rollout.name` that sample from several adapters."""
CROWDED = 0.6
"""Share of a GPU's free memory from which on an engine that never gives it back is worth a word."""

LARGEST_RATE = 0.1
"""Learning rate from which on Adam destroys a model in its first step."""
SMALLEST_ADAPTER_RATE = 5e-6


def lengths(data: Data, rollout: Rollout) -> str | None:
    """A sequence has room for its prompt, and for the answer."""
    longest, prompt = rollout.max_model_len, data.max_prompt_length
    both = prompt + data.max_response_length
    if longest is None or longest >= both:
        return None
    if longest <= prompt:
        raise UserError(
            f"rollout.max_model_len={longest} leaves no room after data.max_prompt_length={prompt}: set it to {both}"
        )
    return (
        f"rollout.max_model_len={longest} is under data.max_prompt_length + data.max_response_length = {both}: "
        "answers to long prompts end early"
    )


def passes(data: Data, actor: Actor) -> str | None:
    """The longest sequence fits into a forward pass."""
    longest, budget = data.max_prompt_length + data.max_response_length, actor.ppo_max_token_len_per_gpu
    if not actor.use_dynamic_bsz or budget is None or budget >= longest:
        return None
    return (
        f"actor.ppo_max_token_len_per_gpu={budget} is under data.max_prompt_length + data.max_response_length = "
        f"{longest}: a longer sequence gets a pass of its own, which takes more memory than that"
    )


def same_answers(rollout: Rollout, algorithm: Algorithm, trainer: Trainer) -> str | None:
    """Several answers to a prompt differ."""
    if compares_in_groups(algorithm.adv_estimator) and not rollout.do_sample and not trainer.val_only:
        return (
            f"rollout.do_sample=false with algorithm.adv_estimator={algorithm.adv_estimator}: unless tools or users "
            f"differ, the {rollout.n} answers to a prompt are the same, and every advantage 0; set "
            "rollout.do_sample=true"
        )
    return _same(rollout.val_kwargs, "rollout.val_kwargs")


def policies(model: Model, rollout: Rollout, algorithm: Algorithm) -> None:
    """Several policies are adapters of one base; checkpoints have a folder for each. Raises UserError."""
    names, here = model.policies, rollout.nnodes == 0 or rollout.name in ("sglang", "vllm")
    fits = here and model.lora_rank and not model.target_parameters and compares_in_groups(algorithm.adv_estimator)
    if names and not (fits and rollout.name in SEVERAL):
        needed = f"model.lora_rank, rollout.name of {', '.join(SEVERAL)}, groups (grpo), and rollout.nnodes=0 with hf"
        raise UserError(f"model.policies needs {needed}; leave out model.target_parameters")
    if len({*names}) < len(names) or any(not name or "/" in name or name.startswith(".") for name in names):
        raise UserError(f"model.policies={names}: give them different names, without a slash or a dot before it")


def val_sets(data: Data) -> str | None:
    """Each set has rows, and answers to a prompt that differ. Raises UserError."""
    for name, one in data.val_sets.items():
        if not one.files or "/" in name:
            raise UserError(f"data.val_sets.{name}: set files to its rows; its name has no slash")
    return next(filter(None, (_same(one, f"data.val_sets.{name}") for name, one in data.val_sets.items())), None)


def _same(sampling: ValSampling, key: str) -> str | None:
    if sampling.n > 1 and (sampling.do_sample is False or sampling.temperature == 0):
        return f"{key}.n={sampling.n}: greedy answers are all the same; set {key}.temperature above 0, or n=1"
    return None


def whole_distribution(rollout: Rollout, algorithm: Algorithm, trainer: Trainer) -> str | None:
    """The engine's log-probs compare with the trainer's."""
    cut = changed_distribution(rollout)
    if cut is None or trainer.val_only:
        return None
    if algorithm.rollout_correction.bypass_mode:
        raise UserError(
            f"{cut} with algorithm.rollout_correction.bypass_mode: the engine's log-probs are those of the changed "
            "distribution, the trainer's of the whole one; set bypass_mode=false"
        )
    return (
        f"{cut}: the engine's log-probs are those of the changed distribution and say nothing about the trainer's: "
        "algorithm.rollout_correction does nothing, and rollout_gap shows the change"
    )


def rounded_weights(rollout: Rollout, algorithm: Algorithm, trainer: Trainer) -> str | None:
    """Tokens of rounded weights are corrected."""
    correction = algorithm.rollout_correction
    if rollout.quantization is None or correction.rollout_is or correction.bypass_mode or trainer.val_only:
        return None
    return (
        f"rollout.quantization={rollout.quantization}: the engine samples from rounded weights, and nothing corrects "
        "that; set algorithm.rollout_correction.rollout_is=token"
    )


def drafted_tokens(rollout: Rollout) -> None:
    """Servers check drafted tokens against the policy's whole distribution."""
    val, key = rollout.val_kwargs, f"rollout.speculative_algorithm={rollout.speculative_algorithm}"
    cut = changed_distribution(rollout) or (
        "rollout.val_kwargs" if val.min_p > 0 or val.repetition_penalty != 1 else None
    )
    if rollout.speculative_algorithm and cut:
        raise UserError(f"{key} with {cut}: servers check drafted tokens against the whole distribution; drop one")


def crowded_gpu(rollout: Rollout) -> str | None:
    """An engine that keeps its memory leaves some to the policy on the same GPU."""
    share = rollout.gpu_memory_utilization
    own = rollout.name in ("sglang", "vllm") and not rollout.base_url
    if not own or rollout.free_cache_engine is not False or share is None or share <= CROWDED:
        return None
    return (
        f"rollout.gpu_memory_utilization={share} with rollout.free_cache_engine=false: on the trainer's GPU the policy "
        f"has {1 - share:.0%} of the memory to train in; lower it, or set rollout.free_cache_engine=true"
    )


def validation(data: Data, trainer: Trainer) -> str | None:
    """Validation has rows."""
    if data.val_files is None and not data.val_sets and trainer.test_freq > 0:
        return f"trainer.test_freq={trainer.test_freq} has no effect without data.val_files"
    return None


def learning_rate(config: Any) -> str | None:
    """Rates that Adam can take, and one that an adapter learns with."""
    keys = ("actor.optim", "critic.optim") if hasattr(config, "actor") else ("optim",)
    for key in keys:
        _adam_rate(key, value_at(config, key))
    return _adapter_rate(keys[0], value_at(config, keys[0]), config.model)


def _adam_rate(key: str, optim: Optim | CriticOptim) -> None:
    """Raises UserError for a rate at which Adam's first step changes each weight by more than weights are large."""
    if optim.lr >= LARGEST_RATE and "sgd" not in str(getattr(optim, "optimizer", "")).lower():
        raise UserError(
            f"{key}.lr={optim.lr}: Adam changes each weight by about that much in a step, which destroys the model; "
            "1e-6 is usual for full training, 1e-5 to 1e-4 for LoRA"
        )


def _adapter_rate(key: str, optim: Optim, model: Model) -> str | None:
    """Whether an adapter learns: it needs about ten times the rate of full training."""
    if not model.lora_rank or not 0 < optim.lr < SMALLEST_ADAPTER_RATE:
        return None
    return (
        f"{key}.lr={optim.lr:g} with model.lora_rank={model.lora_rank}: an adapter hardly learns at the rate of full "
        f"training; set {key}.lr=1e-5 to 1e-4"
    )


def warm_up(actor: Actor, trainer: Trainer) -> str | None:
    """The warm-up ends before the run does."""
    steps, total = actor.optim.lr_warmup_steps, limit_of(trainer.total_training_steps)
    if total is None or steps < total:
        return None
    return (
        f"actor.optim.lr_warmup_steps={steps} with trainer.total_training_steps={total}: the learning rate never "
        "reaches its peak"
    )


def rollout_workers(rollout: Rollout, trainer: Trainer) -> str | None:
    """Several processes are there to spread conversations over, and their order may depend on timing."""
    count = rollout.agent.num_workers
    if not count:
        return None
    if not has_rollout_workers(trainer, rollout):
        return (
            f"{KEY}={count} has no effect in a run of one process, whose one event loop serves the conversations of a "
            "GPU; with trainer.n_gpus_per_node or rollout.nnodes above its default, Ray starts the workers"
        )
    if rollout.deterministic:
        raise UserError(
            f"rollout.deterministic=true with {KEY}={count}: the order in which several processes send requests "
            f"depends on timing; set {KEY}=0, or deterministic=false"
        )
    return None


def split_experts(config: Any) -> None:
    """The processes that train can split experts."""
    key = f"{'actor.' * hasattr(config, 'actor')}fsdp_config.expert_parallel_size"
    size, processes = value_at(config, key), config.trainer.nnodes * config.trainer.n_gpus_per_node
    if processes % size:
        raise UserError(
            f"{key}={size} does not divide the {processes} processes that train; choose a divisor, or another "
            "trainer.n_gpus_per_node"
        )
