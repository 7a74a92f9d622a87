"""Models: the policy with its tokenizer, and the others."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Pretrained:
    """A model from files."""

    path: str | None = None
    """Folder in Hugging Face format, or a hub id; for a critic, null: the policy's."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    external_lib: str | None = None
    """Module or Python file imported first, for what it registers: models, reward managers, estimators, losses."""
    override_config: dict[str, Any] = field(default_factory=dict)
    """Fields of the model's own configuration to change."""
    use_shm: bool = False
    """Load it from a copy of its folder in /dev/shm, made once a machine: for slow disks and many processes. The copy
    stays."""
    dtype: str = "float32"
    """float32 or bfloat16: dtype of parameters that are not trained, a reference or the base under LoRA. What is
    trained is held in float32 whatever this says, since bfloat16 would lose small updates."""


@dataclass
class Network(Pretrained):
    """A model that is trained."""

    enable_activation_offload: bool = False
    """Keep what the backward pass needs in the CPU's memory: with gradient checkpointing, each block's input."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    use_liger: bool = False
    """Liger's fused kernels for norms, rotary embeddings and MLPs; on a GPU, with liger-kernel installed."""
    lora_rank: int = 0
    """Rank of LoRA adapters (arXiv 2106.09685); 0 trains all parameters."""
    lora_alpha: float = 32.0
    """LoRA scale: the adapter's output is multiplied by alpha / rank."""
    target_modules: Any = "all-linear"
    """Modules that get an adapter: a list of names, or all-linear."""
    exclude_modules: Any = None
    """Modules among them that get none: a list of names, or a pattern; null: all do."""


@dataclass
class FusedKernelOptions:
    """Kernels for log-probs."""

    impl_backend: str = "triton"
    """triton (on a GPU), or torch: the same in PyTorch's own operations, slower."""


@dataclass
class Model(Network):
    """The policy."""

    use_fused_kernels: bool = True
    """Make log-probs and entropies chunk by chunk from hidden states. false: from the logits of a whole pass at once,
    which takes far more memory: for comparison."""
    fused_kernel_options: FusedKernelOptions = field(default_factory=FusedKernelOptions)
    """How."""
    enable_fp32_lm_head: bool = False
    """Make the product with the output layer in float32 where layers compute in half precision: in updates, in passes
    that make log-probs, and in the engines (SGLang's flag of this name, vLLM's head_dtype). Logits are then not rounded
    to bfloat16, the largest part of the gap between trainer and engine (arXiv 2506.13585)."""
    lora_merge: bool = True
    """Server engines get a LoRA policy folded into whole weights. false: they read the base model themselves, and each
    sync sends the adapter alone: far less, and no rounding of merged weights, but they draw slower."""
    tokenizer_path: str | None = None
    """Tokenizer folder or hub id; null: that of `path`."""
    chat_template: str | None = None
    """Jinja file, or the template itself, in place of the tokenizer's; ready-made ones lie in configs/templates."""
