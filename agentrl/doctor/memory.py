"""About how much memory training takes, from the model's configuration alone: no weight is loaded.

Counted: parameters, gradients, the optimizer's moments, a reference and a critic where there are any, activations of
the fullest forward pass, logits, and the hf engine's cache. Bytes of activations were counted on transformers'
Llama and Qwen3; all of it is an estimate, and says so. docs/doctor.md has what it missed by.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch

from agentrl.config.derived import has_critic, inherited, optimizer_name, state_bytes
from agentrl.config.schema import Actor, Config
from agentrl.core.dtypes import BYTES
from agentrl.core.errors import UserError
from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.engines.backends import server_dtype
from agentrl.engines.gpus import visible_gpus
from agentrl.engines.launching import engine_name, in_process, own_gpus
from agentrl.engines.servers.settings import UNKNOWN_SHARE
from agentrl.engines.sharing import Sharing, awake_bytes, model_length, sequences_in_process, shared
from agentrl.training.model.sizes import ModelSizes, sizes_of
from agentrl.training.parallel.experts import has_interface
from agentrl.training.parallel.sharding import ROOM
from agentrl.training.perf import pass_size
from agentrl.training.perf.compiled_block import compiles
from agentrl.training.perf.flops import ModelFlops, model_flops
from agentrl.training.perf.pass_size import Shape, TokenBytes
from agentrl.training.update.micro_batches import micro_batch_tokens

GIB = 1 << 30
MASTER = 4
"""Bytes of a parameter that is trained, whatever `model.dtype` says, and of its gradient and each moment."""
TIGHT = 0.85
"""Share of the device's memory from which on an estimate is too close to call."""


CHUNKS = {"cpu": 0.375, "cuda": 1.0}
"""GiB of logits, and what is made of them, at one time."""
LIBRARIES = {"cpu": 0.45, "cuda": 0.0}
"""GiB of a process that has imported all it needs; a GPU's are not counted by PyTorch."""


@dataclass(frozen=True)
class Size:
    """Sizes of a model."""

    parameters: int
    trained: int
    experts: int
    """Parameters of routed experts, which processes may split."""
    sizes: ModelSizes
    shape: Shape
    head: int
    """Numbers in the output layer, where that is trained."""
    vocabulary: int
    flops: ModelFlops

    @property
    def cache_bytes(self) -> float:
        """Bytes of a token's keys and values in a server's cache, in half precision."""
        return 4.0 * self.sizes.layers * self.sizes.keys


def size_of(config: Config) -> Size:
    """Counted on an empty shell of the model. Raises UserError where the path is no model."""
    from transformers import AutoConfig

    from agentrl.training.model.adapter import base_and_adapter, first_line, new_adapter
    from agentrl.training.model.loading import folder_or_id, language_head
    from agentrl.training.model.towers import leave_out_towers

    model = config.model
    place, saved = base_and_adapter(folder_or_id(model.path, "model.path"), model.lora_rank)
    try:
        shape: Any = AutoConfig.from_pretrained(place, trust_remote_code=model.trust_remote_code)
        with torch.device("meta"):
            module: Any = language_head(shape).from_config(shape, trust_remote_code=model.trust_remote_code)
            if model.text_only:
                leave_out_towers(module)
            parameters = sum(p.numel() for p in module.parameters())
            module = new_adapter(module, model) if model.lora_rank and saved is None else module
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"model.path: {model.path} is no model: {first_line(error)}") from error
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    text = shape.get_text_config()
    return Size(
        parameters=parameters,
        trained=sum(p.numel() for p in trained.values()),
        experts=sum(p.numel() for part in module.modules() if has_interface(part) for p in part.parameters()),
        sizes=sizes_of(shape),
        shape=pass_size.shape_of(shape, trained, [name for name, _ in module.named_parameters()]),
        head=0 if model.lora_rank else text.vocab_size * text.hidden_size,
        vocabulary=text.vocab_size,
        flops=model_flops({name: p.shape for name, p in module.named_parameters()}, shape),
    )


