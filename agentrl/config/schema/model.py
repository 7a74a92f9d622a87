"""Keys of models: files, adapters, kernels, tokenizer."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from agentrl.config.schema.marks import AT_LEAST_0, CodePath, ModelPath, TextPath
from agentrl.core.dtypes import STORED


@dataclass
class Pretrained:
    """A pretrained model."""

    path: ModelPath | None = None
    """Folder in Hugging Face format, or a hub id."""
    trust_remote_code: bool = False
    """Allow Python code in the model's folder to run."""
    override_config: dict[str, Any] = field(default_factory=dict)
    """Changes to the model's own configuration (config.json)."""
    dtype: Annotated[str, STORED] = "float32"
    """dtype of parameters that are not trained (a reference, the base model under LoRA): float32 or bfloat16. Trained
    parameters are always float32, because bfloat16 loses small updates."""


@dataclass
class Model(Pretrained):
    """The policy. What `critic.model` has no key for holds for the critic too."""

    external_lib: CodePath | None = None
    """Module or Python file to import first; it may register models, reward managers, estimators, losses."""
    use_shm: bool = False
    """Load models from copies of their folders in /dev/shm, made once per machine: for slow disks and many processes.
    The copies are not deleted."""
    enable_activation_offload: bool = False
    """Keep activations for the backward pass in CPU memory; with gradient checkpointing, the input of each block."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    use_liger: bool = False
    """Use Liger's fused kernels for norms, rotary embeddings and MLPs; needs a GPU and liger-kernel."""
    lora_rank: Annotated[int, AT_LEAST_0] = 0
    """Rank of LoRA adapters (arXiv 2106.09685); 0 trains all parameters."""
    lora_alpha: float = 32.0
    """LoRA scale: the adapter's output is multiplied by alpha / rank."""
    target_modules: Any = "all-linear"
    """Modules that get an adapter: a list of names, or all-linear: all linear layers except experts, routers and output
    layer. Shared experts are among them, except where peft takes their names for routed ones (DeepSeek, GLM): there
    `target_parameters` adds them."""
    exclude_modules: Any = None
    """Modules among them without an adapter: a list of names, or a pattern; null: none."""
    target_parameters: Any = None
    """Parameters that get an adapter too: all-experts, the weights of all experts, or a list of the ends of names
    ([experts.down_proj]); null: none. Server engines need `lora_merge`."""

    policies: list[str] = field(default_factory=list)
    """Names of policies in requests, or a game's sides in order: each trains an adapter with its own rewards,
    which engines get without merging."""

    use_fused_kernels: bool = True
    """Compute log-probs and entropies in chunks from hidden states. false: from all logits of a micro-batch at once,
    which needs far more memory; for comparison."""
    enable_fp32_lm_head: bool = False
    """Compute the output layer in float32 if layers compute in half precision, in the trainer and the engines (SGLang's
    flag of this name, vLLM's head_dtype). Rounding logits to bfloat16 is the largest part of the difference between
    trainer and engine (arXiv 2506.13585)."""
    lora_merge: bool = True
    """Send a LoRA policy to server engines as merged weights. false: servers load the base model, and each weight sync
    sends only the adapter: far less data and no rounding of merged weights, but slower sampling."""
    text_only: bool = False
    """Leave the towers of a model that reads images or audio out of memory, training and weight sync, for a run on text
    alone. Exports have them as in `path`."""
    tokenizer_path: ModelPath | None = None
    """Tokenizer folder or hub id; null: that of `path`."""
    chat_template: TextPath | None = None
    """Jinja file or template text that replaces the tokenizer's template; ready-made ones are in configs/templates."""
