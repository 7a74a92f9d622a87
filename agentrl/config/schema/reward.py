"""What a trajectory is worth."""

from dataclasses import dataclass, field
from typing import Any

from agentrl.config.schema.model import Pretrained


@dataclass
class RewardFunction:
    """verl's `compute_score`, unchanged."""

    path: str | None = None
    """Python file, or an importable module; null: none, unless `name` is module:function."""
    name: str = "compute_score"
    """Function in it: (data_source, solution_str, ground_truth, extra_info=None, **reward_kwargs), sync or
    async, returning a number or a dict with "score"; it may also ask for `trajectory` and `sandbox`."""
    reward_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments."""


@dataclass
class RewardManagerModule:
    """Where a reward manager of one's own lies."""

    path: str | None = None
    """Python file, or an importable module; its class is `reward.reward_manager.name`."""


@dataclass
class RewardManager:
    """How the reward function is called."""

    name: str = "naive"
    """naive or dapo (each trajectory by itself, in a thread), prime (each in a process of its own, which is killed when
    it takes too long), batch (once for all trajectories of a step, with lists), or a class of one's own written for
    verl."""
    source: str = "register"
    """Where a class of one's own is found: importlib (in `module.path`), or register (`model.external_lib` gave it its
    name)."""
    module: RewardManagerModule = field(default_factory=RewardManagerModule)
    """Its file."""


@dataclass
class OverlongBuffer:
    """Soft punishment of long answers (DAPO, arXiv 2503.14476)."""

    enable: bool = False
    """Take something off the reward of answers that come near `data.max_response_length`."""
    len: int | None = None
    """Tokens before the limit over which the penalty grows; only tokens that the model made count. null: a fifth of the
    limit."""
    penalty_factor: float = 1.0
    """The penalty at the limit."""
    max_resp_len: int | None = None
    """The limit; null: `data.max_response_length`."""
    log: bool = True
    """Report the penalty, and how many answers pay one, as metrics."""


@dataclass
class SandboxFusion:
    """Where code runs, for reward functions and tools that ask for a sandbox."""

    url: str | None = None
    """Address of a server, ending in /run_code: `agentrl sandbox serve`, or SandboxFusion's; null: an embedded pool
    with the same isolation, started when first needed."""
    max_concurrent: int = 64
    """Jobs handed to it at once; the others wait."""
    memory_limit_mb: int = 1024
    """MiB of memory for each program, all its processes together."""


@dataclass
class RewardNetwork(Pretrained):
    """The reward model's files."""

    dtype: str = "bfloat16"
    """Parameter dtype: float32 or bfloat16."""
    input_tokenizer: str | None = None
    """null: the model reads the policy's own tokens. Any name: it has a tokenizer and a chat template of its own, and
    the conversation is written anew with them."""


@dataclass
class RewardModel:
    """A sequence classification model with one label, which scores whole conversations."""

    enable: bool = False
    """Score trajectories with it, beside the reward function if there is one."""
    model: RewardNetwork = field(default_factory=RewardNetwork)
    """Its network."""
    weight: float = 1.0
    """What its score is multiplied by."""
    micro_batch_size_per_gpu: int | None = None
    """Conversations per forward pass; null: as many as the token budget takes."""
    forward_max_token_len_per_gpu: int = 16384
    """Token budget of a forward pass."""
    max_length: int | None = None
    """Tokens that it reads of a conversation: the last ones; null: all."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1, of the machine that runs the command; null: `trainer.device`."""
    enable_resource_pool: bool = False
    """On Ray: a process of its own, where the run has GPUs with a GPU of its own, wherever the cluster has one free."""


@dataclass
class Reward:
    """Scores and how they combine: reward = function + reward_model.weight * the reward model's score + tool_weight *
    sum of tools' calc_reward + interaction_weight * the interaction's score; turn rewards land on their own turns."""

    custom_reward_function: RewardFunction = field(default_factory=RewardFunction)
    """The reward function; without one the tools' and the interaction's scores are the reward."""
    reward_model: RewardModel = field(default_factory=RewardModel)
    """The reward model."""
    reward_manager: RewardManager = field(default_factory=RewardManager)
    """How it is called."""
    overlong_buffer: OverlongBuffer = field(default_factory=OverlongBuffer)
    """What long answers cost."""
    sandbox_fusion: SandboxFusion = field(default_factory=SandboxFusion)
    """The code sandbox."""
    tool_weight: float | None = None
    """Weight of each tool's `calc_reward`, taken at the end; null: 0 where something else scores the answers (a reward
    function, named or known by the rows' data_source, or a reward model), so that none counts twice; otherwise 1."""
    interaction_weight: float | None = None
    """Weight of the interaction's `calculate_score`, taken at the end; null: as for `tool_weight`."""
    tool_turn_weight: float = 0.0
    """Weight of the step rewards that tools return from `execute`."""
    interaction_turn_weight: float = 0.0
    """Weight of the scores that the interaction returns with each reply."""
    launch_reward_fn_async: bool = False
    """Begin with the log-probs of policy and reference, and the critic's values, when the last conversation ends, and
    take the scores that are still out meanwhile. Otherwise they wait for the scores."""
    num_workers: int = 8
    """Reward functions that run at once."""
    timeout: float = 60.0
    """Seconds a reward function may take; longer is an infrastructure error and masks the sample. A function that
    asks for `sandbox` is not timed: the sandbox limits each of its programs."""
