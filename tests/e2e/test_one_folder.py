"""Two experiments in one folder, and a run that is interrupted: what a person is told, and what is lost."""

from pathlib import Path

import pytest

from agentrl.cli.main import main
from tests.e2e.conftest import figures

pytestmark = pytest.mark.integration

REWARD = """
import os, signal
from pathlib import Path

flag = Path({flag!r})

def compute_score(data_source, solution_str, ground_truth, trajectory):
    if flag.exists() and trajectory.key.startswith(flag.read_text()):
        flag.unlink()
        os.kill(os.getppid(), signal.SIGINT)  # the run, which this process scores for
    return len(solution_str) % 7 / 7
"""


@pytest.fixture
def settings(tmp_path: Path, overrides: list[str]) -> list[str]:
    (tmp_path / "reward.py").write_text(REWARD.format(flag=str(tmp_path / "flag")))
    return [
        "train",
        *[each for each in overrides if "save_freq" not in each],
        "rollout.n=2",
        "data.max_response_length=8",
        "data.val_files=null",
        f"reward.custom_reward_function.path={tmp_path / 'reward.py'}",
        "reward.custom_reward_function.name=compute_score",
        "trainer.live=false",
        "trainer.total_training_steps=3",
    ]


def said(capfd: pytest.CaptureFixture[str]) -> str:
    captured = capfd.readouterr()
    return " ".join((captured.out + captured.err).split())


@pytest.mark.prevents("Ctrl-C loses the work since the last checkpoint")
@pytest.mark.timeout(600)
def test_an_interrupted_run_and_other_experiments_in_its_folder(
    tmp_path: Path, settings: list[str], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([*settings, f"trainer.default_local_dir={whole}"]) == 0
    mine = [*settings, f"trainer.default_local_dir={broken}"]
    flag = tmp_path / "flag"

    # Ctrl-C in the first step, and in the second: nothing that was learned is lost.
    for keys, words in (
        ("1/", "no step was finished, so nothing is lost; the same command starts over"),
        ("2/", "step 1 is saved; the same command resumes from step 1"),
    ):
        flag.write_text(keys)
        capfd.readouterr()
        assert main(mine) == 130
        assert words in said(capfd)
    assert [path.name for path in (broken / "checkpoints").glob("global*")] == ["global_step_1"]

    # Another experiment in the same folder is refused.
    changed = [*mine, "model.lora_rank=4", "rollout.n=4"]
    assert main(changed) == 2
    refused = said(capfd)
    assert "model.lora_rank: 0 -> 4, rollout.n: 2 -> 4" in refused
    assert "trainer.resume_mode=disable" in refused
    assert main(mine) == 0
    assert "Resuming from step 1." in said(capfd)
    assert "settings changed" not in caplog.text
    assert figures(broken) == figures(whole)

    # Once more: all is done, and that is said.
    assert main(mine) == 0
    assert "This run has finished: all 3 steps are taken" in said(capfd)
