"""Keys of the policy update: optimizer, losses, micro-batches."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from agentrl.config.schema.fsdp import Checkpoint, FsdpConfig
from agentrl.config.schema.marks import ABOVE_0, AT_LEAST_0, AT_LEAST_1, SHARE, OpenChoice, Range
from agentrl.core import points

BETA = Range(lambda value: 0 <= value < 1, "each must be at least 0 and below 1")
WARM_UP = Range(lambda n: n >= 0 and (n <= 1 or n % 1 == 0), "write steps as 10, a share of all steps as 0.1")
LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
OPTIMIZER = OpenChoice(points.OPTIMIZERS, module="optimizer_impl")


@dataclass
class Optim:
    """The optimizer and the learning rate schedule."""

    lr: Annotated[float, AT_LEAST_0] = 1e-6
    """Peak learning rate."""
    optimizer: Annotated[str, OPTIMIZER] = "adamw"
    """adamw, adamw_16bit (moments in bfloat16: half the memory), adamw_8bit (a quarter, by torchao), muon (for the
    matrices of the blocks, arXiv 2502.16982; AdamW for the rest), sgd, a class of torch.optim by its name, or a class
    of your own by its path. A checkpoint of one kind of adamw resumes as another."""
    optimizer_impl: str | None = None
    """Module of the class that `optimizer` names, such as bitsandbytes.optim; null: agentrl and torch.optim."""
    override_optimizer_config: dict[str, Any] | None = None
    """Further arguments of the optimizer, such as {momentum: 0.9} for sgd."""
    lr_scheduler_type: Annotated[str, OpenChoice(points.LR_SCHEDULES)] = "constant"
    """The learning rate after the warm-up; wsd is warm-up, stable, decay (arXiv 2404.06395)."""
    lr_warmup_steps: Annotated[int | float, WARM_UP] = 0
    """Steps of linear warm-up; with a decimal point and up to 1.0, as 0.1: a share of all steps."""
    min_lr_ratio: Annotated[float, SHARE] = 0.0
    """Final learning rate of linear, cosine and wsd, as a share of `lr`."""
    stable_ratio: Annotated[float, SHARE] = 0.9
    """wsd: share of the steps after the warm-up at the full rate, before the decay."""
    num_cycles: float = 0.5
    """Cosine periods; 0.5 decays once."""
    weight_decay: Annotated[float, AT_LEAST_0] = 0.01
    """Weight decay, not applied to norms and biases."""
    betas: Annotated[list[float], BETA] = field(default_factory=lambda: [0.9, 0.999])
    """Betas of AdamW, and of other classes with Adam in their names."""


@dataclass
class PolicyLoss:
    """The policy loss."""

    loss_mode: Annotated[str, OpenChoice(points.POLICY_LOSSES)] = "vanilla"
    """The loss of each token; vanilla is PPO's. geo_mean and sapo always aggregate by seq-mean-token-mean."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the loss, by name; docs/algorithm-reference.md lists those of each loss. Defaults: tau_pos
    1.0, tau_neg 1.05 (sapo), clip_cov_ratio 0.0002, clip_cov_lb 1.0, clip_cov_ub 5.0 (clip_cov), kl_cov_ratio 0.0002,
    ppo_kl_coef 0.1 (kl_cov)."""


@dataclass
class Router:
    """The routers of a mixture of experts."""

    freeze: bool = False
    """Do not train the routers."""
    aux_loss_coef: Annotated[float, AT_LEAST_0] = 0.0
    """Coefficient of the load-balancing loss (arXiv 2101.03961) of each pass, the mean over layers."""
    bias_update: Annotated[float, AT_LEAST_0] = 0.0
    """Step of the bias that evens out the experts' load after each optimizer step without a loss (arXiv 2408.15664), in
    models whose routers have one; DeepSeek-V3 was trained with 0.001."""


@dataclass
class Profiler:
    """Profiling of the steps in `trainer.profile_steps`, for all models that train."""

    tool: Annotated[str, ("torch", "torch_memory", "nsys")] = "torch"
    """torch (writes a trace), torch_memory (writes a snapshot of GPU memory for pytorch.org/memory_viz), or nsys (marks
    the step for Nsight Systems; the process must run under it)."""
    discrete: bool = False
    """Write one profile per phase instead of one per step."""
    all_ranks: bool = False
    """Profile every process."""
    ranks: list[int] = field(default_factory=lambda: [0])
    """Processes to profile if `all_ranks` is false."""


@dataclass
class RouterReplay:
    """Replay of the experts that tokens met."""

    mode: Annotated[str, ("disabled", "R2", "R3")] = "disabled"
    """disabled; R2: an update replays the experts of the pass that computed old log-probs (GSPO, arXiv 2507.18071); R3:
    that pass and the update replay those of the engine (arXiv 2510.11370). The reference routes by itself."""


@dataclass
class Actor:
    """The policy update of one step."""

    ppo_mini_batch_size: Annotated[int, AT_LEAST_1] = 16
    """Prompts per optimizer step (times `rollout.n` trajectories)."""
    ppo_micro_batch_size_per_gpu: Annotated[int | None, AT_LEAST_1] = None
    """Sequences per micro-batch, in the update and where log-probs are computed; null: `use_dynamic_bsz` decides."""
    use_dynamic_bsz: bool = True
    """Fill each micro-batch of policy, reference and critic up to `ppo_max_token_len_per_gpu` tokens instead of a
    number of sequences."""
    ppo_max_token_len_per_gpu: Annotated[int | None, AT_LEAST_1] = None
    """Token budget of a micro-batch with `use_dynamic_bsz`; null: on a GPU as many as fit into its memory, up to
    65536; 2048 on a CPU."""
    ppo_epochs: Annotated[int, AT_LEAST_1] = 1
    """Passes over each step's trajectories."""
    shuffle: bool = False
    """Shuffle trajectories before they are split into mini-batches."""
    grad_clip: Annotated[float, ABOVE_0] = 1.0
    """Gradients are clipped to this norm."""
    clip_ratio: Annotated[float, AT_LEAST_0] = 0.2
    """Clip range of PPO (arXiv 1707.06347); `clip_ratio_low` and `clip_ratio_high` override one side."""
    clip_ratio_low: Annotated[float | None, AT_LEAST_0] = None
    """Lower clip range; null: `clip_ratio`."""
    clip_ratio_high: Annotated[float | None, AT_LEAST_0] = None
    """Upper clip range (clip-higher, arXiv 2503.14476); null: `clip_ratio`."""
    policy_loss: PolicyLoss = field(default_factory=PolicyLoss)
    """The loss."""
    clip_ratio_c: Annotated[float, Range(lambda value: value > 1, "must be over 1")] = 3.0
    """Bound of dual clip on the loss for negative advantages (arXiv 1912.09729)."""
    loss_agg_mode: Annotated[str | None, LOSS_AGG_MODES] = None
    """token-mean, token-sum, seq-mean-token-sum, seq-mean-token-mean, or seq-mean-token-sum-norm (divided by
    `data.max_response_length`, arXiv 2503.20783). null: token-mean, and seq-mean-token-mean for gspo."""
    loss_scale_factor: Annotated[int | None, AT_LEAST_1] = None
    """seq-mean-token-sum-norm: divide by this instead of `data.max_response_length`."""
    entropy_coeff: float = 0.0
    """Coefficient of the entropy bonus."""
    use_kl_loss: bool = False
    """Add the KL to the reference policy to the loss."""
    kl_loss_coef: Annotated[float, AT_LEAST_0] = 0.001
    """Coefficient of this KL."""
    kl_loss_type: Annotated[str, OpenChoice(points.KL_ESTIMATORS, ("full",), suffix="+")] = "low_var_kl"
    """Estimator: kl is k1, mse k2, low_var_kl k3; with a trailing +, its value with k2's gradient.
    full: the exact KL over the whole vocabulary; the reference then runs within the update."""
    optim: Optim = field(default_factory=Optim)
    """Optimizer and schedule."""
    fsdp_config: FsdpConfig = field(default_factory=FsdpConfig)
    """Sharding over processes, and number formats; they hold for reference and critic too."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    """Saved and loaded parts, of the critic too."""
    profiler: Profiler = field(default_factory=Profiler)
    """Profiling."""
    ulysses_sequence_parallel_size: Annotated[int, ABOVE_0] = 1
    """Processes that split the tokens of a micro-batch (Ulysses, arXiv 2309.14509), for sequences that do not fit into
    the memory of one GPU."""
    router_replay: RouterReplay = field(default_factory=RouterReplay)
    """Mixtures of experts: replay of routing."""
    freeze_vision_tower: bool = False
    """Do not train the vision tower of a vision-language model."""
    router: Router = field(default_factory=Router)
    """The routers of a mixture of experts."""
    use_torch_compile: bool | None = None
    """Compile each transformer block, of reference and critic too; null: on a GPU, without `model.use_liger`."""
    share_prompts: bool | None = None
    """Compute a prompt once for all its samples in a pass: the same values, but for rounding, and fewer tokens. Packed
    attention without sequence parallelism; null: on GPUs, where `rollout.n` > 1 and the attention kernel can."""
    custom: dict[str, Any] = field(default_factory=dict)
    """Settings of your own policy loss, which finds them in verl's `config`."""
