"""The reference policy: what the KL penalties compare with."""

from dataclasses import dataclass, field

from agentrl.config.schema.fsdp import FsdpConfig


@dataclass
class Ref:
    """The policy as the run begins; made only where actor.use_kl_loss or algorithm.use_kl_in_reward asks for it. Where
    a batch key is null the actor's counts."""

    log_prob_micro_batch_size_per_gpu: int | None = None
    """Sequences per forward pass."""
    log_prob_use_dynamic_bsz: bool | None = None
    """Fill each forward pass up to a number of tokens."""
    log_prob_max_token_len_per_gpu: int | None = None
    """Token budget of a forward pass with `log_prob_use_dynamic_bsz`."""
    use_torch_compile: bool | None = None
    """Compile each of its transformer blocks; null: as actor.use_torch_compile."""
    fsdp_config: FsdpConfig = field(default_factory=FsdpConfig)
    """How processes share it; with `param_offload` it lies in the CPU's memory while it has nothing to score."""
