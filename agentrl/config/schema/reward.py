"""Keys of rewards: functions, managers, reward model, sandbox."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from agentrl.config.schema.marks import ABOVE_0, AT_LEAST_1, CodePath
from agentrl.config.schema.model import Pretrained
from agentrl.core.dtypes import STORED


@dataclass
class RewardFunction:
    """A reward function with verl's `compute_score` signature."""

    path: CodePath | None = None
    """Python file or importable module; null: none, unless `name` is module:function."""
    name: CodePath = "compute_score"
    """The function: (data_source, solution_str, ground_truth, extra_info=None, **reward_kwargs), sync or
    async. It returns a number or a dict with "score", and may take `trajectory` and `sandbox` too."""
    reward_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments."""


@dataclass
class RewardTerm:
    """A reward function with a weight."""

    path: CodePath | None = None
    """Python file or importable module; null: `name` is module:function."""
    name: CodePath | None = None
    """The function, called as that of `reward.custom_reward_function`; null: it has the term's name."""
    weight: float = 1.0
    """Factor of its score; 0: it is only logged."""
    reward_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments."""


@dataclass
class RewardManagerModule:
    """File of your own reward manager."""

    path: CodePath | None = None
    """Python file or importable module with the class `reward.reward_manager.name`; null: it is built in, or
    `model.external_lib` registers it."""


@dataclass
class RewardManager:
    """How the reward function is called."""

    name: str = "naive"
    """naive or dapo (one call per trajectory), prime (the same, always in another process), batch (one call for all
    trajectories of a batch of rows, with lists), or the name of your own class written for verl."""
    module: RewardManagerModule = field(default_factory=RewardManagerModule)
    """The file of your own class."""


@dataclass
class OverlongBuffer:
    """Soft penalty for long answers (DAPO, arXiv 2503.14476)."""

    enable: bool = False
    """Reduce the reward of answers close to `data.max_response_length`."""
    len: int | None = None
    """Tokens before the limit over which the penalty grows; only tokens of the model count. null: a fifth of the
    limit."""
    penalty_factor: float = 1.0
    """The penalty at the limit."""
    max_resp_len: int | None = None
    """The limit in tokens; null: `data.max_response_length`."""
    log: bool = True
    """Log the penalty, and the share of answers with one, as metrics."""


@dataclass
class SandboxFusion:
    """The code sandbox for reward functions and tools."""

    url: str | None = None
    """Address of a server, ending in /run_code (`agentrl sandbox serve` or SandboxFusion); null: an embedded pool with
    the same isolation, started at its first use."""
    max_concurrent: Annotated[int, AT_LEAST_1] = 64
    """Most jobs at once; others wait."""
    memory_limit_mb: Annotated[int, AT_LEAST_1] = 1024
    """Memory limit of each program in MiB, for all its processes together."""


@dataclass
class RewardNetwork(Pretrained):
    """The reward model's files."""

    dtype: Annotated[str, STORED] = "bfloat16"
    """Parameter dtype: float32 or bfloat16."""
    input_tokenizer: str | None = None
    """null: the model reads the policy's tokens. Any name: the conversation is rendered again with the reward model's
    own tokenizer and chat template."""


@dataclass
class RewardModel:
    """A sequence classification model with one label that scores whole conversations, or a generative one behind a URL
    that the reward function asks."""

    enable: bool = False
    """Score trajectories with it, in addition to the reward function if there is one."""
    url: str | None = None
    """HOST:PORT of a server with a generative reward model (`agentrl gateway`, SGLang, vLLM). With `enable` the reward
    function, or the reward manager of your own, is given it as `reward_router_address`, and as `reward_model_tokenizer`
    the tokenizer of `model.path`; it scores alone. null: the model is a sequence classifier."""
    model: RewardNetwork = field(default_factory=RewardNetwork)
    """The network."""
    weight: float = 1.0
    """Factor of its score."""
    forward_max_token_len_per_gpu: Annotated[int, AT_LEAST_1] = 16384
    """Token budget of a micro-batch."""
    max_length: Annotated[int | None, AT_LEAST_1] = None
    """Use only the last N tokens of a conversation; null: all."""
    device: str | None = None
    """cpu, cuda, or one GPU such as cuda:1 of the machine that runs the command; null: `trainer.device`."""
    enable_resource_pool: bool = False
    """On Ray: run it in its own process, with its own GPU if the run uses GPUs, on any machine of the cluster."""

    @property
    def classifies(self) -> bool:
        """Whether a sequence classifier scores trajectories."""
        return self.enable and self.url is None


@dataclass
class Reward:
    """Rewards and how they combine: reward = function + weight * each of functions + reward_model.weight * the reward
    model's score + tool_weight * sum of tools' calc_reward + interaction_weight * the interaction's score; turn rewards
    stay on their turns."""

    custom_reward_function: RewardFunction = field(default_factory=RewardFunction)
    """The reward function; without one, the scores of tools and interaction are the reward."""
    functions: dict[str, RewardTerm] = field(default_factory=dict)
    """Further reward functions by name, {path: file, name: function (by default this name), weight: 1.0,
    reward_kwargs: {}} each. Their weighted scores are added; each function's own score is logged as `reward/NAME`."""
    reward_model: RewardModel = field(default_factory=RewardModel)
    """The reward model."""
    reward_manager: RewardManager = field(default_factory=RewardManager)
    """How the reward function is called."""
    reward_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of a reward manager of your own; it finds them in `config.reward.reward_kwargs`, too."""
    overlong_buffer: OverlongBuffer = field(default_factory=OverlongBuffer)
    """Penalty for long answers."""
    sandbox_fusion: SandboxFusion = field(default_factory=SandboxFusion)
    """The code sandbox."""
    tool_weight: float | None = None
    """Weight of each tool's `calc_reward`, called at the end; null: 0 if something else scores the answers (a reward
    function, set here or known for the rows' data_source, or a reward model), otherwise 1."""
    interaction_weight: float | None = None
    """Weight of the interaction's `calculate_score`, called at the end; null: as for `tool_weight`."""
    tool_turn_weight: float = 0.0
    """Weight of the step rewards that tools return from `execute`."""
    interaction_turn_weight: float = 0.0
    """Weight of the scores that the interaction returns with each reply."""
    zero_unless_stopped: bool = False
    """An answer that ended at the length limit has reward 0, whatever it scores; a penalty for long answers is still
    subtracted."""
    launch_reward_fn_async: bool = False
    """Compute log-probs and values while the last scores are still being computed. false: wait for all scores
    first."""
    num_workers: Annotated[int, ABOVE_0] = 8
    """Most reward functions that run at once."""
    on_failure: Annotated[str, ("mask", "zero")] = "mask"
    """What a failure of a reward function, a judge or a task's verification is for the sample, one that takes too long
    included: mask (its trajectory is an infrastructure error, retried as `rollout.infra_retries` says), or zero (its
    reward is 0). Metrics `rollout/no_verdict_masked` and `rollout/no_verdict_zero` count both."""
    timeout: Annotated[float, ABOVE_0] = 60.0
    """Longest call of a reward function, in seconds; a longer one is a failure of it. Not
    used for a function that takes `sandbox`: the sandbox limits each of its programs."""

    @property
    def turn_weights(self) -> dict[str, float]:
        """Factors of turn rewards by their source; those of an environment are the reward itself."""
        return {"tool": self.tool_turn_weight, "interaction": self.interaction_turn_weight, "environment": 1.0}
