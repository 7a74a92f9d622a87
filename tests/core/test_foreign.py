"""JSON and YAML of strangers: values as ever, and no text that stands for more than memory or time allow."""

from pathlib import Path

import pytest
import yaml

from agentrl.core.errors import UserError
from agentrl.core.foreign import MOST_PARTS, read_json, read_yaml
from agentrl.core.plugins import read_entries
from agentrl.environments.entry import read_entry
from agentrl.http.refusals import Refused
from agentrl.http.serving import parse
from agentrl.tasks.harbor.compose import read_compose
from agentrl.tasks.harbor.fields import Fields
from agentrl.tasks.harbor.yaml_task import read_yaml as read_task
from agentrl.training.checkpoint.changes import _read
from agentrl.view.runs import find_runs
from agentrl_verl.reading.program_settings import Source
from agentrl_verl.reading.yaml_files import YamlFiles


def laughs(last: str = "i") -> str:
    """Ten lines that stand for 10**9 values."""
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for before, name in zip("abcdefgh", [*"bcdefgh", last], strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    return "\n".join(lines) + "\n"


BOMBS = {
    "references": laughs(),
    "merged mappings": "a: &a {x: 1}\n" + laughs().partition("\n")[2].replace("[*", "{<<: [*").replace("]\n", "]}\n"),
    "a value in itself": "a: &a [*a]",
    "depth": "[" * 5000,
    "digits": f"a: {'9' * 100_000}",
    "base 60": f"a: 1{':1' * 100_000}",
    "a day that is none": "a: 2024-99-99",
    "length": "a: b\n" * 2_000_000,
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_yaml_of_a_large_value_is_refused(name: str) -> None:
    with pytest.raises(yaml.YAMLError):
        read_yaml(BOMBS[name])


def test_plain_yaml_is_what_it_was() -> None:
    text = "a: &x [1, 2.5, null, true, 2024-01-02]\nb: *x\nc: {<<: {d: 1}, e: 'f'}\n"
    assert read_yaml(text) == yaml.safe_load(text)
    assert read_yaml("") is None


def test_every_reader_of_others_yaml_refuses_it(tmp_path: Path) -> None:
    """One line each, at once."""
    bomb = laughs("tools")
    for name in ("bomb.yaml", "task.yaml", "docker-compose.yaml", "config.yaml"):
        (tmp_path / name).write_text(bomb)
    file = str(tmp_path / "bomb.yaml")
    for read in (
        lambda: read_entries(file, "tools", what="x"),
        lambda: read_entry(file, "a"),
        lambda: YamlFiles(Source(), tmp_path).read(tmp_path / "bomb.yaml", ""),
        lambda: read_task(tmp_path),
        lambda: read_compose(tmp_path / "docker-compose.yaml", tmp_path, Fields({}, "x"), "main"),
        lambda: _read(tmp_path / "config.yaml"),
    ):
        with pytest.raises(UserError):
            read()


def test_the_viewer_shows_a_run_with_such_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(laughs())
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (found,) = find_runs([str(tmp_path)])
    assert found.settings() == {}


@pytest.mark.parametrize("text", ['{"value":[' + "[]," * MOST_PARTS + "[]]}", "[" * 100_000, '{"a":' * 100_000])
def test_json_of_too_many_or_too_deep_lists_is_refused(text: str) -> None:
    for written in (text, text.encode()):
        with pytest.raises(ValueError, match=r"more than|too deep"):
            read_json(written)
    with pytest.raises(Refused):
        parse(text.encode())
    assert read_json('{"a": [1, {"b": 2}]}') == {"a": [1, {"b": 2}]}
