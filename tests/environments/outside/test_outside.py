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


OLDER = {
    "verifiers/__init__.py": """
import json, urllib.request

class Rows(list):
    def select(self, numbers):
        return Rows(self[n] for n in numbers)

    def __getitem__(self, key):
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)

class Older:
    max_turns = 10

    def get_dataset(self):
        user = {"role": "user", "content": "Add.", "tool_calls": None}
        return Rows({"prompt": f"What is {n} ?" if n else [user]} for n in range(6))

    async def GENERATE(self, inputs, client, model):
        (row,) = inputs
        url = str(getattr(client, "base_url", None) or client)
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": row["prompt"]}]}).encode()
        where, about = f"{url.rstrip('/')}/chat/completions", {"Content-Type": "application/json"}
        request = urllib.request.Request(where, body, about)
        import asyncio
        answer = json.load(await asyncio.to_thread(urllib.request.urlopen, request))
        said = answer["choices"][0]["message"]["content"]
        return RESULT

def load_environment(id, **kwargs):
    import older_sum
    return older_sum.load_environment(**kwargs)
""",
    "older_sum.py": "from verifiers import Older\n\ndef load_environment(limit=None):\n    return Older()\n",
    "verifiers-0.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: verifiers\nVersion: 0.9\n",
}
RESULTS = {
    "a_generate": '__import__("types").SimpleNamespace(reward=[float(said)], metrics={"x": [2.0]})',
    "generate": '{"outputs": [{"reward": float(said), "metrics": {"x": 2.0}, "stop_condition": "max_turns_reached"}]}',
}


def older(folder: Path, generate: str, result: str, **files: str) -> Data:
    """Stands for a release of verifiers with the older API, with an environment."""
    for name, text in {**OLDER, **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text.replace("GENERATE", generate).replace("RESULT", result))
    written = f"sum: {{verifiers: me/older-sum, python: {sys.executable}, rows: 4, val_rows: 2}}"
    (folder / "environments.yaml").write_text(written)
    return Data(environment_config_path=str(folder / "environments.yaml"))


@pytest.mark.parametrize("generate", RESULTS)
async def test_environments_of_verifiers_older_api(tmp_path: Path, generate: str) -> None:
    data = older(tmp_path, generate, RESULTS[generate])
    shared: dict[Any, Any] = {}
    assert environment_rows("sum", data=data)[0].prompt == [{"role": "user", "content": "Add."}]
    trajectory = await played(made(says("7"), shared), data, name="sum")
    assert [message["content"] for message in trajectory.messages] == ["What is 1 ?", "7"]
    assert (trajectory.reward, trajectory.reward_extra["x"], trajectory.turns) == (7.0, 2.0, 1)
    with pytest.raises(InfraError, match="environment sum: ValueError: could not convert string to float"):
        await played(made(says("seven"), shared), data, name="sum")
    (worker,) = (value for value in shared.values() if isinstance(value, Worker))
    worker.close()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"verifiers/__init__.py": ""},
            "me/older-sum is written for the older API, which verifiers 0.9 in .* does not have: .* 'verifiers<0.4'`",
        ),
        (
            {"older_sum.py": "x = 1"},
            "me/older-sum is written for a newer API than that of verifiers 0.9 in .*: run .* -U",
        ),
    ],
    ids=["older", "newer"],
)
def test_environments_of_another_api_than_that_of_verifiers(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    data = older(tmp_path, "generate", "{}", **files)
    with pytest.raises(UserError, match=message):
        environment_rows("sum", data=data)
