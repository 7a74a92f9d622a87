"""What a run cannot do without."""

from agentrl.config.schema import Data, Model, Reward, Rollout, Trainer
from agentrl.errors import UserError


def required(model: Model, data: Data, trainer: Trainer) -> None:
    """A model and rows."""
    rows = "val_files" if trainer.val_only else "train_files"
    needed = {
        "model.path": (model.path, "a model's folder or hub id; `agentrl model smollm2` prepares one"),
        f"data.{rows}": (getattr(data, rows), "parquet or jsonl; `agentrl data` writes some"),
    }
    missing = [f"{key} ({what})" for key, (value, what) in needed.items() if not value]
    if missing:
        raise UserError(f"not set: {' and '.join(missing)}")


def something_scores(reward: Reward, rollout: Rollout, data: Data) -> None:
    """Without a score there is nothing to learn from."""
    from agentrl.rewards.ready_made import known_source

    multi_turn, agent = rollout.multi_turn, rollout.agent
    custom_reward_function = reward.custom_reward_function
    scorer = custom_reward_function.path or ":" in custom_reward_function.name  # "module:function" needs no path
    own_loop = agent.agent_loop_config_path or agent.default_agent_loop not in (None, "single_turn", "tool_agent")
    tools = multi_turn.tool_config_path and reward.tool_weight != 0
    acting = multi_turn.enable and (tools or (multi_turn.interaction_config_path and reward.interaction_weight != 0))
    judged = reward.reward_model.enable
    if not (scorer or judged or acting or own_loop or known_source(data)):
        raise UserError(
            "nothing scores the answers: set reward.custom_reward_function.path or reward.reward_model, or let tools "
            "or an interaction do it (rollout.multi_turn.enable=true with tool_config_path or interaction_config_path, "
            "and reward.tool_weight or reward.interaction_weight not 0)"
        )
