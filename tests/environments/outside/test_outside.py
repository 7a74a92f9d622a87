"""Environments that ask the model themselves, by a program with the same protocol as that of verifiers."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Data
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.environments.outside import OutsideAgent
from agentrl.environments.rows import environment_rows
from agentrl.environments.worker import Worker
from agentrl.rollout.loops import RolloutContext
from agentrl.trajectory.trajectory import Trajectory
from tests.rollout.scripted import Script, environment, says

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
TROUBLES = {
    "few": "environment few: it has 50 tasks, and rows \\+ val_rows is 320: write `rows: 40, val_rows: 10`",
    "broken": "environment broken: no such thing",
    "refused": "environment refused: there is no environment any",
    "stepped": "stepped: unknown key 'max_steps'",
    "verifiers": "verifiers is not installed here: write `python: .venv-verifiers/bin/python`",
    "python": "python: there is no .*/.venv/bin/python; make one: `python3.12 -m venv .*/.venv`",
    "bare": "environment bare: there is no verifiers in .*: run `.* -m pip install verifiers`",
}


@pytest.fixture
def data(tmp_path: Path) -> Data:
    text = (HERE / "environments.yaml").read_text()
    text = text.replace("KIND", f"{HERE / 'asking.py'}:Asking").replace("PYTHON", sys.executable)
    (tmp_path / "environments.yaml").write_text(text)
    return Data(environment_config_path=str(tmp_path / "environments.yaml"))


@pytest.mark.parametrize("name", TROUBLES)
def test_troubles_are_told_before_the_run(name: str, data: Data) -> None:
    with pytest.raises(UserError, match=TROUBLES[name]):
        environment_rows(name, data=data)


def test_rows_are_tasks(data: Data) -> None:
    training, held_out = (environment_rows(name, data=data) for name in ("asking", "asking/val"))
    assert [row.extra_info["number"] for row in training] == [0, 1, 2, 3]
    assert [row.uid for row in held_out] == ["env:asking/val:4", "env:asking/val:5"]
    assert training[1].prompt == [{"role": "user", "content": "What is 1 ?"}]
    assert "the environment begins" in training[0].prompt[0]["content"]


async def played(env: RolloutContext, data: Data, key: str = "t", name: str = "asking") -> Trajectory:
    trajectory = Trajectory(environment_rows(name, data=data)[1], key, 0)
    await OutsideAgent(env).run(trajectory, Sampling(max_new_tokens=400))
    for ledger in trajectory.ledgers:
        ledger.check()
    return trajectory


def made(script: Script, shared: dict[Any, Any]) -> RolloutContext:
    env, _ = environment(script, response_length=4000, prompt_length=4000, model_length=8000)
    return RolloutContext(**vars(env) | {"shared": shared})


async def test_rollouts_at_once_deaths_and_errors(data: Data) -> None:
    shared: dict[Any, Any] = {}
    many = await asyncio.gather(*(played(made(says("5", "8"), shared), data, f"t{i}") for i in range(3)))
    assert [(one.reward, one.turns, len(one.ledgers)) for one in many] == [(8.0, 2, 1)] * 3
    assert many[0].reward_extra == {"first": 5.0, "return": 8.0, "success": 1.0}
    with pytest.raises(InfraError, match="environment asking: TaskError: the scorer broke"):
        await played(made(says("fail"), shared), data)
    with pytest.raises(InfraError, match="environment asking: its worker died: no memory is left"):
        await played(made(says("die"), shared), data)
    again = await played(made(says("5", "3"), shared), data)
    assert (again.reward, again.reward_extra["success"]) == (3.0, 0.0)
    with pytest.raises(InfraError, match="the engine failed"):
        await played(made(says(InfraError("the engine failed")), shared), data)
    (worker,) = (value for value in shared.values() if isinstance(value, Worker))
    assert worker._running is not None
    running = worker._running
    worker.close()
    assert running.process.poll() is not None


async def test_the_start_of_the_program_does_not_count_against_a_rollout(data: Data) -> None:
    shared: dict[Any, Any] = {}
    some = await asyncio.gather(*(played(made(says("5", "8"), shared), data, f"t{i}", "slow") for i in range(2)))
    assert [one.reward for one in some] == [8.0] * 2
    (worker,) = (value for value in shared.values() if isinstance(value, Worker))
    assert worker._running is not None
    silent = await asyncio.start_unix_server(lambda *_: None, f"{worker._running.address}2")
    async with silent:
        worker._running.address += "2"
        with pytest.raises(InfraError, match="environment slow: a rollout took longer than its timeout of"):
            await played(made(says("5"), shared), data, "late", "slow")
    worker.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ('{"reward": "high", "metrics": {}}', "environment asking gave the reward 'high'"),
        ('{"reward": NaN, "metrics": {}}', "environment asking gave the reward nan"),
        ('{"metrics": {}}', "environment asking gave the reward None"),
        ('{"reward": 1, "metrics": [2]}', r"environment asking gave the metrics \[2\]"),
        ("[1]", r"environment asking answered no JSON object: \[1\]"),
    ],
)
async def test_a_broken_answer_is_an_infrastructure_error(data: Data, answer: str, message: str) -> None:
    shared = SHARED.setdefault("broken", {})
    with pytest.raises(InfraError, match=message):
        await played(made(says("garbage", answer), shared), data)


SHARED: dict[str, dict[Any, Any]] = {}
"""Of tests that share a program."""
