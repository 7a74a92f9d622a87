"""Conversations in processes of their own: the run is the same, and goes on when one of them is killed."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import compose
from agentrl.tracking import load_trajectories, read_metrics
from agentrl.tracking.metrics import is_wall_clock
from agentrl.train import train
from agentrl_sandbox.isolation import descendants
from tests.e2e.conftest import command, environment
from tests.e2e.test_ray import REWARD
from tests.e2e.test_ray_killed import gone, title
from tests.e2e.test_resume import lines
from tests.tasks.local_provider import ROOT

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TWO = [
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=2",
    "ray_init.address=local",
    "ray_init.num_cpus=4",
    "rollout.deterministic=false",
    "trainer.logger=[file]",
    "trainer.live=false",
]


BATCH_REWARD = """
def compute_score(data_sources, solution_strs, ground_truths, extra_infos=None, **_):
    return [len(solution_strs) + sum(map(ord, text)) % 11 / 10 for text in solution_strs]
"""


def rewarded(folder: Path, overrides: list[str]) -> list[str]:
    """The settings with a reward that differs between a tiny model's answers."""
    (folder / "reward.py").write_text(REWARD)
    reward = "reward.custom_reward_function"
    return [*overrides, *TWO, f"{reward}.path={folder / 'reward.py'}", f"{reward}.name=compute_score"]


def figures(folder: Path, *settings: str) -> list[dict[str, float]]:
    """The metrics of a run of three steps."""
    run = ["trainer.total_training_steps=3", f"trainer.default_local_dir={folder}"]
    train(compose([*settings[1:], *run], config_name="tiny"))
    return [{k: v for k, v in step.items() if not is_wall_clock(k)} for step in read_metrics(folder / "metrics.jsonl")]