def parts(
    config: Config, size: Size, processes: int, device: torch.device, room: float | None = None
) -> dict[str, float]:
    """GiB by what they are for, on each of so many processes that share the model. `room`: bytes in which passes take
    the size that fits, where no key sets it; None: the default size."""
    found = _constant(config, size, processes, device)
    tokens, logits = fullest_pass(config, size, processes, device, room)
    offloaded = config.model.enable_activation_offload and device.type == "cuda"
    found["activations"] = tokens * _token_bytes(config, size, device, offloaded=offloaded).activations
    found["activations"] += 4.0 * size.head
    found["logits"] += logits
    return {name: value / GIB for name, value in found.items()}


def fullest_pass(
    config: Config, size: Size, processes: int, device: torch.device, room: float | None
) -> tuple[int, float]:
    """(tokens of the fullest pass, bytes of the logits that it keeps); `room` as for `parts`."""
    each, alone = _token_bytes(config, size, device), processes == 1
    if room is None or device.type != "cuda":
        return _tokens(config, device, None, each, alone), 0.0
    left = room - sum(_constant(config, size, processes, device).values()) + CHUNKS["cuda"] * GIB - 4.0 * size.head
    tokens = _tokens(config, device, left, each, alone)
    return tokens, each.logits * pass_size.logits_that_fit(left, each, tokens, alone=alone)


def _constant(config: Config, size: Size, processes: int, device: torch.device) -> dict[str, float]:
    """Bytes by what they are for, of all that does not depend on the size of passes."""
    model, actor, kind = config.model, config.actor, device.type
    width = BYTES[model.dtype]
    frozen = size.parameters if model.lora_rank else 0
    stored = width if model.lora_rank else MASTER
    adapted = size.trained * max(len(model.policies), 1)  # one policy is updated after the other: gradients of one
    on_gpu = kind != "cuda" or not actor.fsdp_config.offload_policy or processes == 1
    rule = "AdamW" if optimizer_name(actor.optim) == "adamw" else actor.optim.optimizer
    found = {
        "weights": on_gpu * (frozen * width + adapted * MASTER) / processes,
        "gradients": on_gpu * size.trained * MASTER / processes,
        rule: moment_bytes(actor, kind) * adapted / processes,
        "logits": CHUNKS[kind] * GIB,
    }
    if LIBRARIES[kind]:
        found["Python and its libraries"] = LIBRARIES[kind] * GIB
    split = size.experts * (1 - 1 / actor.fsdp_config.expert_parallel_size)
    gathered = processes == 1 or not actor.fsdp_config.reshard_after_forward
    whole = 1.0 if gathered else pass_size.UNITS / size.sizes.layers
    if stored > 2 and _narrow(config, device):
        found["weights to compute with"] = 2.0 * (size.parameters - split) * whole
    if processes > 1 and kind == "cuda":
        found["gradients before they are summed"] = 2.0 * max(size.trained - split, 0.0) * whole
    if (actor.use_kl_loss or config.algorithm.use_kl_in_reward) and not model.lora_rank:
        found["reference"] = size.parameters * width / processes
    if has_critic(config):
        own = replace(actor, optim=inherited(config.critic.optim, actor.optim))
        found["critic"] = (2 * MASTER + moment_bytes(own, kind)) * size.parameters / processes
    rollout = config.rollout
    engine = engine_name(rollout, device.type)
    if engine == "sglang" and kind == "cuda" and model.lora_rank and not model.lora_merge:
        found["SGLang's base model"] = 2.0 * size.parameters  # it keeps that, asleep as well
    if engine == "hf":
        tokens = sequences_in_process(config) * model_length(config)
        found["hf engine's cache"] = 2.0 * tokens * size.sizes.layers * size.sizes.keys * stored
    return found


def gathers_once(config: Config, size: Size, processes: int, memory: float) -> Config:
    """The settings with `reshard_after_forward` as so many processes decide it on GPUs of `memory` bytes."""
    whole = 2.0 * size.parameters + 4.0 * size.trained
    sharding = config.actor.fsdp_config
    if processes == 1 or sharding.reshard_after_forward is not None:
        return config
    sharding = replace(sharding, reshard_after_forward=sharding.offload_policy or whole > ROOM * memory)
    return replace(config, actor=replace(config.actor, fsdp_config=sharding))


def _narrow(config: Config, device: torch.device) -> bool:
    """Whether layers compute in two bytes."""
    return device.type == "cuda" and config.actor.fsdp_config.mixed_precision.param_dtype != "float32"


