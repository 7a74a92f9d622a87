"""The sizes of forward and backward passes that no key sets, and what a run computes with, on a GPU."""

from dataclasses import replace
from math import ceil
from typing import Any

from agentrl.config.schema import Config
from agentrl.training.model.attention.choosing import is_packed, kernel_of
from agentrl.training.model.compute_copies import in_half
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.shards import local, unwrapped
from agentrl.training.perf.compiled_block import compiled_state
from agentrl.training.perf.pass_size import (
    UNITS,
    TokenBytes,
    activation_bytes,
    free_memory,
    logits_that_fit,
    shape_of,
    tokens_that_fit,
)
from agentrl.training.update.optimizer import MOMENTS
from agentrl.training.update.trainable import Trainable


def fit_passes(config: Config, trainables: list[Trainable], others: list[Any], ranks: Ranks) -> None:
    """Set the sizes of passes that no key sets, to the tokens that fit into the memory that is free now, and how many
    logits a pass keeps.

    `others`: a reference, whose passes have no backward pass and take the size of the policy's. Collective.
    """
    device, alone = trainables[0].device, ranks.world == 1
    room = free_memory(device) - sum(moment_bytes(t) for t in trainables)
    longest = ceil(longest_sequence(config) / ranks.seq_world)
    for trainable in trainables:
        left, each = room - pass_bytes(trainable), token_bytes(trainable)
        fitting = tokens_that_fit(left, each, longest, alone=alone)
        set_pass_tokens(trainable, -ranks.most(-fitting))
        if each.logits:
            trainable.score.keep = logits_that_fit(left, each, pass_tokens(trainable, longest), alone=alone)
    for other in others:
        set_pass_tokens(other, trainables[0].micro_batching.max_tokens)


def pass_tokens(trainable: Trainable, longest: int) -> int:
    """Most tokens of a pass of an update."""
    sizes = trainable.micro_batching
    return max(sizes.max_tokens or 0, longest * (1 if sizes.max_tokens else sizes.max_sequences or 1))


def set_pass_tokens(owner: Any, tokens: int | None) -> None:
    """Give the passes of a model, where they have a size by default, so many tokens."""
    if owner is not None and owner.micro_batching.by_default:
        owner.micro_batching = replace(owner.micro_batching, max_tokens=tokens)


def longest_sequence(config: Config) -> int:
    """Tokens of the longest sequence that the settings allow."""
    data = config.data
    return config.rollout.max_model_len or data.max_prompt_length + data.max_response_length


def token_bytes(trainable: Trainable) -> TokenBytes:
    """Bytes per token of a pass."""
    module: Any = trainable.module
    parameters = dict(module.named_parameters())
    shape = shape_of(module.config, (n for n, p in parameters.items() if p.requires_grad), parameters)
    activations = activation_bytes(
        shape,
        narrow=in_half(module),
        compiled=runs_compiled(module),
        checkpointing=bool(getattr(unwrapped(module), "is_gradient_checkpointing", False)),
    )
    return TokenBytes(activations, getattr(trainable.score, "logit_bytes", 0))


def moment_bytes(trainable: Trainable) -> float:
    """Bytes of the optimizer's moments that are still to be made on the device."""
    optimizer = trainable.optimizer
    if optimizer.offload or optimizer.adamw.state:
        return 0.0
    return sum(local(p).numel() * p.element_size() for p in optimizer.parameters) * float(len(MOMENTS))


def pass_bytes(trainable: Trainable) -> float:
    """Bytes that a pass takes beside activations: gradients, that of the head in float32, gathered weights."""
    parameters, module = trainable.optimizer.parameters, trainable.module
    gradients = sum(local(p).numel() * p.element_size() for p in parameters)
    head = 4.0 * max((p.numel() for p in parameters if p.ndim == 2), default=0)
    if not hasattr(module, "run_gathered"):
        return gradients + head
    whole = 2 * 2.0 * sum(shape.numel() for shape in module.whole_shapes.values())
    layers = module.config.get_text_config().num_hidden_layers
    return gradients + head + whole * (1.0 if module.keeps_gathered else UNITS / layers)


def runs_compiled(module: Any) -> bool:
    """Whether a model's blocks are compiled."""
    compiled = compiled_state(module)
    return compiled is not None and compiled.works


def description(policy: Any) -> str:
    """What an update computes with, in a line."""
    sizes, model = policy.micro_batching, unwrapped(policy.module)
    size = f"{sizes.max_tokens} tokens" if sizes.max_tokens else f"{sizes.max_sequences} sequences"
    implementation = model.config.get_text_config()._attn_implementation
    attention = kernel_of(model.config, policy.device) if is_packed(model) else implementation
    shared = ["prompts shared"] if sizes.shares else []
    parts = [f"passes of {size}", *shared, "compiled" if runs_compiled(policy.module) else "not compiled"]
    head = f"head {policy.score.kernels or 'of the model'}"
    kept = f" with {policy.score.keep} kept logits" if policy.score.keep else ""
    return ", ".join([*parts, f"attention {attention}", head + kept])
