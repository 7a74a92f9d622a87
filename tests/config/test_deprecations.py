"""An old name of a key works, with one line about its end, until the version that drops it."""

from datetime import date
from pathlib import Path

import pytest
from packaging.version import Version

import agentrl
from agentrl.cli.main import main
from agentrl.config import names, resolve
from agentrl.config.deprecations import DEPRECATED, Deprecation
from agentrl.config.keys import schema_keys, schema_sections
from agentrl.config.schema.commands import SCHEMAS

PAGE = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
KEYS = {path for schema in SCHEMAS.values() for path in (*schema_keys(schema), *schema_sections(schema))}
NOTE = "rollout.samples is deprecated since 0.4.0: set rollout.n; the old name ends with 0.6.0, not before 2027-03-01"


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key and a section that have other names now."""
    old = (
        Deprecation("rollout.samples", "rollout.n", "0.4.0", "0.6.0", date(2027, 3, 1)),
        Deprecation("rollout.tools", "rollout.multi_turn", "0.4.0", "0.6.0", date(2027, 3, 1)),
    )
    monkeypatch.setattr(names, "DEPRECATED", old)


def test_an_old_name_sets_the_new_key_and_says_so_once(renamed: None, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [train, _self_]\nrollout: {samples: 3}\n")
    found = resolve(["rollout.samples=5"], config_name="mine", config_dir=str(tmp_path), checks=())
    assert found.config.rollout.n == 5
    assert found.notes.count(NOTE) == 1


def test_keys_below_an_old_section_move_with_it(renamed: None) -> None:
    found = resolve(["rollout.tools.max_assistant_turns=7"], checks=())
    assert found.config.rollout.multi_turn.max_assistant_turns == 7
    assert [note.split(":")[0] for note in found.notes] == ["rollout.tools is deprecated since 0.4.0"]


def test_the_command_line_shows_the_line(renamed: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--cfg", "job", "rollout.samples=5"])
    assert capsys.readouterr().err.count(NOTE) == 1
    assert main(["config", "explain", "rollout.samples"]) == 0
    assert "rollout.n" in capsys.readouterr().out


def test_without_an_old_name_nothing_is_said(renamed: None) -> None:
    assert not [note for note in resolve(["rollout.n=5"], checks=()).notes if "deprecated" in note]


def test_each_old_name_is_documented_and_leads_to_a_key() -> None:
    for each in DEPRECATED:
        assert each.old not in KEYS
        assert each.new in KEYS
        row = f"| `{each.old}` | `{each.new}` | {each.since} | {each.removed_in} | {each.not_before} |"
        assert row in PAGE


def test_old_names_go_with_the_version_that_was_promised() -> None:
    current = Version(agentrl.__version__)
    assert not [each.old for each in DEPRECATED if Version(each.removed_in) <= current]
