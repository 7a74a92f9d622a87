"""The ready-made agent, in a process of its own, holds the conversation of the built-in loop, token by token."""

import pytest

from agentrl.core.resources import share
from agentrl.engines.engine import Sampling
from agentrl.interactions import load_interactions
from agentrl.rollout.loops import loop_class
from agentrl.tools import load_tools
from agentrl.trajectory.trajectory import Trajectory
from tests.rollout.scripted import calls, environment, row, says

pytestmark = pytest.mark.integration

CALL = "Let me see.\n" + calls("calculator", '{"expression": "2 + 3 * 1"}')


TURNS = ("The answer is 6.", CALL, CALL, CALL, "never asked for")
"""A wrong answer, to which the user objects; then calls until there are no turns left."""


@pytest.mark.prevents("an agent behind a gateway trains on other tokens than the built-in loop")
async def test_both_loops_draw_the_same() -> None:
    tools = load_tools("tools/calculator.yaml", None, max_response=256, unit="characters", side="middle")
    users = load_interactions("interactions/checker.yaml")
    kwargs = {"name": "checker", "ground_truth": "5", "hint": "Try again."}
    made = []
    for loop in (loop_class("tool_agent"), loop_class("calculator", str(share() / "agents/calculator.yaml"))):
        env, engine = environment(says(*TURNS), tools=tools, interactions=users, assistant_turns=4, user_turns=1)
        trajectory = Trajectory(row(interaction_kwargs=kwargs), "k", 0)
        await loop(env).run(trajectory, Sampling(256, seed=7))
        (ledger,) = trajectory.ledgers
        ledger.check()
        drawn = [i for i, model in enumerate(ledger.mask) if model]
        end = drawn[-1] + 1
        made.append((engine.prompts["k"], engine.seeds, [*ledger.ids][:end], [*ledger.mask][:end], trajectory.turns))
    assert made[0] == made[1]
