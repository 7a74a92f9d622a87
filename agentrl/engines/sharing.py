"""How servers share GPUs with a process that trains: how much they take, and whether they free it meanwhile.

To sleep and wake costs a tenth of a second a step, and the trainer its cached memory. It pays where passes would
otherwise be small: below `ENOUGH` tokens they are slower by more than that.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from huggingface_hub import try_to_load_from_cache

from agentrl.config.derived import has_critic, state_bytes
from agentrl.config.schema import Config
from agentrl.core.dtypes import BYTES
from agentrl.core.model_files import language_config
from agentrl.core.paths import expanded
from agentrl.engines.servers.settings import DRAFTED, LEAST_SHARE, with_spare
from agentrl.training.model.adapter import base_and_adapter
from agentrl.training.perf.pass_size import CHUNK, ENOUGH, USED, activation_bytes, shape_of

IN_PROCESS_SEQUENCES = 64
"""Default of `rollout.max_num_seqs` for an engine in this process."""
PROBABILITIES = 12.0
"""Bytes of a drafted token for each word of the vocabulary."""
STORED, COMPUTED = 4, 2
"""Bytes of a trained parameter itself, and of the copy that layers compute with."""
GRADIENT_BYTES = 4
"""Bytes of a trained parameter's gradient."""
CONTEXT_BYTES = 2 << 30
"""Bytes of CUDA's own, in both processes."""


@dataclass(frozen=True)
class Sharing:
    """Where the servers of a run are."""

    apart: bool = False
    """They have other GPUs than the trainer."""
    sleeps: bool = False
    """They free their memory while the policy trains."""
    replicas: int = 1
    """Servers that share the trajectories under way."""
    ranks: int = 1
    """Processes that share the policy."""
    per_gpu: int = 1
    """Servers on one GPU."""
    fits: bool = False
    """They keep their memory: it is enough for the policy's training too."""


def model_length(config: Config) -> int:
    """Tokens of the longest sequence."""
    data = config.data
    return config.rollout.max_model_len or data.max_prompt_length + data.max_response_length


def sequences(config: Config, sharing: Sharing) -> int:
    """`rollout.max_num_seqs`, or all trajectories that one server has at once."""
    most = config.rollout.max_num_seqs
    return trajectories(config, sharing) if most is None else most


def trajectories(config: Config, sharing: Sharing) -> int:
    """Trajectories that one server has at once: its share of `trainer.max_staleness` + 1 batches."""
    rollout, data = config.rollout, config.data
    rows = data.train_batch_size * (config.trainer.max_staleness + 1)
    if config.algorithm.filter_groups.enable and data.gen_batch_size:
        rows = data.gen_batch_size if not config.trainer.max_staleness else max(rows, data.gen_batch_size)
    return -(-min(rows * rollout.n, rollout.max_concurrent_trajectories) // sharing.replicas)


def sequences_in_process(config: Config) -> int:
    """`rollout.max_num_seqs` of an engine in this process."""
    return config.rollout.max_num_seqs or IN_PROCESS_SEQUENCES


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


def trainer_bytes(config: Config, sharing: Sharing) -> float | None:
    """Bytes that the policy's training keeps on a GPU while its server samples; None: unknown."""
    if sharing.apart:
        return 0.0
    policy = parameters(str(config.model.path), config.model.lora_rank)
    if policy is None or not (sharing.sleeps or sharing.fits):
        return None
    width, offloaded = BYTES[config.model.dtype], config.actor.fsdp_config
    if config.model.lora_rank:
        return policy * width
    stored = 0 if offloaded.param_offload else STORED
    moments = 0 if offloaded.optimizer_offload or offloaded.offload_policy else state_bytes(config.actor.optim)
    gathered = sharing.ranks == 1 or sharing.fits or offloaded.reshard_after_forward is False
    kept = policy * ((stored + moments) / sharing.ranks + gathered * COMPUTED)
    if config.actor.use_kl_loss or config.algorithm.use_kl_in_reward:
        kept += policy * width / sharing.ranks
    if has_critic(config):
        kept += policy * (STORED + moments) / sharing.ranks
    return kept


def server_bytes(config: Config, sharing: Sharing, length: int, dtype: str) -> float | None:
    """Bytes on a GPU of a server's weights, and of a cache for all its trajectories at their full length, or for
    `rollout.max_num_seqs` where that is more; None: unknown. `length`: tokens of the longest sequence."""
    model = str(config.model.path), config.model.lora_rank
    policy, token = parameters(*model), cache_numbers(*model)
    if policy is None or token is None:
        return None
    rollout, text = config.rollout, text_config(*model)
    most = max(trajectories(config, sharing), rollout.max_num_seqs or 0)
    weights = BYTES[dtype] * policy
    if rollout.quantization:  # embeddings and head keep their dtype
        weights -= (BYTES[dtype] - 1) * max(policy - 2.0 * text.get("vocab_size", 0) * text.get("hidden_size", 0), 0.0)
    if rollout.speculative_algorithm:  # logits, and two tables of probabilities, of all drafted tokens
        weights += PROBABILITIES * (DRAFTED + 1) * most * text.get("vocab_size", 0)
    return (weights + BYTES[dtype] * most * length * token) / rollout.tensor_model_parallel_size


def parameters(path: str, lora_rank: int = 0) -> float | None:
    """Number of parameters of a model in a folder, from the size of its files; None: it is not there yet."""
    folder, config = model_folder(path, lora_rank), text_config(path, lora_rank)
    files = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return sum(file.stat().st_size for file in files) / BYTES.get(stored, 2) if config and files else None


def cache_numbers(path: str, lora_rank: int = 0) -> float | None:
    """Numbers that one token has in the cache of ordinary attention; other kinds need fewer. None: unknown."""
    heads, config = attention_heads(path, lora_rank), text_config(path, lora_rank)
    if heads is None or "num_hidden_layers" not in config:
        return None
    return 2.0 * config["num_hidden_layers"] * heads[1] * heads[2]


def attention_heads(path: str, lora_rank: int = 0) -> tuple[int, int, int] | None:
    """A model's heads, heads of keys and values, and numbers of a head; None: unknown."""
    config = text_config(path, lora_rank)
    try:
        heads = config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // heads
    except KeyError:
        return None
    return heads, config.get("num_key_value_heads") or heads, width


def text_config(path: str, lora_rank: int) -> dict[str, Any]:
    """The configuration of a model's language part; empty: it is not there yet."""
    return language_config(str(model_folder(path, lora_rank)))


def model_folder(path: str, lora_rank: int) -> Path:
    """The folder of a model, of an adapter's base too, also of one that the hub's cache has."""
    base, _ = base_and_adapter(path, lora_rank)
    folder, downloaded = expanded(base), None
    with suppress(ValueError):  # no hub id
        downloaded = None if folder.is_dir() else try_to_load_from_cache(base, "config.json")
    return Path(downloaded).parent if isinstance(downloaded, str) else folder
