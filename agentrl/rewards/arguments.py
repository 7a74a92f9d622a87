"""The arguments of a reward function for a trajectory."""

from collections.abc import Callable
from typing import Any

from agentrl.trajectory.trajectory import Trajectory


def arguments(trajectory: Trajectory, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """All arguments that a reward function may take, by keyword."""
    row = trajectory.row
    return {
        "data_source": row.data_source,
        "solution_str": solution(trajectory, decode),
        "ground_truth": row.ground_truth,
        "extra_info": row.extra_info
        | trajectory.extra
        | {"num_turns": num_turns(trajectory), "rollout_reward_scores": reward_scores(trajectory)},
        "trajectory": trajectory,
    }


def solution(trajectory: Trajectory, decode: Callable[[list[int]], str]) -> str:
    """The model's own text: its turns in order, one a line, without tool results, user turns or template tokens.

    A turn that stands in several ledgers, because history was rewritten after it, counts once.
    """
    turns: dict[int, list[int]] = {}
    for ledger in trajectory.ledgers:
        turns = ledger.turn_ids() | turns  # the first to have it wins
    return "\n".join(decode(turns[turn]).strip() for turn in sorted(turns))


def num_turns(trajectory: Trajectory) -> int:
    """Turns of the conversation as verl counts them: the prompt, each assistant turn, each answer to one."""
    answered = len({call.turn for call in trajectory.tool_calls})
    return 1 + trajectory.turns + answered + trajectory.user_turns


def reward_scores(trajectory: Trajectory) -> dict[str, Any]:
    """Rewards of tools, and of the interaction turn by turn, under verl's names."""
    by_source: dict[str, list[float]] = {"tool": [], "interaction": [], "environment": []}
    for reward in trajectory.turn_rewards:
        by_source[reward.source].append(reward.value)
    scores: dict[str, Any] = {**trajectory.tool_rewards, "user_turn_rewards": by_source["interaction"]}
    scores["tool_turn_rewards"] = by_source["tool"]
    if trajectory.interaction_score is not None:
        scores["interaction_score"] = trajectory.interaction_score
    return scores
