"""The run's settings as verl's code reads them: one tree, with `actor_rollout_ref` and the older names beside ours."""

from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig, OmegaConf

from agentrl.config.schema import Config


def verl_config(config: Config) -> DictConfig:
    """A DictConfig that answers to `config.actor_rollout_ref.rollout.response_length` and the like."""
    tree: dict[str, Any] = asdict(config)
    data, rollout, reward = tree["data"], tree["rollout"], tree["reward"]
    rollout |= {"prompt_length": data["max_prompt_length"], "response_length": data["max_response_length"]}
    rollout |= {"calculate_log_probs": True, "mode": "async"}
    tree["actor_rollout_ref"] = {
        "model": tree["model"],
        "actor": tree["actor"],
        "rollout": rollout,
        "ref": tree["ref"],
        "hybrid_engine": True,
    }
    tree["actor"]["loss_agg_mode"] = tree["actor"]["loss_agg_mode"] or "token-mean"
    tree["reward_model"] = reward["reward_model"] | {"reward_manager": reward["reward_manager"]["name"]}
    tree["custom_reward_function"] = reward["custom_reward_function"]
    return OmegaConf.create(tree, flags={"allow_objects": True})
