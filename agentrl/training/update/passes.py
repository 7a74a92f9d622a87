"""The sizes of forward and backward passes on a GPU that no key sets, and a line that describes an update."""

from collections.abc import Sequence
from math import ceil

from agentrl.config.derived import state_bytes
from agentrl.config.schema import Config
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.shards import local
from agentrl.training.perf import pass_size
from agentrl.training.perf.pass_size import TokenBytes, free_memory
from agentrl.training.roles.frozen import Reference
from agentrl.training.update.actor import PolicyActor
from agentrl.training.update.trainable import Trainable

FULL = 0.95
"""Share of the free memory that passes may need before they are made smaller."""


def fit_passes(config: Config, trainables: list[Trainable], frozen: Sequence[Reference], ranks: Ranks) -> None:
    """Set the sizes of passes that no key sets, to the tokens that fit into the memory that is free now, and how many
    logits a pass keeps; later, lower those that need more memory than is free.

    The passes of `frozen` models, without a backward pass, take the size of the policy's. Collective.
    """
    device, alone = trainables[0].device, ranks.world == 1
    room = free_memory(device) - sum(moment_bytes(t) for t in trainables)
    data = config.data
    most = config.rollout.max_model_len or data.max_prompt_length + data.max_response_length
    longest = ceil(most / ranks.seq_world)
    for trainable in trainables:
        left, each = room - pass_bytes(trainable), token_bytes(trainable)
        if ranks.max_over_ranks(int(not trainable.taken or needed(trainable, each) > left * FULL)):
            fitting = pass_size.tokens_that_fit(left, each, longest, alone=alone)
            lower = min(fitting, trainable.micro_batching.max_tokens or fitting) if trainable.taken else fitting
            trainable.micro_batching = trainable.micro_batching.of_default_size(-ranks.max_over_ranks(-lower))
            tokens = pass_tokens(trainable, longest)
            trainable.score.keep = pass_size.logits_that_fit(left, each, tokens, alone=alone)
    for model in frozen:
        model.micro_batching = model.micro_batching.of_default_size(trainables[0].micro_batching.max_tokens)


def needed(trainable: Trainable, each: TokenBytes) -> float:
    """Bytes of the largest pass, besides `pass_bytes`."""
    tokens = trainable.micro_batching.max_tokens or 0
    return tokens * each.activations + min(tokens, trainable.score.keep) * each.logits


def pass_tokens(trainable: Trainable, longest: int) -> int:
    """Most tokens of a pass of an update."""
    sizes = trainable.micro_batching
    return max(sizes.max_tokens or 0, longest * (1 if sizes.max_tokens else sizes.max_sequences or 1))


def token_bytes(trainable: Trainable) -> TokenBytes:
    """Bytes per token of a pass: as estimated, or as measured where that is more."""
    model = trainable.model
    parameters = dict(model.module.named_parameters())
    shape = pass_size.shape_of(model.config, (n for n, p in parameters.items() if p.requires_grad), parameters)
    logits = trainable.score.logit_bytes
    known = {"compiled": model.runs_compiled, "checkpointing": model.base.is_gradient_checkpointing}
    activations = pass_size.activation_bytes(shape, narrow=model.in_half, **known)
    rest = trainable.taken - pass_bytes(trainable) - min(trainable.fullest, trainable.score.keep) * logits
    return TokenBytes(max(activations, rest / max(trainable.fullest, 1)), logits)


def moment_bytes(trainable: Trainable) -> float:
    """Bytes of the optimizer's moments that are still to be made on the device."""
    optimizer = trainable.optimizer
    if optimizer.copies is not None or any(rule.state for rule in optimizer.rules):
        return 0.0
    return sum(local(p).numel() for p in optimizer.parameters) * state_bytes(optimizer.optim)


def pass_bytes(trainable: Trainable) -> float:
    """Bytes that a pass takes besides activations: gradients, that of the head in float32, gathered weights."""
    parameters, model = trainable.optimizer.parameters, trainable.model
    gradients = sum(local(p).numel() * p.element_size() for p in parameters)
    head = 4.0 * max((p.numel() for p in parameters if p.ndim == 2), default=0)
    if not model.sharded:
        return gradients + head
    whole = 2 * 2.0 * sum(p.numel() for p in model.module.parameters())  # of split experts, the rank's
    return gradients + head + whole * (1.0 if model.keeps_gathered else pass_size.UNITS / model.sizes.layers)


def description(policy: PolicyActor) -> str:
    """The kernels and sizes of an update, in a line."""
    sizes, model = policy.micro_batching, policy.model
    size = f"{sizes.max_tokens} tokens" if sizes.max_tokens else f"{sizes.max_sequences} sequences"
    own = model.config.get_text_config()._attn_implementation
    attention = model.attention_kernel(policy.device) if model.packs else own
    shared = ["prompts shared"] if sizes.shares else []
    parts = [f"passes of {size}", *shared, "compiled" if model.runs_compiled else "not compiled"]
    head = f"head {policy.score.kernels or 'of the model'}"
    kept = f" with {policy.score.keep} kept logits" if policy.score.keep else ""
    return ", ".join([*parts, f"attention {attention}", head + kept])
