"""Agent loops by name: built in, listed in YAML, or a user's own beside the run or the YAML."""

import sys
from pathlib import Path

import pytest

from agentrl.core.errors import UserError
from agentrl.rollout.loops import SingleTurn, loop_class, loop_name

MINE = "from agentrl.rollout.loops import SingleTurn\n\n\nclass Mine(SingleTurn):\n    pass\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which the import path does not have: so it is under an installed command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".")])
    return tmp_path


def test_a_loop_of_ones_own_lies_in_the_current_folder(folder: Path) -> None:
    (folder / "loop_here.py").write_text(MINE)
    assert issubclass(loop_class("loop_here.Mine", None, "loop_here.Mine"), SingleTurn)


def test_or_beside_the_yaml_that_lists_it(folder: Path) -> None:
    (folder / "else").mkdir()
    (folder / "else" / "loop_there.py").write_text(MINE)
    (folder / "else" / "loops.yaml").write_text("- name: mine\n  _target_: loop_there.Mine\n")
    assert issubclass(loop_class("mine", "else/loops.yaml"), SingleTurn)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("1 / 0", "loop_broken.Mine", "agent loop: loop_broken.Mine.*ZeroDivisionError"),
        (MINE, "loop_other.Yours", "has no class 'Yours'"),
        ("class Mine:\n    pass\n", "loop_stray.Mine", "is not an AgentLoop"),
        ("", "nowhere", "agent loop 'nowhere' is unknown: use one of single_turn, .*tool_agent"),
    ],
)
def test_mistakes_are_named_in_a_line(folder: Path, text: str, name: str, message: str) -> None:
    (folder / f"{name.partition('.')[0]}.py").write_text(text)
    with pytest.raises(UserError, match=message):
        loop_class(name, None, name)


def test_a_row_names_no_code_by_its_path(folder: Path) -> None:
    (folder / "loop_evil.py").write_text("open('ran', 'w')\n")
    with pytest.raises(UserError, match=r"'loop_evil.Mine' is unknown.*agent_loop_config_path"):
        loop_class(loop_name("loop_evil.Mine", "tool_agent", multi_turn=True), None, "tool_agent")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("text", ["name: x", "- 1", "- [a", "- {name: x}"])
def test_a_yaml_that_lists_no_loops_is_named(folder: Path, text: str) -> None:
    (folder / "loops.yaml").write_text(text)
    with pytest.raises(UserError, match=r"loops\.yaml"):
        loop_class("x", "loops.yaml")


@pytest.mark.prevents("a row without `agent_name` silently trains without tools")
def test_a_row_without_agent_name_meets_the_tools() -> None:
    assert loop_class(loop_name(None, None, multi_turn=True)).uses_tools
    assert not loop_class(loop_name(None, None, multi_turn=False)).uses_tools
    assert loop_class(loop_name(None, "tool_agent", multi_turn=False)).uses_tools
    assert not loop_class(loop_name("single_turn_agent", "tool_agent", multi_turn=True)).uses_tools
