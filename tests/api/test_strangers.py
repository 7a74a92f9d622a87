"""Runs on what other people made: verifiers that fail, task folders that ask for secrets, a run's folder."""

from pathlib import Path
from typing import Any

import pytest

import agentrl
from tests.tasks.harbor.test_reading import PLAIN, write
from tests.tasks.local_provider import ROOT

pytestmark = pytest.mark.integration

Settings = dict[str, Any]
LIMIT = 0.2
VERIFIED = [
    {"image": "i", "verify": "echo 1"},
    {"image": "i", "verify": "sleep 60", "verify_timeout": LIMIT},
]


@pytest.mark.parametrize("choice", ["mask", "zero"])
def test_a_verification_that_takes_too_long(
    choice: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "containers").mkdir()
    monkeypatch.setenv(ROOT, str(tmp_path / "containers"))
    rows = [{"prompt": f"Write {i}.", "extra_info": {"container": container}} for i, container in enumerate(VERIFIED)]
    settings |= {"rollout.containers.provider": "tests.tasks.local_provider:LocalProvider", "reward.on_failure": choice}
    settings["trainer"]["total_training_steps"] = 1
    metrics = agentrl.train(settings, rows=rows).history[-1]
    masked, zero = (2, 0) if choice == "mask" else (0, 2)
    assert (metrics["rollout/no_verdict_masked"], metrics["rollout/no_verdict_zero"]) == (masked, zero)
    assert (metrics["rollout/infra_drops"], metrics["rollout/reward_mean"]) == (masked, 1.0 if masked else 0.5)


@pytest.mark.parametrize("choice", ["mask", "zero"])
def test_a_judge_that_fails(choice: str, settings: Settings, rows: list[dict[str, Any]]) -> None:
    async def judge(data_source: str, solution_str: str, ground_truth: str) -> float:
        if int(ground_truth) % 2:
            raise ConnectionError("the judge does not answer")
        return 1.0

    settings |= {"reward.on_failure": choice}
    settings["trainer"]["total_training_steps"] = 1
    settings["data"]["train_batch_size"] = settings["actor.ppo_mini_batch_size"] = 4
    metrics = agentrl.train(settings, rows=rows, reward=judge).history[-1]
    masked, zero = (4, 0) if choice == "mask" else (0, 4)
    assert (metrics["rollout/no_verdict_masked"], metrics["rollout/no_verdict_zero"]) == (masked, zero)
    assert metrics["rollout/reward_mean"] == (1.0 if masked else 0.5)


def test_a_task_that_asks_for_a_secret(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_123")
    write(tmp_path / "tasks/a", PLAIN | {"task.toml": "[environment.env]\nTOKEN = '${HF_TOKEN}'"})
    settings["data"] |= {"train_files": f"tasks:{tmp_path}/tasks", "train_batch_size": 1}
    settings["actor.ppo_mini_batch_size"] = 1
    line = r"HF_TOKEN: allow it with rollout.containers.pass_env=\[HF_TOKEN\], or leave the task out"
    with pytest.raises(agentrl.UserError, match=line):
        agentrl.train(settings)
