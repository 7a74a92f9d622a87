"""`reward.launch_reward_fn_async`: scores are taken while the log-probs are, and change nothing else."""

import asyncio
import threading
from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.train import train
from agentrl.training import PolicyActor
from tests.e2e.conftest import figures

began = threading.Event()
"""A pass for log-probs has begun."""
events: list[str] = []


async def patient(solution_str: str, **_: object) -> float:
    """A score that comes only when the pass for log-probs has begun; async, so that it runs in the run's process."""
    if not await asyncio.to_thread(began.wait, 60):
        raise TimeoutError("no pass has begun")
    return await quick(solution_str)


async def quick(solution_str: str, **_: object) -> float:
    events.append("score")
    return len(solution_str) / 100


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note when a pass begins."""
    logprobs = PolicyActor.logprobs

    def telling(self, *given):
        events.append("logprobs")
        began.set()
        return logprobs(self, *given)

    monkeypatch.setattr(PolicyActor, "logprobs", telling)
    events.clear()
    began.clear()


def run(folder: Path, overrides: list[str], name: str, asynchronous: bool, *more: str) -> list[dict[str, float]]:
    """What two steps report, wall clock aside."""
    config = compose(
        [
            *overrides[1:],
            f"reward.custom_reward_function.name=tests.e2e.test_scoring_beside:{name}",
            f"reward.launch_reward_fn_async={asynchronous}",
            "data.train_batch_size=2",
            "rollout.n=2",
            "actor.ppo_mini_batch_size=1",  # two updates a step: the log-probs from before are needed
            "trainer.total_training_steps=2",
            "trainer.val_before_train=false",
            "data.val_files=null",
            f"trainer.default_local_dir={folder}",
            *more,
        ],
        config_name="tiny",
    )
    train(config)
    return figures(folder)


def test_a_score_may_wait_for_the_log_probs(tmp_path: Path, overrides: list[str], told: None) -> None:
    beside = run(tmp_path / "beside", overrides, "patient", True)
    assert events[0] == "logprobs"  # of the first step: every score waited for it
    assert events.count("score") == 2 * 4
    events.clear()
    before = run(tmp_path / "before", overrides, "quick", False)
    assert events.index("logprobs") == 4
    assert beside == before
    assert "actor/pg_loss" in beside[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_on_two_ranks(tmp_path: Path, overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A score comes only when the ranks are asked for log-probs; the metrics are those of one process that waits."""
    group = pytest.importorskip("agentrl.runtime.ray.worker_group").WorkerGroup
    scatter = group.scatter

    def telling(self, method, *args):
        if method == "compute_logprobs":
            began.set()
        return scatter(self, method, *args)

    monkeypatch.setattr(group, "scatter", telling)
    events.clear()
    began.clear()
    many = ["trainer.device=cpu", "trainer.n_gpus_per_node=2", "ray_init.num_cpus=4"]
    beside = run(tmp_path / "beside", overrides, "patient", True, *many)
    assert events == ["score"] * 8
    before = run(tmp_path / "before", overrides, "quick", False, "trainer.device=cpu")
    for mine, theirs in zip(beside, before, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)
