"""What the documentation shows is what happens."""

import re
import shlex
from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.config.keys import home, schema_keys, schema_sections
from agentrl.config.schema import Config
from agentrl.config.schema.commands import SCHEMAS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "config.md").read_text()
SECTIONS = "data|model|actor|rollout|reward|algorithm|trainer"
KEY = re.compile(rf"(?<![\w./])(?:{SECTIONS})(?:\.[a-z_]+)+(?==)")
PLACES = ("*.md", "docs/*.md", "tools/*.*", "interactions/*.*")
NAMES_ONLY = "not-here.md"
"""The page of names that are no keys."""
TEXTS = sorted(file for place in PLACES for file in ROOT.glob(place) if file.name != NAMES_ONLY)


def test_the_example_experiment_composes(tmp_path: Path) -> None:
    files = re.findall(r"```yaml\n# my/([\w/]+\.yaml)[^\n]*\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in files] == ["exp.yaml", "model/qwen.yaml"]
    for name, text in files:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    config = compose(config_dir=str(tmp_path), config_name="exp", checks=())
    assert (config.algorithm.adv_estimator, config.rollout.n, config.model.lora_rank) == ("rloo", 16, 32)


def test_the_table_of_overrides_holds() -> None:
    rows = re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)
    assert len(rows) >= 7
    for row in rows:
        compose(shlex.split(row) if "'" in row else [row], checks=())


@pytest.mark.parametrize("text", TEXTS, ids=lambda file: file.name)
def test_keys_that_texts_set_exist(text: Path) -> None:
    sections = schema_sections(Config)
    known = {path: key for schema in SCHEMAS.values() for path, key in schema_keys(schema).items()}
    wrong = {key for key in KEY.findall(text.read_text()) if not home(key, known) and key not in sections}
    of_examples = {"rollout.temprature", "data.return_raw_chat"}  # a typo, and a key of verl's
    assert wrong <= of_examples
