"""How a model is sharded over processes, and what of it a checkpoint holds."""

from dataclasses import dataclass, field


@dataclass
class WrapPolicy:
    """Which modules are units: what is whole on a GPU at one time."""

    min_num_params: int = 0
    """Smallest number of parameters of a unit; 0: the model's transformer blocks."""


@dataclass
class MixedPrecision:
    """Number formats. Trained parameters and the optimizer are float32."""

    param_dtype: str = "auto"
    """What layers compute in: float32, bfloat16, or float16, which trains under a dynamic loss scale; auto: bfloat16 on
    a GPU; on a CPU what parameters are stored in."""
    reduce_dtype: str = "float32"
    """What gradients are summed in: float32 or bfloat16."""


@dataclass
class Sharding:
    """FSDP: every process holds a part of parameters, gradients and optimizer (arXiv 2304.11277)."""

    fsdp_size: int = -1
    """Processes that one copy of the model is spread over; -1: all. Fewer, say those of one node: hybrid sharding."""
    reshard_after_forward: bool | None = None
    """Let go of a unit after the forward pass and gather it again for the backward. Off, units stay until the
    optimizer steps, and gradients are summed once a step: the whole model's bytes and those of its gradients more, and
    less traffic. null: off where these take at most a fifth of a GPU's memory."""
    forward_prefetch: bool = False
    """Gather the next unit while one computes."""
    offload_policy: bool = False
    """Parameters, gradients and optimizer live in the CPU's memory; the optimizer steps there."""
    optimizer_offload: bool = False
    """AdamW's moments wait in the CPU's memory between optimizer steps."""
    wrap_policy: WrapPolicy = field(default_factory=WrapPolicy)
    """Units."""
    mixed_precision: MixedPrecision = field(default_factory=MixedPrecision)
    """Number formats."""


@dataclass
class FsdpConfig(Sharding):
    """The same of a model in a run that samples."""

    param_offload: bool = False
    """Parameters wait in the CPU's memory while trajectories are sampled."""


@dataclass
class Checkpoint:
    """What is saved and loaded, and how."""

    save_contents: list[str] = field(default_factory=lambda: ["model", "optimizer", "extra"])
    """Any of model, optimizer, extra (rows, random state, KL controller), hf_model (a folder that transformers
    loads; `agentrl merge` makes one later)."""
    load_contents: list[str] = field(default_factory=lambda: ["model", "optimizer", "extra"])
    """What a resumed run takes from its checkpoint: any of model, optimizer, extra."""
    async_save: bool = False
    """Write while training goes on, from a copy in the CPU's memory."""
