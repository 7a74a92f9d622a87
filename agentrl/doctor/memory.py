"""About how much memory training takes, from the model's configuration alone: no weight is loaded.

Counted: parameters, gradients, AdamW's moments, a reference and a critic where there are any, the activations of the
fullest forward pass, and the hf engine's cache. All of it is an estimate, and says so.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentrl.config.schema import Config
from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.errors import UserError
from agentrl.runtime.dialects import model_length
from agentrl.runtime.learner import has_critic

GIB = 1 << 30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
TIGHT = 0.85
"""Share of the device's memory from which on an estimate is too close to call."""


@dataclass(frozen=True)
class Size:
    """What a model's shape says."""

    parameters: int
    trained: int
    layers: int
    hidden: int
    inner: int
    """Width of the feed-forward layers."""
    cached: int
    """Numbers per token and layer in a key-value cache."""


def size_of(config: Config) -> Size:
    """Counted on an empty shell of the model. Raises UserError where the path is no model."""
    from transformers import AutoConfig

    from agentrl.training.adapter import base_and_adapter, first_line, new_adapter
    from agentrl.training.model import language_head

    model = config.model
    place, saved = base_and_adapter(str(Path(str(model.path)).expanduser()), model.lora_rank)
    try:
        shape: Any = AutoConfig.from_pretrained(place, trust_remote_code=model.trust_remote_code)
        with torch.device("meta"):
            module: Any = language_head(shape).from_config(shape, trust_remote_code=model.trust_remote_code)
            parameters = sum(p.numel() for p in module.parameters())
            module = new_adapter(module, model) if model.lora_rank and saved is None else module
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"model.path: {model.path} is no model: {first_line(error)}") from error
    shape = shape.get_text_config()
    heads = shape.num_attention_heads
    width = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    keys = getattr(shape, "num_key_value_heads", None) or heads
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    inner = getattr(shape, "intermediate_size", None) or 4 * shape.hidden_size
    return Size(parameters, trained, shape.num_hidden_layers, shape.hidden_size, inner, 2 * keys * width)


def parts(config: Config, size: Size, processes: int) -> dict[str, float]:
    """GiB by what they are for, on each of so many processes that share the model."""
    model, actor = config.model, config.actor
    each = BYTES[model.dtype]
    longest = model_length(config)
    tokens = max(actor.ppo_max_token_len_per_gpu if actor.use_dynamic_bsz else 0, longest)
    if not actor.use_dynamic_bsz:
        tokens = longest * (actor.ppo_micro_batch_size_per_gpu or 1)
    kept = 2 * size.hidden if model.enable_gradient_checkpointing else 12 * size.hidden + 4 * size.inner
    found = {
        "weights": size.parameters * each / processes,
        "gradients": size.trained * each / processes,
        "AdamW": 2 * size.trained * each / processes,
        "activations": float(tokens * size.layers * kept * each),
    }
    with_reference = actor.use_kl_loss or config.algorithm.use_kl_in_reward
    if with_reference and not model.lora_rank:
        found["reference"] = size.parameters * each / processes
    if has_critic(config):
        found["critic"] = 4 * size.parameters * each / processes
    if config.rollout.name == "hf":
        found["hf engine's cache"] = float(config.rollout.max_num_seqs * longest * size.layers * size.cached * each)
    return {name: value / GIB for name, value in found.items()}


def memory(config: Config, device: torch.device, processes: int) -> Iterator[Finding]:
    """The estimate against the device."""
    size = size_of(config)
    found = parts(config, size, processes)
    listed = ", ".join(f"{name} {_gib(value)}" for name, value in found.items())
    trained = "" if size.trained == size.parameters else f", {size.trained / 1e6:.1f}M of them trained"
    need = sum(found.values())
    text = f"{size.parameters / 1e6:.0f}M parameters{trained}; about {_gib(need)}: {listed}"
    have = device_memory(device) / GIB
    server = config.rollout.name in ("sglang", "vllm") and not config.rollout.base_url and device.type == "cuda"
    if server:
        text += f"; the engine asks for {config.rollout.gpu_memory_utilization:.0%} of what is free"
    room = (
        have * (1 - config.rollout.gpu_memory_utilization) if server and not config.rollout.free_cache_engine else have
    )
    text += f"; this {'GPU' if device.type == 'cuda' else 'machine'} has {_gib(have)}"
    if need > room:
        yield problem(text, _mend(found))
    elif need > TIGHT * room:
        yield warning(text, _mend(found))
    else:
        yield ok(text)


def device_memory(device: torch.device) -> int:
    """Bytes of a GPU, or of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _mend(found: dict[str, float]) -> str:
    largest = max(found, key=lambda name: found[name])
    return {
        "activations": "lower actor.ppo_max_token_len_per_gpu, or set model.enable_gradient_checkpointing=true",
        "hf engine's cache": "lower rollout.max_num_seqs, or data.max_response_length",
        "reference": "set model.lora_rank=16: the reference is then the model without its adapter",
        "critic": "set algorithm.adv_estimator=grpo, which needs no critic",
    }.get(largest, "set model.lora_rank=16 and model.dtype=bfloat16, or take a smaller model or more GPUs")


def _gib(value: float) -> str:
    return f"{value:.1f} GiB" if value >= 0.1 else f"{value * 1024:.0f} MiB"
