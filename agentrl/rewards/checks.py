"""Checks of a run's settings that need the table of ready-made reward functions."""

from agentrl.config.schema import Data, Distillation, Reward, Rollout
from agentrl.config.validate import TRAINING, Check
from agentrl.core.errors import UserError
from agentrl.data.dataset import scored_by_rollout
from agentrl.rewards.function import names_function
from agentrl.rewards.managers import takes_lists
from agentrl.rewards.ready_made import known_source


def something_scores(reward: Reward, rollout: Rollout, data: Data) -> None:
    """Check that something gives a score."""
    multi_turn, agent = rollout.multi_turn, rollout.agent
    own_loop = agent.agent_loop_config_path or agent.default_agent_loop not in (None, "single_turn", "tool_agent")
    tools = multi_turn.tool_config_path and reward.tool_weight != 0
    acting = multi_turn.enable and (tools or (multi_turn.interaction_config_path and reward.interaction_weight != 0))
    own_manager = takes_lists(reward) is None
    judged = reward.reward_model.classifies or own_manager
    if not (names_function(reward) or judged or acting or own_loop or scored_by_rollout(data) or known_source(data)):
        raise UserError(
            "nothing scores the answers: set reward.custom_reward_function.path or reward.reward_model, or let tools "
            "or an interaction do it (rollout.multi_turn.enable=true with tool_config_path or interaction_config_path, "
            "and reward.tool_weight or reward.interaction_weight not 0)"
        )


def scores_are_trained_on(reward: Reward, rollout: Rollout, data: Data, distillation: Distillation) -> None:
    """Check that something gives a score where the run trains on scores."""
    if distillation.use_rewards:
        something_scores(reward, rollout, data)


RUN: tuple[Check, ...] = (*TRAINING, scores_are_trained_on)
"""All checks of a training run."""
