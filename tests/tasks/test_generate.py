"""`agentrl data`, as it is typed."""

from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.config import compose


@pytest.mark.parametrize("task", ["arithmetic", "bank", "lookup", "programs", "reasoning_gym:chain_sum"])
def test_the_settings_it_prints_make_a_valid_run(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", task, "--out", str(tmp_path), "--train", "20", "--val", "5"]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path}/train.parquet: 20 rows" in out
    settings = out.partition("agentrl train ")[2].replace("\\\n", " ").split()
    config = compose([setting.replace("MODEL", str(tmp_path)) for setting in settings])
    assert config.data.train_files == str(tmp_path / "train.parquet")
    assert config.rollout.multi_turn.enable == (task != "reasoning_gym:chain_sum")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["arithmatic"], "TASK=arithmatic: did you mean arithmetic?"),
        (["bank", "--difficulty", "easy"], "--difficulty is no option of the task bank"),
        (["arithmetic", "--difficulty", "hard"], "invalid choice: 'hard'"),
    ],
)
def test_mistakes_end_with_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_help_shows_each_tasks_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["data", "--help"])
    out = capsys.readouterr().out
    assert "--sloppiness P" in out
    assert "--towns N" in out
