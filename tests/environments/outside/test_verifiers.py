"""The real verifiers package, in the environment that `make test-agents` makes."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Data
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.environments.outside import OutsideAgent
from agentrl.environments.rows import environment_rows
from agentrl.rollout.loops import RolloutContext
from agentrl.trajectory.ledger import Source
from agentrl.trajectory.trajectory import Trajectory
from tests.rollout.scripted import Script, calls, environment, says

pytestmark = [pytest.mark.agents, pytest.mark.timeout(300)]

WRITTEN = """
sums: {verifiers: counting, python: PYTHON, rows: 4, val_rows: 2}
marble: {verifiers: marble-v1, python: PYTHON, kwargs: {pieces: 1}, rows: 2, val_rows: 1}
unknown: {verifiers: marble-v2, python: PYTHON}
misspelt: {verifiers: marble-v1, python: PYTHON, kwargs: {peices: 1}}
"""
TROUBLES = {
    "unknown": "environment unknown: there is no environment marble-v2 in .*: install the package that has it",
    "misspelt": "environment misspelt: .*peices",
}


@pytest.fixture
def data(tmp_path: Path) -> Data:
    python = Path(os.environ.get("AGENTRL_VERIFIERS", ""), "bin/python")
    if not python.exists():
        pytest.skip("AGENTRL_VERIFIERS is no environment: run `make test-agents`")
    shutil.copy(Path(__file__).with_name("counting.py"), tmp_path)
    (tmp_path / "environments.yaml").write_text(WRITTEN.replace("PYTHON", str(python)))
    return Data(environment_config_path=str(tmp_path / "environments.yaml"))


@pytest.mark.parametrize("name", TROUBLES)
def test_troubles_are_told_before_the_run(name: str, data: Data) -> None:
    with pytest.raises(UserError, match=TROUBLES[name]):
        environment_rows(name, data=data)


def test_an_environment_of_the_registry(data: Data) -> None:
    (prompt,) = environment_rows("marble/val", data=data)[0].prompt
    assert prompt["content"].startswith("A marble rolls off a fixed ramp")


async def test_tools_rewards_errors_and_a_death(data: Data) -> None:
    shared: dict[Any, Any] = {}
    rows = environment_rows("sums", data=data)

    async def play(script: Script, **limits: Any) -> Trajectory:
        sizes = {"response_length": 4000, "prompt_length": 4000, "model_length": 8000} | limits
        env, _ = environment(script, **sizes)
        trajectory = Trajectory(rows[1], "t", 0)
        context = RolloutContext(**vars(env) | {"shared": shared})
        await OutsideAgent(context).run(trajectory, Sampling(max_new_tokens=400))
        return trajectory

    add = calls("add", '{"a": 1, "b": 5}')
    right, wrong = await asyncio.gather(play(says(add, "it is 6")), play(says("none")))
    assert (right.reward, right.reward_extra) == (2.0, {"right": 1.0, "turns": 2.0, "return": 2.0, "success": 1.0})
    assert [message["role"] for message in right.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert right.messages[3]["content"] == "6"
    (ledger,) = right.ledgers
    ledger.check()
    assert {*ledger.sources} >= {Source.PROMPT, Source.MODEL, Source.TOOL}
    assert (wrong.reward, wrong.reward_extra["success"]) == (0.0, 0.0)
    mistaken = await play(says(calls("nope", "{}"), calls("add", "[1]"), "it is 6"))
    assert "unknown tool 'nope'" in mistaken.messages[3]["content"]
    with pytest.raises(InfraError, match="environment sums: TaskError: .*this answer breaks the scorer"):
        await play(says("break"))
    (worker,) = (value for value in shared.values() if hasattr(value, "ask"))
    worker.close()
    shared.clear()  # the turns are a worker's for good
    cut = await play(says(add, add, "it is 6"), assistant_turns=2)
    assert (cut.turns, cut.finish, cut.reward) == (2, "max_turns", 0.0)


TURNS = {"single": ["it is 6"], "multi": ["it is 6", "yes, 6"], "tool": [calls("add", '{"a": 1, "b": 5}'), "it is 6"]}


@pytest.fixture
def older_python() -> Path:
    python = Path(os.environ.get("AGENTRL_OLDER_VERIFIERS", ""), "bin/python")
    if not python.exists():
        pytest.skip("AGENTRL_OLDER_VERIFIERS is no environment: run `make test-agents`")
    return python


@pytest.mark.parametrize("kind", TURNS)
async def test_environments_of_the_older_api(kind: str, older_python: Path, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("older_sums.py"), tmp_path)
    written = f"sums: {{verifiers: older-sums, python: {older_python}, kwargs: {{kind: {kind}}}, rows: 4, val_rows: 2}}"
    (tmp_path / "environments.yaml").write_text(written)
    row = environment_rows("sums", data=Data(environment_config_path=str(tmp_path / "environments.yaml")))[1]
    env, _ = environment(says(*TURNS[kind]), response_length=4000, prompt_length=4000, model_length=8000)
    trajectory = Trajectory(row, "t", 0)
    await OutsideAgent(env).run(trajectory, Sampling(max_new_tokens=400))
    (ledger,) = trajectory.ledgers
    ledger.check()
    assert trajectory.messages[:2] == row.prompt
    assert (trajectory.reward, trajectory.reward_extra["right"]) == (2.0, 1.0)
    assert trajectory.reward_extra["turns"] == trajectory.turns == len(TURNS[kind])
    if kind == "tool":
        assert trajectory.messages[3]["content"] == "6"
