"""The loop of environments, in real ones: conversations, rewards, invalid actions, ends, processes."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Data
from agentrl.core.errors import InfraError
from agentrl.engines.engine import Sampling
from agentrl.environments.entry import EnvironmentEntry
from agentrl.environments.loop import EnvironmentAgent
from agentrl.environments.process import EnvironmentProcess
from agentrl.environments.rows import environment_rows
from agentrl.rollout.loops import RolloutContext
from agentrl.trajectory.ledger import Source
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory, TurnReward
from tests.rollout.scripted import environment, says

pytestmark = pytest.mark.integration

YAML = Path(__file__).with_name("environments.yaml")
SHARED: dict[Any, Any] = {}
"""The processes of all tests: each takes a second to start."""


def rows(name: str) -> Any:
    return environment_rows(name, data=Data(environment_config_path=str(YAML)))


async def play(name: str, *turns: str, row: int = 0, **limits: Any) -> Trajectory:
    trajectory = Trajectory(rows(name)[row], "t", 0)
    await EnvironmentAgent(made(says(*turns), **limits)).run(trajectory, Sampling(max_new_tokens=400))
    for ledger in trajectory.ledgers:
        ledger.check()
    return trajectory


def made(script: Callable[[str, int], Any], **limits: Any) -> RolloutContext:
    env, _ = environment(script, **{"response_length": 4000, "prompt_length": 4000, "model_length": 8000} | limits)
    env.shared.update(SHARED)
    SHARED.setdefault("all", env.shared)
    return RolloutContext(**vars(env) | {"shared": SHARED})


async def test_a_game_is_a_conversation_and_only_new_text_is_appended() -> None:
    trajectory = await play("guess", "[1]", "[2]", "[9]", "maybe 3", "[4]", "[5]", "[6]", row=1)
    system, first, *rest = trajectory.messages
    assert system == {"role": "system", "content": "Play."}
    assert first["content"].startswith("You are Player 0")
    assert all("You are Player" not in message["content"] for message in rest)
    assert "The target number is" in rest[1]["content"]
    (ledger,) = trajectory.ledgers
    assert {*ledger.sources} == {Source.PROMPT, Source.MODEL, Source.USER, Source.TEMPLATE}
    assert trajectory.finish == "terminated"
    assert trajectory.reward_extra["return"] == trajectory.reward


async def test_the_same_seed_is_the_same_game_and_games_at_once_do_not_mix() -> None:
    """TextArena seeds Python's global random numbers: in one process, games at once would draw each other's."""
    guesses = [f"[{i}]" for i in range(1, 9)]
    alone = [(await play("guess", *guesses, row=row)).messages for row in (0, 1, 2)]
    together = await asyncio.gather(*(play("guess", *guesses, row=row) for row in (0, 1, 2, 0, 1, 2)))
    assert [trajectory.messages for trajectory in together] == alone * 2
    assert len({str(messages) for messages in alone}) > 1


async def test_steps_of_gymnasium_and_an_invalid_action() -> None:
    trajectory = await play("lake", "I fly", "go right", "down or left?", "DOWN")
    said = [message["content"] for message in trajectory.messages]
    assert said[0] == "0\nActions: left, down, right, up"
    assert said[2] == "Invalid action: 'I fly' is none; write one of left, down, right, up"
    assert said[4] == "1"
    assert "names several actions" in said[6]
    assert [call.outcome for call in trajectory.tool_calls] == [Outcome.MODEL_ERROR, Outcome.OK] * 2
    assert (trajectory.outcome, trajectory.finish, trajectory.reward) == (Outcome.OK, "terminated", 0.0)


async def test_the_step_limit_of_the_entry() -> None:
    trajectory = await play("lake", "down", "down", "up", "up")
    assert trajectory.finish == "max_turns"
    assert trajectory.reward_extra == {"return": 0.0, "success": 0.0}


async def test_rewards_of_steps_are_on_their_turns() -> None:
    trajectory = await play("counter", "one", "", "two", "three")
    assert trajectory.messages[0]["content"] == "seed 0: count to 3"
    assert trajectory.turn_rewards == [TurnReward(0, 0.5, "environment"), TurnReward(1, 0.5, "environment")]
    assert trajectory.reward == 0.5
    assert trajectory.reward_extra == {"return": 1.5, "success": 1.0}


async def test_too_many_invalid_actions_and_too_few_tokens_end_it() -> None:
    wrong = await play("lake", "x", "y", "z", consecutive_errors=2)
    assert (wrong.finish, wrong.reward, wrong.turns) == ("max_errors", 0.0, 2)
    cut = await play("guess", "I think it is...")
    assert (cut.finish, cut.reward) == ("length", -1.0)
    tight = await play("counter", "one", "two", response_length=8)
    assert (tight.finish, tight.turn_rewards, tight.reward) == ("length", [], 0.5)


async def test_both_sides_are_the_policys() -> None:
    trajectory = await play("tictactoe", "[0]", "[3]", "[1]", "[4]", "[2]")
    first, second = trajectory.ledgers
    assert (first.side, second.side) == (0, 1)
    assert [sorted(ledger.turn_ends) for ledger in (first, second)] == [[0, 2, 4], [1, 3]]
    assert trajectory.side_rewards == [1.0, -1.0]
    assert (trajectory.reward, trajectory.turn_rewards) == (1.0, [])
    assert trajectory.reward_extra == {"return": 1.0, "success": 1.0, "return_0": 1.0, "return_1": -1.0}
    mine = [m["content"] for m in trajectory.messages if m["side"] == 1 and m["role"] == "user"]
    assert mine[0].startswith("You are Player 1")
    assert "[Player 0] [0]" in mine[0]
    assert "[Player 1]" not in mine[1]  # its own move is its own turn
    assert "[Player 0] [1]" in mine[1]


async def test_one_side_against_an_opponent() -> None:
    for row in (0, 1):
        trajectory = await play("against", "[4]", "[4]", "[4]", row=row)
        assert f"You are Player {row}" in trajectory.messages[0]["content"]
        assert [call.outcome for call in trajectory.tool_calls] == [
            Outcome.OK,
            Outcome.MODEL_ERROR,
            Outcome.MODEL_ERROR,
        ]
        assert (trajectory.reward, trajectory.side_rewards, trajectory.finish) == (-1.0, [], "terminated")


async def test_a_crash_and_a_hang_are_infrastructure_errors_of_one_trajectory() -> None:
    other = asyncio.create_task(play("counter", "one", "draw", "two", "three"))
    with pytest.raises(InfraError, match=r"environment counter: RuntimeError: it broke \(.*counter.py:\d+\)"):
        await play("counter", "crash")
    with pytest.raises(InfraError, match="environment hanging: no answer within 1 s"):
        await play("hanging", "hang")
    assert (await other).reward == 0.5


async def test_a_cancelled_trajectory_ends_its_process() -> None:
    process = EnvironmentProcess(EnvironmentEntry(**rows("counter")[0].extra_info["environment"]))
    async with process.open() as running:
        pid = running._pid
        await running.reset(0)
        task = asyncio.create_task(running.step("hang"))
        await asyncio.sleep(0.05)
        task.cancel()
    assert pid is not None
    while alive(pid):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_rows() -> None:
    training, held_out = rows("guess"), rows("guess/val")
    assert [row.uid for row in training] == [f"env:guess:{seed}" for seed in range(4)]
    assert [row.extra_info["seed"] for row in held_out] == [4, 5]
    row: Row = held_out[1]
    assert (row.uid, row.agent_name, row.data_source) == ("env:guess/val:5", "environment", "guess")
