"""`-m`: a run for each combination of values."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from agentrl.cli import sweep
from agentrl.cli.main import main
from agentrl.core.errors import UserError


def named(*overrides: str) -> list[str]:
    return [job.name for job in sweep.jobs(overrides)]


def test_every_combination_is_a_run() -> None:
    found = sweep.jobs(["actor.optim.lr=1e-6,1e-5", "trainer.seed=3", "rollout.n=4,8"])
    assert [job.name for job in found] == ["lr-1e-06_n-4", "lr-1e-06_n-8", "lr-1e-05_n-4", "lr-1e-05_n-8"]
    assert found[1].overrides == ["actor.optim.lr=1e-06", "trainer.seed=3", "rollout.n=8"]


def test_names_tell_runs_apart() -> None:
    assert named("actor.optim.lr=1,2", "critic.optim.lr=3") == ["lr-1", "lr-2"]
    assert named("actor.optim.lr=1,2", "critic.optim.lr=3,4")[0] == "actor.optim.lr-1_critic.optim.lr-3"
    assert named("data.train_files=a/b,a?b") == ["train_files-a-b_0", "train_files-a-b_1"]


def test_ranges_choices_and_presets() -> None:
    assert named("rollout.n=range(4,8,2)") == ["n-4", "n-6"]
    assert named("algorithm=choice(rloo,grpo)") == ["algorithm-rloo", "algorithm-grpo"]


@pytest.mark.parametrize("override", ["rollout.n=4", "actor.optim.lr=interval(0,1)", "algorithm=glob(*)"])
def test_what_cannot_be_swept_is_said(override: str) -> None:
    with pytest.raises(UserError, match="-m"):
        sweep.jobs([override])


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would run; a run with rollout.n=8 fails."""
    lines: list[list[str]] = []

    def run(arguments: list[str]) -> int:
        lines.append(arguments)
        return 1 if "rollout.n=8" in arguments else 0

    monkeypatch.setattr(sweep, "_run", run)
    return lines


REWARD = "reward.custom_reward_function.name=agentrl.rewards.scorers:final_number"
SETTINGS = (REWARD, "trainer.default_local_dir=here", "data.train_files=a.parquet", "model.path=m")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files of SETTINGS are."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text("{}")
    (tmp_path / "a.parquet").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_are_checked_before_one_runs(
    started: list[list[str]], capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert main(["train", "-m", "rollout.n=4,eight", *SETTINGS]) == 2
    assert started == []
    assert "rollout.n=eight: must be int" in capsys.readouterr().err


def test_a_run_that_fails_does_not_stop_the_others(
    started: list[list[str]], capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "here/n-4").mkdir(parents=True)
    (folder / "here/n-4/metrics.jsonl").write_text(json.dumps({"step": 3, "val/success": 0.25}) + "\n")
    assert main(["train", "--multirun", "rollout.n=4,8", *SETTINGS]) == 1
    out, err = capsys.readouterr()
    assert [line[-2] for line in started] == [f"trainer.default_local_dir='{folder}/here/n-{n}'" for n in (4, 8)]
    assert started[0][-1] == "trainer.experiment_name='run-n-4'"
    assert "val/success 0.25" in out
    assert "failed, exit code 1" in out
    assert "1 of 2 runs failed" in err


def test_an_interrupt_ends_the_sweep_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Child:
        waits = iter([KeyboardInterrupt(), 0])

        def wait(self) -> int:
            code = next(self.waits)
            if isinstance(code, KeyboardInterrupt):
                raise code
            return code

    monkeypatch.setattr(subprocess, "Popen", lambda _: Child())
    assert sweep._run(["train"]) == 130


def test_the_recipe_for_wandb_starts_a_run_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    page = Path(__file__).parents[2] / "docs/sweeps.md"
    command = yaml.safe_load(page.read_text().partition("```yaml\n")[2].partition("```")[0])["command"]
    chosen = {"actor.optim.lr": {"value": 2.5e-05}, "rollout.n": {"value": 4}}
    values = utils.create_sweep_command_args({"args": chosen})["args_no_hyphens"]
    monkeypatch.setenv("WANDB_RUN_ID", "ab12")
    parts = utils.create_sweep_command(command)
    arguments = [word for part in parts for word in (values if part == "${args_no_hyphens}" else [part])]
    with pytest.raises(SystemExit):
        main([*arguments[1:], "--cfg=job"])
    composed = yaml.safe_load(capsys.readouterr().out)
    assert (composed["actor"]["optim"]["lr"], composed["rollout"]["n"]) == (2.5e-05, 4)
    assert composed["trainer"]["default_local_dir"] == str(folder / "runs/ab12")
