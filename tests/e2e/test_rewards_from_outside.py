"""Rewards by other people's code in whole runs: alarms, hangs, not-a-numbers, and managers that ask for validation."""

import json
import threading
from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.tracking import load_trajectories, read_metrics
from agentrl.train import train
from tests.waiting import wait_for

pytestmark = pytest.mark.integration

REWARD = """
import signal, time

def compute_score(data_source, solution_str, ground_truth, trajectory):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)
    while trajectory.sample == 3 and trajectory.key.startswith("1/"):
        time.time()
    signal.alarm(0)
    return len(solution_str) % 7 / 7
"""
MANAGER = """
import json
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

class Mine(RewardManagerBase):
    async def run_single(self, data):
        seen = [data.meta_info["validate"], data[0].meta_info["validate"], len(data.non_tensor_batch["uid"])]
        with open(FILE, "a") as file:
            file.write(json.dumps(seen) + "\\n")
        return {"reward_score": float(data.batch["responses"].sum() % 7), "reward_extra_info": {}}
"""
MID = """
class Mid:
    def reset(self, seed):
        self.turns, self.seed = 0, seed
        return "Say a word.", {}

    def step(self, action):
        self.turns += 1
        broken = self.seed % 4 == 1 and self.turns == 1
        return "again", float("nan") if broken else float(len(action) % 3), self.turns == 2, False, {}
"""


def run(folder: Path, overrides: list[str], *settings: str) -> Path:
    common = ["rollout.n=4", "data.max_response_length=16", "trainer.live=false", "trainer.save_freq=-1"]
    common += [
        "rollout.max_infra_drop_share=1",
        "rollout.infra_retries=0",
        f"trainer.default_local_dir={folder / 'run'}",
    ]
    train(compose([*overrides[1:], *common, "data.val_files=null", *settings], config_name="tiny"))
    return folder / "run"


@pytest.mark.timeout(600)
def test_a_reward_that_hangs_costs_its_sample_alone(tmp_path: Path, overrides: list[str]) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    threads = threading.active_count()
    path = f"reward.custom_reward_function.path={tmp_path / 'reward.py'}"
    settings = [path, "reward.custom_reward_function.name=compute_score", "reward.timeout=2"]
    done = run(tmp_path, overrides, *settings, "trainer.total_training_steps=2")
    first, second = read_metrics(done / "metrics.jsonl")[-2:]
    assert (first["rollout/infra_drops"], second["rollout/infra_drops"]) == (4.0, 0.0)
    errors = {t["error"] for t in load_trajectories(done / "rollouts/1.jsonl") if t["sample"] == 3}
    assert len(errors) == 1
    assert "reward function compute_score failed: TimeoutError: no answer within 2 s" in errors.pop()
    assert wait_for(lambda: threading.active_count() <= threads + 1)  # idle ones end; tqdm's own may stay


@pytest.mark.timeout(600)
def test_a_manager_written_for_verl_knows_a_validation(tmp_path: Path, overrides: list[str]) -> None:
    (tmp_path / "mine.py").write_text(f"FILE = {str(tmp_path / 'seen')!r}\n{MANAGER}")
    named = [f"module.path={tmp_path / 'mine.py'}", "name=Mine"]
    settings = [f"reward.reward_manager.{setting}" for setting in named]
    (rows,) = (setting for setting in overrides if setting.startswith("data.val_files="))
    run(tmp_path, overrides, *settings, rows, "trainer.total_training_steps=1", "trainer.val_before_train=true")
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert seen[:8] == [[True, True, 1]] * 8
    assert seen[8:24] == [[False, False, 1]] * 16


@pytest.mark.timeout(600)
def test_a_number_that_is_none_on_a_turn_costs_its_trajectory_alone(tmp_path: Path, overrides: list[str]) -> None:
    (tmp_path / "mid.py").write_text(MID)
    (tmp_path / "environments.yaml").write_text('mid: {gymnasium: "mid.py:Mid", rows: 4}')
    settings = ["data.train_files=env:mid", f"data.environment_config_path={tmp_path / 'environments.yaml'}"]
    settings += ["trainer.total_training_steps=1", "data.max_response_length=64"]
    step = read_metrics(run(tmp_path, overrides, *settings) / "metrics.jsonl")[-1]
    assert step["rollout/infra_drops"] == 4.0
    assert not step.get("actor/skipped_steps")
    assert step["actor/grad_norm"] > 0
    dumped = load_trajectories(tmp_path / "run/rollouts/1.jsonl")
    assert sum("gave the reward nan" in (t["error"] or "") for t in dumped) == 4
