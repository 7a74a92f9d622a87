"""`agentrl verl` says which verl a script was written for to all that the script starts."""

import os
from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl_verl import programs
from agentrl_verl.reading.versions import VARIABLE


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str | None]:
    """What VARIABLE was when the command started; PATH and PYTHONPATH are put back."""
    seen: list[str | None] = []
    monkeypatch.setattr(os, "execvp", lambda *_: seen.append(os.environ.get(VARIABLE)))
    for name in ("PATH", "PYTHONPATH", VARIABLE):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.delenv(VARIABLE)
    monkeypatch.chdir(tmp_path)
    return seen


def script(folder: Path, version: str) -> Path:
    (folder / "verl/version").mkdir(parents=True)
    (folder / "verl/version/version").write_text(version)
    (folder / "examples").mkdir()
    (folder / "examples/run.sh").write_text("true\n")
    return folder / "examples/run.sh"


def test_as_it_is_said(started: list[str | None], tmp_path: Path) -> None:
    run = script(tmp_path / "checkout", "0.5.0\n")
    main(["verl", "--as", "0.7.1", "bash", str(run), "--as", "0.4"])
    assert started == ["0.7 --as"]


def test_the_scripts_own_checkout(started: list[str | None], tmp_path: Path) -> None:
    run = script(tmp_path / "checkout", "0.8.0.dev\n")
    main(["verl", "bash", str(run)])
    assert started == [f"0.8 {tmp_path / 'checkout/verl/version/version'}"]


def test_the_environment_stays(started: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = script(tmp_path / "checkout", "0.8.0.dev\n")
    monkeypatch.setenv(VARIABLE, "0.6")
    main(["verl", "bash", str(run)])
    assert started == ["0.6"]


def test_nothing_is_known(started: list[str | None]) -> None:
    main(["verl", "bash", "run.sh"])
    assert started == [None]


def test_no_version(started: list[str | None], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verl", "--as", "newest", "bash", "run.sh"]) == 2
    assert "'newest' is no version of verl (--as): choose 0.4, 0.5" in capsys.readouterr().err
    assert not started


def test_a_program_brings_its_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever file it names, and with verl's own file where it names none."""
    monkeypatch.setenv(VARIABLE, "0.6")
    monkeypatch.setattr(programs, "become", main)
    (tmp_path / "mine.yaml").write_text("trainer: {total_epochs: 2}\n")
    for args in ([], [f"--config-path={tmp_path}", "--config-name=mine"]):
        with pytest.raises(SystemExit):
            programs.run("verl.trainer.main_ppo", [*args, "--cfg", "job", "++data.max_prompt_length=64"])
        out = capsys.readouterr().out
        assert "adv_estimator: gae" in out
        assert ("total_epochs: 30" in out) == (not args)
    with pytest.raises(SystemExit):
        programs.run("verl.trainer.fsdp_sft_trainer", ["--cfg", "job"])
    assert "max_length: 1024" in capsys.readouterr().out
