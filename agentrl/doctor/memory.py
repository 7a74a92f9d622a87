"""About how much memory training takes, from the model's configuration alone: no weight is loaded.

Counted: parameters, gradients, AdamW's moments, a reference and a critic where there are any, the activations of the
fullest forward pass, a chunk of logits, and the hf engine's cache. Bytes of activations were counted on transformers'
Llama and Qwen3; all of it is an estimate, and says so. docs/doctor.md has what it missed by.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from agentrl.config.checks.algorithm import has_critic
from agentrl.config.schema import Config
from agentrl.core.dtypes import BYTES
from agentrl.core.errors import UserError
from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.engines.backends import model_length
from agentrl.engines.launching import engine_name, in_process
from agentrl.training.micro_batches import micro_batch_tokens

GIB = 1 << 30
MASTER = 4
"""Bytes of a parameter that is trained, whatever `model.dtype` says, and of its gradient and each moment."""
TIGHT = 0.85
"""Share of the device's memory from which on an estimate is too close to call."""


COMPILED = 0.55
"""Share of a block's activations that stay when it is compiled."""
UNITS = 2
"""Blocks of a sharded model that are whole at one time."""
CHUNKS = {"cpu": 0.375, "cuda": 1.0}
"""GiB of logits, and what is made of them, at one time."""
LIBRARIES = {"cpu": 0.45, "cuda": 0.0}
"""GiB of a process that has imported all it needs; a GPU's are not counted by PyTorch."""


@dataclass(frozen=True)
class Size:
    """What a model's shape says."""

    parameters: int
    trained: int
    layers: int
    kept: int
    """Layers that the backward pass reaches."""
    hidden: int
    inner: int
    """Width of the feed-forward layers, of all the experts that a token meets."""
    queries: int
    keys: int
    """Numbers per token and layer: queries, and keys (as many as values)."""
    normed: bool
    """Whether queries and keys have norms of their own."""
    head: int
    """Numbers in the output layer, where that is trained."""


def size_of(config: Config) -> Size:
    """Counted on an empty shell of the model. Raises UserError where the path is no model."""
    from transformers import AutoConfig

    from agentrl.training.model.adapter import base_and_adapter, first_line, new_adapter
    from agentrl.training.model.loading import folder_or_id, language_head

    model = config.model
    place, saved = base_and_adapter(folder_or_id(model.path, "model.path"), model.lora_rank)
    try:
        shape: Any = AutoConfig.from_pretrained(place, trust_remote_code=model.trust_remote_code)
        with torch.device("meta"):
            module: Any = language_head(shape).from_config(shape, trust_remote_code=model.trust_remote_code)
            parameters = sum(p.numel() for p in module.parameters())
            module = new_adapter(module, model) if model.lora_rank and saved is None else module
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"model.path: {model.path} is no model: {first_line(error)}") from error
    shape = shape.get_text_config()
    heads, layers = shape.num_attention_heads, shape.num_hidden_layers
    width = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    experts = getattr(shape, "num_experts_per_tok", None) or 1
    inner = getattr(shape, "moe_intermediate_size", None) or getattr(shape, "intermediate_size", None)
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return Size(
        parameters=parameters,
        trained=sum(p.numel() for p in trained.values()),
        layers=layers,
        kept=layers - _first_trained(trained),
        hidden=shape.hidden_size,
        inner=experts * (inner or 4 * shape.hidden_size),
        queries=heads * width,
        keys=(getattr(shape, "num_key_value_heads", None) or heads) * width,
        normed=any("q_norm" in name for name, _ in module.named_parameters()),
        head=0 if model.lora_rank else shape.vocab_size * shape.hidden_size,
    )


def _first_trained(names: Iterable[str]) -> int:
    """Number of the first layer with something to train; 0 where the embeddings have."""
    numbers = [re.search(r"\.layers\.(\d+)\.", name) for name in names]
    return min((int(found[1]) if found else 0 for found in numbers), default=0)


