"""What an attempt at a trajectory leaves of the rewards that others gave."""

from typing import Any

import numpy as np
import pytest
import torch

from agentrl.engines.engine import Sampling
from agentrl.rollout.attempt import attempt
from agentrl.rollout.loops import AgentLoop
from agentrl.trajectory.trajectory import Outcome, Trajectory, TurnReward
from tests.rollout.scripted import environment, row, says

GIVEN: dict[str, Any] = {
    "turn": lambda t, value: t.turn_rewards.append(TurnReward(0, value, "tool")),
    "tool": lambda t, value: t.tool_rewards.update(search=value),
    "side": lambda t, value: t.side_rewards.extend([0.0, value]),
    "final": lambda t, value: setattr(t, "reward", value),
    "user": lambda t, value: setattr(t, "interaction_score", value),
}
READ: dict[str, Any] = {
    "turn": lambda t: t.turn_rewards[0].value,
    "tool": lambda t: t.tool_rewards["search"],
    "side": lambda t: t.side_rewards[1],
    "final": lambda t: t.reward,
    "user": lambda t: t.interaction_score,
}


async def played(kind: str, value: Any) -> Trajectory:
    class Mine(AgentLoop):
        async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
            episode = self.episode(trajectory, sampling, [])
            episode.begin()
            await episode.generate()
            GIVEN[kind](trajectory, value)

    trajectory = Trajectory(row(), "1/a/0", 0)
    await attempt(lambda: Mine(environment(says("Yes"))[0]), trajectory, Sampling(64), 60.0)
    return trajectory


@pytest.mark.prevents("one reward that is no number, on any turn and of any source, costs the update of a whole batch")
@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, -1e38, "0.5", [1.0], {}, 1j], ids=repr)
async def test_a_reward_that_is_no_number_fails_its_trajectory(kind: str, value: Any) -> None:
    made = await played(kind, value)
    assert made.outcome is Outcome.INFRA_ERROR
    assert "gave the reward" in str(made.error)


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize("value", [np.float32(0.5), torch.tensor(0.5), np.array(0.5)], ids=repr)
async def test_numbers_of_other_packages_are_numbers(kind: str, value: Any) -> None:
    made = await played(kind, value)
    assert (made.outcome, READ[kind](made), type(READ[kind](made))) == (Outcome.OK, 0.5, float)
