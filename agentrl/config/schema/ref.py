"""Keys of the reference policy, for KL penalties."""

from dataclasses import dataclass, field

from agentrl.config.schema.fsdp import FsdpConfig


@dataclass
class Ref:
    """The policy at the start of the run, loaded only for actor.use_kl_loss or algorithm.use_kl_in_reward. A batch key
    that is null takes the actor's value."""

    log_prob_micro_batch_size_per_gpu: int | None = None
    """Sequences per micro-batch."""
    log_prob_use_dynamic_bsz: bool | None = None
    """Fill each micro-batch up to a token budget."""
    log_prob_max_token_len_per_gpu: int | None = None
    """Token budget of a micro-batch with `log_prob_use_dynamic_bsz`."""
    use_torch_compile: bool | None = None
    """Compile each of its transformer blocks; null: as actor.use_torch_compile."""
    fsdp_config: FsdpConfig = field(default_factory=FsdpConfig)
    """Sharding over processes; with `param_offload` it is in CPU memory while it is not used."""