def parts(config: Config, size: Size, processes: int, device: torch.device) -> dict[str, float]:
    """GiB by what they are for, on each of so many processes that share the model."""
    model, actor, kind = config.model, config.actor, device.type
    each = BYTES[model.dtype]
    frozen = size.parameters if model.lora_rank else 0
    stored = each if model.lora_rank else MASTER
    narrow = kind == "cuda" and actor.fsdp_config.mixed_precision.param_dtype != "float32"
    found = {
        "weights": (frozen * each + size.trained * MASTER) / processes,
        "gradients": size.trained * MASTER / processes,
        "AdamW": 2 * size.trained * MASTER / processes,
        "activations": _tokens(config, device) * _per_token(config, size, narrow) + 4.0 * size.head,
        "logits": CHUNKS[kind] * GIB,
    }
    if LIBRARIES[kind]:
        found["Python and its libraries"] = LIBRARIES[kind] * GIB
    gathered = processes == 1 or actor.fsdp_config.reshard_after_forward is not True
    if narrow and stored > 2:
        found["weights to compute with"] = 2.0 * size.parameters * (1.0 if gathered else UNITS / size.layers)
    if processes > 1 and gathered:
        found["gradients before they are summed"] = 2.0 * size.trained
    if (actor.use_kl_loss or config.algorithm.use_kl_in_reward) and not model.lora_rank:
        found["reference"] = size.parameters * each / processes
    if has_critic(config):
        found["critic"] = 4 * size.parameters * MASTER / processes
    rollout = config.rollout
    engine = engine_name(rollout, device)
    if engine == "sglang" and kind == "cuda" and model.lora_rank and not model.lora_merge:
        found["SGLang's base model"] = 2.0 * size.parameters  # it keeps that, asleep as well
    if engine == "hf":
        found["hf engine's cache"] = (
            2.0 * rollout.max_num_seqs * model_length(config) * size.layers * size.keys * stored
        )
    return {name: value / GIB for name, value in found.items()}


def _tokens(config: Config, device: torch.device) -> int:
    """Tokens of the fullest forward pass."""
    actor, longest = config.actor, model_length(config)
    if actor.use_dynamic_bsz:
        return max(micro_batch_tokens(actor.ppo_max_token_len_per_gpu, device), longest)
    return longest * (actor.ppo_micro_batch_size_per_gpu or 1)


def _per_token(config: Config, size: Size, narrow: bool) -> float:
    """Bytes that the backward pass needs of a token; `narrow`: where layers compute in two bytes, and norms in four."""
    hidden, inner, keys = (32, 8, 4) if narrow else (36, 16, 8)
    norms = (6 if narrow else 8) * (size.queries + size.keys) * size.normed
    block = float(hidden * size.hidden + inner * size.inner + keys * size.keys + norms)
    if config.actor.use_torch_compile:
        block *= COMPILED
    if config.model.enable_gradient_checkpointing:
        return 4.0 * size.layers * size.hidden + block
    return size.kept * block


def memory(config: Config, device: torch.device, processes: int) -> Iterator[Finding]:
    """The estimate against the device."""
    size = size_of(config)
    found = parts(config, size, processes, device)
    listed = ", ".join(f"{name} {_gib(value)}" for name, value in found.items())
    trained = "" if size.trained == size.parameters else f", {size.trained / 1e6:.1f}M of them trained"
    need = sum(found.values())
    text = f"{size.parameters / 1e6:.0f}M parameters{trained}; about {_gib(need)}: {listed}"
    have = device_memory(device) / GIB
    rollout = config.rollout
    server = not in_process(engine_name(rollout, device)) and not rollout.base_url and device.type == "cuda"
    if server:
        text += f"; the engine asks for {rollout.gpu_memory_utilization:.0%} of what is free"
    room = have * (1 - rollout.gpu_memory_utilization) if server and not rollout.free_cache_engine else have
    text += f"; this {'GPU' if device.type == 'cuda' else 'machine'} has {_gib(have)}"
    if need > room:
        yield problem(text, _fix(found))
    elif need > TIGHT * room:
        yield warning(text, _fix(found))
    else:
        yield ok(text)


def device_memory(device: torch.device) -> int:
    """Bytes of a GPU, or of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _fix(found: dict[str, float]) -> str:
    largest = max(found, key=lambda name: found[name])
    return {
        "activations": "lower actor.ppo_max_token_len_per_gpu, or set model.enable_gradient_checkpointing=true",
        "SGLang's base model": "set model.lora_merge=true",
        "hf engine's cache": "lower rollout.max_num_seqs, or data.max_response_length",
        "reference": "set model.lora_rank=16: the reference is then the model without its adapter",
        "critic": "set algorithm.adv_estimator=grpo, which needs no critic",
    }.get(largest, "set model.lora_rank=16 and model.dtype=bfloat16, or take a smaller model or more GPUs")


def _gib(value: float) -> str:
    return f"{value:.1f} GiB" if value >= 0.1 else f"{value * 1024:.0f} MiB"
