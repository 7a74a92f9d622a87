"""Keys of teachers and of distillation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from agentrl.config.schema.marks import ABOVE_0, AT_LEAST_0, SHARE, CodePath, ModelPath, OpenChoice
from agentrl.core import points


@dataclass
class Teacher:
    """A model whose probabilities of the policy's tokens are trained on: a server, or a model of the training ranks."""

    model: Any = None
    """{path: folder or hub id}, or policy: the policy itself, which needs `context` or `ema`. null: `base_url`'s, or
    with where=ranks the policy at the start of the run."""
    path: ModelPath | None = None
    """model={path: ...} in short."""
    where: str | None = None
    """ranks: the training ranks hold the model and read all its logits; null: a server. Always ranks for the policy and
    with engine=hf."""
    engine: str | None = None
    """A server that the run starts: sglang, vllm or hf; null: `rollout.name`."""
    n_gpus: int = 1
    """GPUs of this server."""
    base_url: str | None = None
    """Address of a server that runs already."""
    context: CodePath | None = None
    """file.py:function, called with the prompt's messages and the row, returns the messages that the teacher reads in
    their place, with the solution for example (self-distillation, arXiv 2601.18734)."""
    ema: float | None = None
    """model=policy: share of the teacher's weights that each step keeps, such as 0.99; the rest is the policy's."""
    param_offload: bool = False
    """On the ranks: keep it in CPU memory while it is not used."""

    def __post_init__(self) -> None:
        if isinstance(self.model, Mapping):
            self.path = self.path or self.model.get("path")

    @property
    def on_ranks(self) -> bool:
        """Whether the training ranks compute it."""
        return self.where == "ranks" or self.model == "policy" or self.engine == "hf"


@dataclass
class Distillation:
    """The distance of the policy to its teachers on the policy's own tokens, for runs with `teachers`. A row's teacher
    is named by `extra_info.teacher`, else by its data source, else it is the only one."""

    coef: Annotated[float, AT_LEAST_0] = 1.0
    """Factor of the distance, next to rewards."""
    divergence: Annotated[str, ("reverse_kl", "forward_kl", "jsd")] = "reverse_kl"
    """reverse_kl (policy to teacher), forward_kl (teacher to policy), or jsd (generalised Jensen-Shannon, arXiv
    2306.13649)."""
    beta: Annotated[float, SHARE] = 0.5
    """jsd: weight of the teacher in the mixture; 0 is forward_kl, 1 is reverse_kl."""
    topk: int = 0
    """Tokens of the vocabulary that are compared: 0: the sampled token; k: the k likeliest; -1: all (teachers on the
    ranks)."""
    support: Annotated[str, ("teacher", "student")] = "teacher"
    """topk: the likeliest tokens of the teacher or of the student (teachers on the ranks)."""
    tail: bool = True
    """topk: compare the probability of all other tokens together, too."""
    estimator: Annotated[str, OpenChoice(points.KL_ESTIMATORS, suffix="+")] = "kl"
    """topk=0: the estimate from the sampled token, as in `actor.kl_loss_type`: kl is k1, mse k2, low_var_kl k3."""
    reward: bool = True
    """Subtract the distance from each token's advantage; false: it is a term of the loss, with its own gradient."""
    use_rewards: bool = True
    """Train on rewards too; false: distillation is the whole loss, and no reward function is needed."""
    temperature: Annotated[float, ABOVE_0] = 1.0
    """Both models' logits are divided by it, on top of `rollout.temperature`; topk: -1 or teachers on the ranks."""
    loss_max_clamp: float | None = None
    """Largest distance of a token; with the sampled token also the smallest, negative; null: no bound."""
    log_prob_min_clamp: float | None = None
    """Smallest log-prob of both models; null: no bound."""