def started(folder: Path, *settings: str) -> "subprocess.Popen[str]":
    """A run with two rollout workers that is past its first step."""
    args = [*settings, "rollout.agent.num_workers=2", f"trainer.default_local_dir={folder}"]
    process = subprocess.Popen(
        command("train", *args), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 400
    while lines(folder) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()[1]
    return process


def test_workers_change_no_metric(tmp_path: Path, overrides: list[str]) -> None:
    settings = rewarded(tmp_path, overrides)
    expected = figures(tmp_path / "without", *settings)
    found = figures(tmp_path / "with", *settings, "rollout.agent.num_workers=2")
    assert len(found) == len(expected) == 4
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    assert expected[-1]["actor/grad_norm"] > 0.01


def batch_rewarded(folder: Path, overrides: list[str]) -> list[str]:
    """The same with ReMax, and a function that sees all trajectories of a batch: it adds their number to each score."""
    settings = rewarded(folder, overrides)
    (folder / "reward.py").write_text(BATCH_REWARD)
    return [*settings, "reward.reward_manager.name=batch", "algorithm.adv_estimator=remax"]


def test_baselines_and_batch_rewards_are_the_same_with_workers(tmp_path: Path, overrides: list[str]) -> None:
    settings = batch_rewarded(tmp_path, overrides)
    expected = figures(tmp_path / "without", *settings)
    found = figures(tmp_path / "with", *settings, "rollout.agent.num_workers=2")
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    assert all(16 <= step["rollout/reward_mean"] < 17 for step in expected[1:])  # 4 prompts x 4
    assert all(4 <= step["rollout/baseline_mean"] < 5 for step in expected[1:])  # 4 greedy answers


def test_workers_sample_ahead_with_baselines_and_batch_rewards(tmp_path: Path, overrides: list[str]) -> None:
    """Requests end before an update: a turn has one version, and no token is older than the bound."""
    ahead = ["rollout.agent.num_workers=2", "trainer.max_staleness=2", "rollout.partial_rollout=false"]
    steps = figures(tmp_path / "run", *batch_rewarded(tmp_path, overrides), *ahead)[1:]
    assert len(steps) == 3
    assert all(20 <= step["rollout/reward_mean"] < 21 for step in steps)  # 4 prompts x 4 and their greedy answers
    assert all(20 <= step["rollout/baseline_mean"] < 21 for step in steps)
    assert 0 < max(step["staleness/max"] for step in steps) <= 2
    for dump in (tmp_path / "run/rollouts").glob("*.jsonl"):
        for record in load_trajectories(dump):
            assert all(map(one_version_a_turn, record["samples"]))


def one_version_a_turn(sample: dict[str, Any]) -> bool:
    """Whether no turn has two segments: a new version begins one."""
    turns = [segment["turn"] for segment in sample["segments"] if segment["mask"]]
    return len(turns) == len(set(turns)) > 0


@pytest.mark.parametrize("bound", [0, 2])
def test_a_killed_worker_costs_only_its_unfinished_conversations(
    tmp_path: Path, overrides: list[str], bound: int
) -> None:
    process = started(tmp_path, *rewarded(tmp_path, overrides), f"trainer.max_staleness={bound}")
    workers = [pid for pid in descendants(process.pid) if title(pid).startswith("ray::RolloutWorker")]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "rollout worker" in said
    assert "starts over" in said
    assert "resumes by itself" not in said
    steps = read_metrics(tmp_path / "metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(7))
    assert all(step.get("rollout/infra_drops", 0) == 0 for step in steps)


ESTIMATOR = """
def own(rewards, mask, cu_seqlens, trajectory, group):
    assert len(rewards) == len(mask) == int(cu_seqlens[-1]) > 100  # tokens, not lines
    scores = rewards.new_zeros(len(trajectory)).index_add(0, trajectory.repeat_interleave(cu_seqlens.diff()), rewards)
    return (scores - scores.mean()).repeat_interleave(cu_seqlens.diff()) * mask
"""


def test_a_killed_run_resumes_with_the_groups_under_way(tmp_path: Path, overrides: list[str]) -> None:
    """Their bodies are in the checkpoint, though the controller never had them; a user's estimator gets tokens."""
    (tmp_path / "own.py").write_text(ESTIMATOR)
    own = ["trainer.max_staleness=2", f"algorithm.adv_estimator={tmp_path / 'own.py'}:own"]
    settings = [*rewarded(tmp_path, overrides), *own]
    process = started(tmp_path, *settings)
    process.kill()
    process.communicate(timeout=60)
    train(
        compose(
            [*settings[1:], "rollout.agent.num_workers=2", f"trainer.default_local_dir={tmp_path}"], config_name="tiny"
        )
    )
    steps = read_metrics(tmp_path / "metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(7))
    assert any(step["actor/grad_norm"] > 0.01 for step in steps[1:])
    records = [each for step in range(1, 7) for each in load_trajectories(tmp_path / f"rollouts/{step}.jsonl")]
    assert len({each["key"] for each in records}) == len(records) == 6 * 4 * 4
    assert all(each["messages"] and each["samples"][0]["columns"]["ids"] for each in records)


def test_an_interrupt_ends_the_conversations_of_all_workers(tmp_path: Path, overrides: list[str]) -> None:
    process = started(tmp_path, *rewarded(tmp_path, overrides))
    workers = [pid for pid in descendants(process.pid) if title(pid).startswith("ray::RolloutWorker")]
    assert len(workers) == 2
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert process.returncode == 130
    assert gone(workers)


def test_containers_are_made_where_the_conversation_runs(
    tmp_path: Path, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "containers").mkdir()
    monkeypatch.setenv(ROOT, str(tmp_path / "containers"))
    container = {"verify": "tr '\\0' ' ' < /proc/$PPID/cmdline >&2; echo $((RANDOM % 2))"}
    row = json.dumps({"prompt": "Write 5.", "extra_info": {"container": container}})
    (tmp_path / "rows.jsonl").write_text(f"{row}\n" * 16)
    steps = figures(
        tmp_path,
        *overrides,
        *TWO,
        f"data.train_files={tmp_path / 'rows.jsonl'}",
        "data.val_files=null",
        "trainer.val_before_train=false",
        "rollout.agent.num_workers=2",
        "rollout.containers.provider=tests.tasks.local_provider:LocalProvider",
        "rollout.containers.max_starting=2",
        f"trainer.rollout_data_dir={tmp_path / 'rollouts'}",
    )
    assert all(step["tasks/share"] == 1.0 and 0 < step["tasks/success"] < 1 for step in steps)
    dumps = [json.loads(line) for file in (tmp_path / "rollouts").glob("*.jsonl") for line in file.open()]
    assert all("ray::RolloutWorker" in dump["extra"]["task"]["output"] for dump in dumps)
    assert not list((tmp_path / "containers").iterdir())
