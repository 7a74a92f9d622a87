"""Keys of FSDP sharding, number formats and checkpoint contents."""

from dataclasses import dataclass, field
from typing import Annotated

from agentrl.config.schema.marks import ABOVE_0
from agentrl.core.dtypes import COMPUTED, STORED

CONTENTS = ("model", "optimizer", "extra", "hf_model")


@dataclass
class MixedPrecision:
    """Number formats. Trained parameters and the optimizer are float32."""

    param_dtype: Annotated[str, ("auto", *COMPUTED)] = "auto"
    """dtype of computation: float32, bfloat16, float16 (with dynamic loss scaling), or auto: bfloat16 on a GPU, on a
    CPU the dtype of the parameters."""
    reduce_dtype: Annotated[str, STORED] = "float32"
    """dtype of gradient reduction: float32 or bfloat16."""


@dataclass
class Sharding:
    """FSDP: parameters, gradients and optimizer states are sharded over processes (arXiv 2304.11277)."""

    fsdp_size: int = -1
    """Processes per copy of the model; -1: all. Fewer, for example those of one node: hybrid sharding."""
    expert_parallel_size: Annotated[int, ABOVE_0] = 1
    """Processes that split the experts of a mixture of experts: each computes its experts for the tokens of all of
    them. Worth it where gathering a layer's experts is slow or does not fit; 1: each computes all experts."""
    reshard_after_forward: bool | None = None
    """Free a unit, which is a transformer block, after the forward pass and gather it again for the backward pass.
    false: keep units until the optimizer step, and reduce gradients once per step: less communication, but memory for
    the whole model and its gradients. null: false if these take at most a fifth of a GPU's memory."""
    offload_policy: bool = False
    """Keep parameters, gradients and optimizer in CPU memory; the optimizer step runs on the CPU. A single process
    keeps parameters and gradients on the GPU, as with `optimizer_offload`."""
    optimizer_offload: bool = False
    """Keep the optimizer in CPU memory, with a copy of the parameters: its step runs on the CPU."""
    mixed_precision: MixedPrecision = field(default_factory=MixedPrecision)
    """Number formats."""


@dataclass
class FsdpConfig(Sharding):
    """Sharding of a model in a run that also samples."""

    param_offload: bool = False
    """Keep the policy's parameters in CPU memory while trajectories are sampled."""


@dataclass
class Checkpoint:
    """Saved and loaded parts of a checkpoint."""

    save_contents: Annotated[list[str] | None, CONTENTS] = None
    """Any of model, optimizer, extra (rows, random state, KL controller), hf_model (a folder in Hugging
    Face format; `agentrl merge` writes one later). null: model, optimizer and extra; at the end of a run with
    trainer.save_freq=-1 hf_model alone."""
    load_contents: Annotated[list[str], CONTENTS] = field(default_factory=lambda: ["model", "optimizer", "extra"])
    """Parts that a resumed run loads: any of model, optimizer, extra; hf_model is written only."""
    async_save: bool = False
    """Write checkpoints in the background, from a copy in CPU memory."""
