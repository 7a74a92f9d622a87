"""One prompt, one answer."""

from agentrl.core.points import agent_loop
from agentrl.engines.engine import Sampling
from agentrl.rollout.loops.base import AgentLoop
from agentrl.trajectory.trajectory import Trajectory


@agent_loop("single_turn", "single_turn_agent")
class SingleTurn(AgentLoop):
    """No tools, no simulated user."""

    uses_tools = False

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        episode = self.episode(trajectory, sampling, schemas=[])
        episode.begin()
        await episode.generate()