def moment_bytes(actor: Actor, kind: str) -> float:
    """Bytes of the optimizer on a device of this kind for each trained parameter; 0 where it is in CPU memory."""
    moved = actor.fsdp_config.optimizer_offload or actor.fsdp_config.offload_policy
    return 0.0 if moved and kind == "cuda" else state_bytes(actor.optim)


def _tokens(config: Config, device: torch.device, room: float | None, each: TokenBytes, alone: bool) -> int:
    """Tokens of the fullest forward pass, on each of the processes that split it."""
    actor, longest = config.actor, ceil(model_length(config) / config.actor.ulysses_sequence_parallel_size)
    if not actor.use_dynamic_bsz:
        return longest * (actor.ppo_micro_batch_size_per_gpu or 1)
    if actor.ppo_max_token_len_per_gpu is None and device.type == "cuda" and room is not None:
        return pass_size.tokens_that_fit(room, each, longest, alone=alone)
    return max(micro_batch_tokens(actor.ppo_max_token_len_per_gpu, device), longest)


def _token_bytes(config: Config, size: Size, device: torch.device, *, offloaded: bool = False) -> TokenBytes:
    """Bytes that the backward pass needs of a token; `offloaded`: of those that stay on the GPU."""
    compiled = compiles(config.actor.use_torch_compile, device, fused=config.model.use_liger)
    checkpointing, narrow = config.model.enable_gradient_checkpointing, _narrow(config, device)
    wide = config.model.enable_fp32_lm_head or not narrow
    way = {"narrow": narrow, "compiled": compiled, "checkpointing": checkpointing, "offloaded": offloaded}
    activations = pass_size.activation_bytes(size.shape, **way)
    return TokenBytes(activations, logits=size.vocabulary * (4.0 if wide else 2.0))


def memory(config: Config, device: torch.device, processes: int) -> Iterator[Finding]:
    """The estimate against the device."""
    size, have = size_of(config), device_memory(device) / GIB
    if device.type == "cuda":
        config = gathers_once(config, size, processes, have * GIB)
    rollout, share = config.rollout, config.rollout.gpu_memory_utilization
    server = not in_process(engine_name(rollout, device.type)) and not rollout.base_url and device.type == "cuda"
    apart = processes == 1 and own_gpus(rollout, visible_gpus())
    kept = kept_by_server(config, device, processes, have) if server and not apart else 0.0
    room = have - kept
    found = parts(config, size, processes, device, room * GIB)
    listed = ", ".join(f"{name} {_gib(value)}" for name, value in found.items())
    trained = "" if size.trained == size.parameters else f", {size.trained / 1e6:.1f}M of them trained"
    text = f"{size.parameters / 1e6:.0f}M parameters{trained}; about {_gib(sum(found.values()))}: {listed}"
    if server:
        asks = "what the trainer leaves" if share is None else f"{share:.0%} of what is free"
        text += f"; the server keeps {_gib(kept)}" if kept else f"; the engine asks for {asks}"
    if not moment_bytes(config.actor, device.type):
        moved = (2 * MASTER + state_bytes(config.actor.optim)) * size.trained / GIB
        text += f"; the optimizer on the CPU {_gib(moved)}"
    text += f"; this {'GPU' if device.type == 'cuda' else 'machine'} has {_gib(have)}"
    # Passes of a size that fits are judged by the smallest, of the longest sequence.
    need = sum(parts(config, size, processes, device, 0.0).values())
    if need > room:
        yield problem(text, _fix(found))
    elif need > TIGHT * room:
        yield warning(text, _fix(found))
    else:
        yield ok(text)


def kept_by_server(config: Config, device: torch.device, processes: int, have: float) -> float:
    """GiB that a server on the trainer's GPU keeps while the policy trains."""
    dtype, most = server_dtype(config, device.type), int(have * GIB)
    servers = max(processes // config.rollout.tensor_model_parallel_size, 1)
    sharing = shared(config, Sharing(ranks=processes, replicas=servers), dtype, most)
    if sharing.sleeps:
        return 0.0
    kept = awake_bytes(config, sharing, model_length(config), dtype, most) if sharing.fits else None
    return have * (config.rollout.gpu_memory_utilization or UNKNOWN_SHARE) if kept is None else kept / GIB


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
