"""Whether a server on the trainer's GPU frees its memory while the policy trains.

To sleep and wake costs a tenth of a second a step, and the trainer its cached memory. It pays where passes would
otherwise be small: below `ENOUGH` tokens they are slower by more than that.
"""

from dataclasses import replace
from types import SimpleNamespace

from agentrl.config.derived import has_critic
from agentrl.config.schema import Config
from agentrl.engines.backends import model_length
from agentrl.engines.servers.settings import LEAST_SHARE, with_spare
from agentrl.engines.sharing import Sharing, parameters, server_bytes, text_config, trainer_bytes
from agentrl.training.perf.pass_size import CHUNK, ENOUGH, USED, activation_bytes, shape_of

GRADIENT_BYTES = 4
"""Bytes of a trained parameter's gradient."""
CONTEXT_BYTES = 2 << 30
"""Bytes of CUDA's own, in both processes."""


def shared(config: Config, sharing: Sharing, dtype: str, memory: int) -> Sharing:
    """How servers share a GPU of so many bytes (0: unknown) with a process that trains: as
    `rollout.free_cache_engine` says; null: awake where they fit. `dtype`: of the servers."""
    chosen = config.rollout.free_cache_engine
    if chosen is not None:
        return replace(sharing, sleeps=chosen)
    fits = fit_together(config, sharing, dtype, memory)
    return replace(sharing, sleeps=not fits, fits=fits)


def fit_together(config: Config, sharing: Sharing, dtype: str, memory: int) -> bool:
    """Whether awake servers and passes of a good size are known to fit."""
    length = model_length(config)
    training = update_bytes(config, sharing, length)
    serving = awake_bytes(config, sharing, length, dtype, memory)
    if training is None or serving is None or config.actor.fsdp_config.param_offload:
        return False
    return training + serving + CONTEXT_BYTES <= memory


def awake_bytes(config: Config, sharing: Sharing, length: int, dtype: str, memory: int) -> float | None:
    """Bytes of the servers on a GPU of so many bytes; None: unknown."""
    if config.rollout.gpu_memory_utilization is not None:
        return config.rollout.gpu_memory_utilization * memory * sharing.per_gpu
    needed = server_bytes(config, sharing, length, dtype)
    return None if needed is None else max(with_spare(needed) * sharing.per_gpu, LEAST_SHARE * memory)


def update_bytes(config: Config, sharing: Sharing, length: int) -> float | None:
    """Bytes that the policy's training has at the least for passes of a good size; None: unknown. Ranks may have all of
    the weights and gradients at one time."""
    kept, token = trainer_bytes(config, replace(sharing, fits=True)), activation_of_token(config)
    policy = parameters(str(config.model.path), config.model.lora_rank)
    if kept is None or token is None or policy is None:
        return None
    trained = 0.0 if config.model.lora_rank else policy * (2 if has_critic(config) else 1)
    return kept + GRADIENT_BYTES * trained + CHUNK + max(ENOUGH, length) * token / USED[sharing.ranks == 1]


def activation_of_token(config: Config) -> float | None:
    """Bytes that an update on a GPU keeps of a token; None: the model is not there yet, or of another kind."""
    text = SimpleNamespace(**text_config(str(config.model.path), config.model.lora_rank))
    try:
        shape = shape_of(SimpleNamespace(get_text_config=lambda: text), (), ["q_norm"])
    except AttributeError:
        return None
    checkpointing = config.model.enable_gradient_checkpointing
    compiled = config.actor.use_torch_compile is not False and not config.model.use_liger
    return activation_bytes(shape, narrow=True, compiled=compiled, checkpointing=checkpointing)
