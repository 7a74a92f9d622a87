"""Mistakes that newcomers make: one line each, with culprit, fix and exit code."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from agentrl.cli.main import main
from tests.cli.mistakes import MISTAKES, Mistake, complaints, prepare
from tests.cli.mistakes_in_values import FURTHER

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder. Modules of one test are not found by another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".")])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name in ("search_tool", "user", "loop", "reward"):
            del sys.modules[name]


@pytest.mark.prevents("a mistake in a tool, a row or a folder is found after the model is loaded, or at the first call")
@pytest.mark.parametrize("mistake", [*MISTAKES, *FURTHER], ids=lambda mistake: mistake.kind)
def test_a_mistake_is_one_line(
    mistake: Mistake, folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    arguments = prepare(mistake, folder)
    before = sorted(folder.rglob("*"))
    try:
        code = main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    assert complaints(mistake, code, out, err + caplog.text) == []
    left = [path for path in sorted(folder.rglob("*")) if path not in before and "__pycache__" not in path.parts]
    assert left == [], "a command that is refused leaves nothing behind"


def test_there_are_as_many_kinds_as_were_met() -> None:
    assert len([*MISTAKES, *FURTHER]) >= 200
    assert max(Counter(mistake.kind for mistake in [*MISTAKES, *FURTHER]).values()) == 1
