"""A run that infrastructure leaves too little of stops with a reason, and goes on later as if nothing had happened."""

from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.core.errors import UserError
from agentrl.tracking import load_trajectories, read_metrics
from agentrl.train import train
from agentrl.trajectory.drops import TooManyDrops
from tests.e2e.conftest import figures

pytestmark = pytest.mark.integration

REWARD = """
from pathlib import Path

def compute_score(data_source, solution_str, ground_truth, trajectory):
    step, *_, sample = trajectory.key.split("/")
    if Path({flag!r}).exists() and step == "2" and sample != "0":
        raise ConnectionError("grader 10.0.0." + sample + " refused")
    return len(solution_str) % 7 / 7
"""


def run(tmp_path: Path, overrides: list[str], folder: Path, *more: str) -> None:
    """Two steps with `reward.py`."""
    settings = [
        *overrides[1:],
        "rollout.n=4",
        "data.max_response_length=8",
        "data.val_files=null",
        f"reward.custom_reward_function.path={tmp_path / 'reward.py'}",
        "reward.custom_reward_function.name=compute_score",
        "reward.launch_reward_fn_async=true",
        "trainer.live=false",
        "trainer.val_before_train=false",
        "trainer.save_freq=-1",
        "trainer.total_training_steps=2",
        f"trainer.default_local_dir={folder}",
        *more,
    ]
    train(compose(settings, config_name="tiny"))


@pytest.mark.timeout(600)
def test_it_stops_and_goes_on(tmp_path: Path, overrides: list[str]) -> None:
    """Scores come while log-probs are computed; `runtime/test_sampler.py` has them come before."""
    flag = tmp_path / "broken"
    (tmp_path / "reward.py").write_text(REWARD.format(flag=str(flag)))
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(tmp_path, overrides, whole)
    flag.touch()
    with pytest.raises(TooManyDrops) as caught:
        run(tmp_path, overrides, stopped)
    message = str(caught.value)
    assert message.startswith("step 2: infrastructure failures took ")
    lost = int(message.split()[5])
    assert lost in range(9, 13), "more than half: the run stops as soon as so many scores failed"
    assert f"took {lost} of 16 trajectories, more than rollout.max_infra_drop" in message
    assert f"cause ({lost} of {lost}): reward function compute_score failed: ConnectionError" in message
    assert message.endswith("fix that, then start the run again: with trainer.resume_mode=auto it resumes after step 1")
    assert [path.name for path in (stopped / "checkpoints").iterdir()] == ["global_step_1"]
    assert sum(t["error"] is not None for t in load_trajectories(stopped / "rollouts" / "2.jsonl")) in range(lost, 13)
    flag.unlink()
    run(tmp_path, overrides, stopped)
    assert figures(stopped) == figures(whole)
    assert [step["rollout/infra_drop_share"] for step in figures(whole)] == [0.0, 0.0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scored", ["true", "false"], ids=["with_log_probs", "before_log_probs"])
def test_a_mistake_that_shows_in_a_later_step_leaves_a_checkpoint(
    tmp_path: Path, overrides: list[str], scored: str
) -> None:
    flag = tmp_path / "broken"
    flag.touch()
    source = REWARD.format(flag=str(flag)).replace("ConnectionError(", "UserError(")
    (tmp_path / "reward.py").write_text(f"from agentrl.core.errors import UserError\n{source}")
    with pytest.raises(UserError, match=r"^step 2: grader 10\.0\.0\.\d refused, .* it resumes after step 1$"):
        run(tmp_path, overrides, tmp_path / "run", f"reward.launch_reward_fn_async={scored}")
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["global_step_1"]
    flag.unlink()
    run(tmp_path, overrides, tmp_path / "run", f"reward.launch_reward_fn_async={scored}")
    assert [step["step"] for step in read_metrics(tmp_path / "run/metrics.jsonl")] == [1, 2]
