"""A score that could not be had: the verification of a task, a judge or a reward function failed, and not the agent."""

from agentrl.trajectory.trajectory import Outcome, Trajectory

MARK = "no_verdict"


def without_verdict(trajectory: Trajectory, error: str, choice: str) -> None:
    """Mask the trajectory, or score it 0, as `reward.on_failure` says."""
    trajectory.extra[MARK] = error
    if choice == "zero":
        trajectory.reward = 0.0
    else:
        trajectory.outcome, trajectory.error = Outcome.INFRA_ERROR, error
