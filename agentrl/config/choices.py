"""Keys whose value is one of a few words: fixed ones, or the names in a registry, to which users add their own."""

from dataclasses import dataclass
from typing import Any

from agentrl.core import points
from agentrl.core.dtypes import COMPUTED, STORED
from agentrl.core.errors import UserError
from agentrl.core.extensions import load_plugins
from agentrl.core.registry import Registry

LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
REWARD_MANAGERS = ("naive", "dapo", "prime", "batch")

CHOICES: dict[str, tuple[str, ...]] = {
    "actor.profiler.tool": ("torch", "torch_memory", "nsys"),
    "actor.loss_agg_mode": LOSS_AGG_MODES,
    "actor.checkpoint.load_contents": ("model", "optimizer", "extra", "hf_model"),
    "actor.checkpoint.save_contents": ("model", "optimizer", "extra", "hf_model"),
    "actor.fsdp_config.mixed_precision.param_dtype": ("auto", *COMPUTED),
    "actor.fsdp_config.mixed_precision.reduce_dtype": STORED,
    "actor.router_replay.mode": ("disabled", "R2", "R3"),
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "algorithm.ledger_credit": ("all", "last", "weighted"),
    "algorithm.pf_ppo.reweight_method": ("pow", "max_min", "max_random"),
    "algorithm.rollout_correction.rollout_is": ("token", "sequence"),
    "algorithm.rollout_correction.rollout_is_mode": ("truncate", "mask"),
    "algorithm.rollout_correction.loss_type": ("ppo_clip", "reinforce"),
    "critic.loss_agg_mode": LOSS_AGG_MODES,
    "distillation.divergence": ("reverse_kl", "forward_kl", "jsd"),
    "distillation.support": ("teacher", "student"),
    "data.truncation": ("error", "left", "right", "middle"),
    "fsdp_config.mixed_precision.param_dtype": ("auto", *COMPUTED),
    "fsdp_config.mixed_precision.reduce_dtype": STORED,
    "model.dtype": STORED,
    "reward.on_failure": ("mask", "zero"),
    "reward.reward_model.model.dtype": STORED,
    "rollout.multi_turn.tokenization_sanity_check_mode": ("disable", "strict", "ignore_strippable"),
    "rollout.multi_turn.tool_response_truncate_side": ("left", "right", "middle"),
    "rollout.multi_turn.tool_response_unit": ("characters", "tokens"),
    "rollout.dtype": ("auto", *COMPUTED),
    "rollout.quantization": ("fp8",),
    "rollout.speculative_algorithm": ("ngram",),
    "rollout.weight_check": ("first", "always", "never"),
    "trainer.device": ("auto", "cpu", "cuda"),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
}
"""By key, all that it takes."""


@dataclass(frozen=True)
class OpenChoice:
    """The value of a key that a registry gives a meaning."""

    registry: Registry[Any]
    further: tuple[str, ...] = ()
    """Words that are no names in it."""
    suffix: str = ""
    """What may follow a name."""
    module: str = ""
    """The key beside it that may hold the module of a name."""

    @property
    def words(self) -> tuple[str, ...]:
        """Built-in words of the key."""
        names = self.registry.words
        return (*self.further, *names, *(f"{name}{self.suffix}" for name in names if self.suffix))

    def built_in(self, word: str) -> bool:
        """Whether a word needs nothing of the user's own."""
        name = word.removesuffix(self.suffix).removeprefix(f"{self.registry.package}.")
        return word in self.further or name in self.registry.declared

    def trouble(self, word: str, key: str) -> str | None:
        """The error of a word, found without an import of what a path names. Raises UserError for a
        plug-in that does not load."""
        if word.endswith(".py"):
            return f"{key}={word}: name the object in the file, too: {word}:NAME"
        if word in self.words or self.registry.is_path(word):
            return None
        load_plugins()
        if word in self.words:
            return None
        return f"{key}={word}: {self.registry.missing(word, self.words)}"

    def load(self, word: str, key: str) -> None:
        """Find what a word that is not built in names. Raises UserError."""
        if trouble := self.trouble(word, key):
            raise UserError(trouble)
        self.registry.get(word.removesuffix(self.suffix), key)


OPTIMIZER = OpenChoice(points.OPTIMIZERS, module="optimizer_impl")

OPEN: dict[str, OpenChoice] = {
    "actor.kl_loss_type": OpenChoice(points.KL_ESTIMATORS, ("full",), suffix="+"),
    "actor.optim.lr_scheduler_type": OpenChoice(points.LR_SCHEDULES),
    "actor.optim.optimizer": OPTIMIZER,
    "actor.policy_loss.loss_mode": OpenChoice(points.POLICY_LOSSES),
    "algorithm.adv_estimator": OpenChoice(points.ADVANTAGES),
    "algorithm.filter_groups.keep": OpenChoice(points.GROUP_FILTERS),
    "algorithm.kl_penalty": OpenChoice(points.KL_ESTIMATORS, ("full",)),
    "critic.optim.lr_scheduler_type": OpenChoice(points.LR_SCHEDULES),
    "critic.optim.optimizer": OPTIMIZER,
    "distillation.estimator": OpenChoice(points.KL_ESTIMATORS, suffix="+"),
    "data.row_sampler": OpenChoice(points.ROW_SAMPLERS),
    "optim.lr_scheduler_type": OpenChoice(points.LR_SCHEDULES),
    "optim.optimizer": OPTIMIZER,
    "rollout.containers.provider": OpenChoice(points.CONTAINER_PROVIDERS),
    "rollout.multi_turn.format": OpenChoice(points.PARSERS),
    "rollout.name": OpenChoice(points.ENGINES, ("auto",)),
    "rollout.weight_sync": OpenChoice(points.WEIGHT_TRANSPORTS, ("auto",)),
    "trainer.callbacks": OpenChoice(points.CALLBACKS),
    "trainer.logger": OpenChoice(points.LOGGERS),
}
"""By key, what it takes besides a path of the user's own and what `model.external_lib` or a plug-in registers."""


def words_of(path: str) -> tuple[str, ...]:
    """The words that a key takes; empty where it takes more than words."""
    return OPEN[path].words if path in OPEN else CHOICES.get(path, ())
