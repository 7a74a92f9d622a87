"""The run's settings as verl's code reads them: one tree with verl's names, and single sections of it."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from agentrl.config.derived import with_custom
from agentrl.config.schema import Config
from agentrl.core.points import POLICY_LOSS_OPTIONS


def verl_config(config: Config) -> DictConfig:
    """A DictConfig that answers to `config.actor_rollout_ref.rollout.response_length` and the like.

    Settings of the user's own code are where the user wrote them.
    """
    tree = with_custom(config)
    tree |= {name: with_custom(getattr(config, name)) for name in ("data", "actor", "rollout", "algorithm")}
    data, rollout, reward = tree["data"], tree["rollout"], tree["reward"]
    rollout |= {"prompt_length": data["max_prompt_length"], "response_length": data["max_response_length"]}
    rollout |= {"calculate_log_probs": True, "mode": "async"}
    tree["actor_rollout_ref"] = tree.get("actor_rollout_ref", {}) | {
        "model": tree["model"],
        "actor": tree["actor"],
        "rollout": rollout,
        "ref": tree["ref"],
        "hybrid_engine": True,
    }
    tree["actor"]["loss_agg_mode"] = tree["actor"]["loss_agg_mode"] or "token-mean"
    tree["reward_model"] = reward["reward_model"] | {
        "reward_manager": reward["reward_manager"]["name"],
        "reward_kwargs": reward["reward_kwargs"],
    }
    tree["custom_reward_function"] = reward["custom_reward_function"]
    return OmegaConf.create(tree, flags={"allow_objects": True})


class SectionConfig:
    """Reads a section; what `more` holds comes first."""

    def __init__(self, section: Any, **more: Any) -> None:
        tree = with_custom(section) if hasattr(section, "custom") else section
        vars(self).update(_tree=OmegaConf.create(tree, flags={"allow_objects": True}), _more=more)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._more:
            return self._more[name]
        if name not in self._tree:
            raise AttributeError(f"the run's settings have no {name!r} here")
        return self._tree[name]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return name in self._more or name in self._tree

    def get(self, name: str, default: Any = None) -> Any:
        """What is set, or `default`."""
        return getattr(self, name) if name in self else default


class AlgoConfig(SectionConfig):
    """The section `algorithm`."""


class ActorConfig(SectionConfig):
    """The section `actor`, with the options of the loss where verl has them: in `policy_loss` itself."""

    def __init__(self, section: Any, **more: Any) -> None:
        super().__init__(section, **more)
        if modes := self.get("policy_loss"):
            modes.update(POLICY_LOSS_OPTIONS | dict(modes.get("options") or {}))
