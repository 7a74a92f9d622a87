"""Servers of the real openenv package, in the environment that `make test-agents` makes."""

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrl.config.schema import Data
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.environments.loop import EnvironmentAgent
from agentrl.environments.rows import environment_rows
from agentrl.trajectory.trajectory import Outcome, Trajectory, TurnReward
from tests.environments.test_loop import made
from tests.rollout.scripted import calls, says

pytestmark = [pytest.mark.agents, pytest.mark.timeout(300)]

WRITTEN = """
guess: {openenv: "URL", kwargs: {low: 3}, rows: 4, val_rows: 2}
tools: {openenv: "URL", rows: 2, max_steps: 2}
"""
Started = Callable[[str], "tuple[Data, subprocess.Popen[bytes]]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    python = Path(os.environ.get("AGENTRL_OPENENV", ""), "bin/python")
    if not python.exists():
        pytest.skip("AGENTRL_OPENENV is no environment: run `make test-agents`")
    processes = []

    def started(kind: str) -> "tuple[Data, subprocess.Popen[bytes]]":
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        process = subprocess.Popen([python, Path(__file__).with_name("guessing.py"), str(port), kind])
        processes.append(process)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/schema").close()
                break
            except OSError:
                time.sleep(0.2)
        (tmp_path / "environments.yaml").write_text(WRITTEN.replace("URL", f"http://127.0.0.1:{port}"))
        return Data(environment_config_path=str(tmp_path / "environments.yaml")), process

    yield started
    for process in processes:
        process.kill()
        process.wait()


async def play(data: Data, name: str, *turns: str) -> Trajectory:
    trajectory = Trajectory(environment_rows(name, data=data)[1], "t", 0)
    await EnvironmentAgent(made(says(*turns))).run(trajectory, Sampling(max_new_tokens=400))
    for ledger in trajectory.ledgers:
        ledger.check()
    return trajectory


async def test_steps_rewards_and_a_death(start: Started) -> None:
    data, process = start("")
    trajectory = await play(data, "guess", "none", *"3456789")
    said = [message["content"] for message in trajectory.messages]
    assert said[0] == "Guess my number from 3 to 9.\nAnswer with a whole number: number."
    assert (trajectory.reward, trajectory.finish, said[-1]) == (1.0, "terminated", said[-1])
    assert trajectory.turn_rewards == [TurnReward(t, -0.1, "environment") for t in range(1, trajectory.turns - 1)]
    with pytest.raises(InfraError, match="EXECUTION_ERROR: too large to think about"):
        await play(data, "guess", "100")
    process.kill()
    process.wait()
    with pytest.raises(InfraError, match="no OpenEnv server answers at"):
        await play(data, "guess", "3")
    with pytest.raises(UserError, match=r"environment tools: no OpenEnv server answers at .*: start it, or correct"):
        environment_rows("tools", data=data)


async def test_tools_of_an_environment(start: Started) -> None:
    data, _ = start("tools")
    trajectory = await play(
        data,
        "tools",
        calls("add", '{"a": 1}'),
        calls("add", '{"a": 1, "b": 5}'),
    )
    assert [call.outcome for call in trajectory.tool_calls] == [Outcome.MODEL_ERROR, Outcome.OK]
    assert "Add 1 and 5." in trajectory.messages[0]["content"]
    assert trajectory.tool_calls[1].response == "6"
    assert trajectory.finish == "max_turns"
