"""Agent programs started by rollout workers: recorded, rewarded with their folders at hand, and ended."""

import json
from pathlib import Path

import pytest

from agentrl.tracking import read_metrics
from tests.e2e.conftest import agentrl
from tests.e2e.test_rollout_workers import TWO
from tests.gateway.test_programs import PLAIN, written

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REWARD = """
from pathlib import Path


def compute_score(data_source, solution_str, ground_truth, extra_info):
    made = Path(extra_info["program"]["folder"], "result.txt").read_text()
    return float(made == "done" and len(solution_str) % 2)
"""


def test_agents_run_in_rollout_workers(tmp_path: Path, overrides: list[str]) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    agents = written(tmp_path, PLAIN, timeout=120)
    settings = [
        *overrides,
        *TWO,
        f"reward.custom_reward_function.path={tmp_path / 'reward.py'}",
        "reward.custom_reward_function.name=compute_score",
        f"rollout.agent.agent_loop_config_path={agents}",
        "rollout.agent.default_agent_loop=mine",
        "rollout.agent.num_workers=2",
        "trainer.total_training_steps=2",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        f"trainer.default_local_dir={tmp_path / 'run'}",
    ]
    agentrl("train", *settings)
    steps = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step.get("rollout/infra_drops", 0) == 0 for step in steps)
    kept = [json.loads(line) for file in (tmp_path / "run/rollouts").glob("*.jsonl") for line in file.open()]
    assert {line["extra"]["gateway"]["ledgers"] for line in kept} == {1}
    assert {line["turns"] for line in kept} == {2}
    folders = {line["extra"]["program"]["folder"] for line in kept}
    assert len(folders) == len(kept)
    assert not any(Path(folder).exists() for folder in folders)
