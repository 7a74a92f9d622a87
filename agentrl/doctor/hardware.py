"""How many GPUs a model needs and how long a step takes, foretold from its configuration alone.

Two shares are measured, on Qwen3-1.7B's shape and one H200 (benchmarks/README.md): the rest is arithmetic. It assumes
prompts and answers half as long as allowed, one answer of full length, and servers that span all the GPUs.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from agentrl.config.schema import Config
from agentrl.doctor.memory import GIB, TIGHT, Size, parts, size_of
from agentrl.engines.backends import model_length
from agentrl.engines.sleeping import CONTEXT_BYTES
from agentrl.training.perf.flops import PEAKS

MEMORIES = (24, 48, 80, 141)
"""GiB of a GPU: RTX 4090, L40S, H100, H200."""
COUNTS = (1, 2, 4, 8)
SEQUENCES = 8
"""Sequences of full length that the servers have room for, at the least."""
MFU, DECODING = 0.5, 0.49
"""Measured shares: of the GPU's peak FLOPs in updates, of its memory's bandwidth in rollouts."""
BANDWIDTH = 3.35e12
"""Bytes per second of an H100's memory."""
KEPT = ("weights", "AdamW", "weights to compute with", "reference", "critic")
"""Parts of the trainer that stay on the GPU while the engine samples."""
HEAD = f"| model | parameters | trained | {' | '.join(f'{have} GiB' for have in MEMORIES)} | step on H100s |"


def table(configs: dict[str, Config]) -> str:
    """Markdown with two rows a model, by its name: LoRA, and all weights."""
    rows = [row for name, config in configs.items() for row in _rows(name, config)]
    return "\n".join([HEAD, "| --- | ---: | --- " + "| ---: " * (len(MEMORIES) + 1) + "|", *rows]) + "\n"


def _rows(name: str, config: Config) -> Iterator[str]:
    for trained, rank in (("LoRA", config.model.lora_rank or 16), ("all", 0)):
        mine = replace(config, model=replace(config.model, lora_rank=rank, dtype="bfloat16"))
        size = size_of(mine)
        found = {have: fewest(mine, size, have) for have in MEMORIES}
        cells = [f"{gpus} x {need:.0f}" if gpus else "more" for gpus, need in found.values()]
        gpus = found[80][0]
        seconds = f"{sum(step_seconds(mine, size, gpus)):.0f} s on {gpus}" if gpus else ""
        yield f"| {name} | {size.parameters / 1e9:.1f}B | {trained} | {' | '.join(cells)} | {seconds} |"


def fewest(config: Config, size: Size, memory: float) -> tuple[int, float]:
    """The least number of GPUs with so many GiB that a run fits on, and the GiB that it takes of each; (0, 0): more
    than COUNTS has."""
    fitting = ((gpus, gpu_memory(config, size, gpus)) for gpus in COUNTS)
    return next(((gpus, need) for gpus, need in fitting if need <= TIGHT * memory), (0, 0.0))


def gpu_memory(config: Config, size: Size, gpus: int) -> float:
    """GiB of each GPU that a run takes at the least."""
    return max(phases(config, size, gpus))


def phases(config: Config, size: Size, gpus: int) -> tuple[float, float]:
    """GiB of each GPU in an update with the shortest passes, and while SEQUENCES are sampled."""
    sharded = replace(config.actor.fsdp_config, reshard_after_forward=gpus > 1)
    config = replace(config, actor=replace(config.actor, fsdp_config=sharded))
    found = parts(config, size, gpus, torch.device("cuda"), 0.0)
    server = (2.0 * size.parameters / GIB + SEQUENCES * cache_memory(config, size)) / gpus
    sampling = sum(found.get(part, 0.0) for part in KEPT) + server
    return sum(found.values()) + CONTEXT_BYTES / GIB, sampling + CONTEXT_BYTES / GIB


def cache_memory(config: Config, size: Size) -> float:
    """GiB of the cache of a sequence of full length."""
    return model_length(config) * size.cache_bytes / GIB


def step_seconds(config: Config, size: Size, gpus: int, memory: float = 80) -> tuple[float, float]:
    """Seconds of the rollouts and of the update of a step on so many H100s."""
    prompt, answer = config.data.max_prompt_length / 2, config.data.max_response_length / 2
    samples = config.data.train_batch_size * config.rollout.n / gpus
    spare = max(TIGHT * memory - phases(config, size, gpus)[1], 0.0)
    running = SEQUENCES / gpus + spare / cache_memory(config, size)
    passes = max(2 * answer, samples * answer / running)
    return (
        rollout_seconds(size, gpus, samples, prompt, answer, passes),
        update_seconds(config, size, samples, prompt + answer, answer),
    )


def rollout_seconds(
    size: Size, gpus: int, samples: float, prompt: float, answer: float, passes: float, bandwidth: float = BANDWIDTH
) -> float:
    """Seconds to decode: weights are read in each of so many passes, a cache for each token of each sample.
    `samples`: on each GPU; lengths in tokens."""
    read = passes * 2.0 * size.parameters / gpus + samples * answer * (prompt + answer / 2) * size.cache_bytes
    computed = samples * size.flops.forward([round(prompt + answer)], round(answer))
    return max(read / (DECODING * bandwidth), computed / (MFU * PEAKS["H100"]))


def update_seconds(config: Config, size: Size, samples: float, length: float, scored: float) -> float:
    """Seconds of an update over so many samples on each GPU, of `length` tokens and `scored` of them by the model."""
    lengths, actor = [round(length)], config.actor
    again = sum([actor.use_kl_loss, config.model.enable_gradient_checkpointing])
    again += actor.ppo_mini_batch_size < config.data.train_batch_size
    flops = size.flops.update(lengths, round(scored)) + again * size.flops.forward(lengths, round(scored))
    return samples * flops / (MFU * PEAKS["H100"])
