"""A run that infrastructure leaves too little of stops with a reason, and goes on later as if nothing had happened."""

from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.tracking import load_trajectories
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


@pytest.mark.timeout(600)
def test_it_stops_and_goes_on(tmp_path: Path, overrides: list[str]) -> None:
    """Scores come while log-probs are computed; `runtime/test_sampler.py` has them come before."""
    flag = tmp_path / "broken"
    (tmp_path / "reward.py").write_text(REWARD.format(flag=str(flag)))

    def run(folder: Path) -> None:
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
        ]
        train(compose(settings, config_name="tiny"))

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(whole)
    flag.touch()
    with pytest.raises(TooManyDrops) as caught:
        run(stopped)
    message = str(caught.value)
    assert message.startswith(
        "step 2: infrastructure failures took 12 of 16 trajectories, more than rollout.max_infra_drop"
    )
    assert "the most frequent cause (12 of 12): reward function compute_score failed: ConnectionError" in message
    assert message.endswith("fix that, then start the run again: with trainer.resume_mode=auto it resumes after step 1")
    assert [path.name for path in (stopped / "checkpoints").iterdir()] == ["global_step_1"]
    assert sum(t["error"] is not None for t in load_trajectories(stopped / "rollouts" / "2.jsonl")) == 12
    flag.unlink()
    run(stopped)
    assert figures(stopped) == figures(whole)
    assert [step["rollout/infra_drop_share"] for step in figures(whole)] == [0.0, 0.0]
