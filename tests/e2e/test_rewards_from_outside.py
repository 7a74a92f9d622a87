"""Rewards by other people's code in whole runs: alarms, hangs, not-a-numbers, and managers that ask for validation."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from agentrl.config import compose
from agentrl.core.resources import share
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


class Frozen(BaseHTTPRequestHandler):
    """A frozen model: it wants something, and as a judge counts the letters of what it reads."""

    keys: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        self.keys.add(self.headers["Authorization"])
        text = f"Score: {len(said) % 10}" if said.startswith("Score") else "I want 2 + 3 ."
        answer = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


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
@pytest.mark.prevents("a run trains on what a simulated user or a judge said")
def test_a_customer_an_assistant_and_a_judge_by_their_names(
    tmp_path: Path, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Frozen)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("FROZEN_URL", f"http://127.0.0.1:{server.server_port}/v1")
    agent = [f"rollout.agent.agent_loop_config_path={share() / 'agents/support.yaml'}"]
    agent += ["rollout.agent.default_agent_loop=support", "data.max_prompt_length=256"]
    settings = ["data.train_batch_size=2", "actor.ppo_mini_batch_size=2", "trainer.total_training_steps=1"]
    done = run(tmp_path, overrides, *agent, *settings, "rollout.n=2", "data.max_response_length=8")
    server.shutdown()
    kept = load_trajectories(done / "rollouts/1.jsonl")
    for rollout in kept:
        customer, judge = rollout["extra"]["gateway"]["others"]
        assert (customer["model"], len(customer["messages"]), judge["model"]) == ("customer", 3, "judge")
        score = judge["answer"]["choices"][0]["message"]["content"].removeprefix("Score: ")
        assert rollout["reward"] == int(score) / 10
        roles = [message["role"] for message in rollout["messages"]]
        assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert len(kept) == 4


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
